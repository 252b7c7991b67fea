// Webhooks: who is told of what, and what became of each message.
import { said, t } from "../i18n.js";
import { pages, patch, post, remove } from "../api.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../live.js";
import { ask, attempt, can, canWhole, Empty, me, Scroll, Section, Trouble } from "../parts.js";
import { change } from "../router.js";
import { plural } from "../words.js";
import { Deliveries } from "./deliveries.js";

const EVENTS = [
  "job.run.completed",
  "job.run.failed",
  "job.run.skipped",
  "job.failed_permanently",
  "job.stalled",
  "job.cancelled",
  "job.awaiting_signal",
  "group.finished",
  "schedule.skipped",
];

export default function Webhooks({ place }) {
  const list = useLoad((signal) => pages("api/webhooks", { limit: 500 }, { enough: 1000, signal }), [], {
    every: 20_000,
  });
  const items = list.data?.items || [];
  const act = (work, words) => attempt(work, words).then((done) => (list.again(), done));
  const { status = "", webhook_id = "" } = place.query;
  const set = (query) => change("webhooks", { status, webhook_id, ...query });
  const path = (one) => `api/webhooks/${one.webhook_id}`;
  const drop = async (one) => {
    if (
      await ask({
        title: t("delete_this_subscription"),
        text: t("is_told_nothing_more_what_was", one.url),
        action: t("delete_it"),
        danger: true,
      })
    )
      act(() => remove(path(one)), t("deleted"));
  };
  const rotate = async (one) => {
    if (!(await ask({ title: t("make_another_secret"), text: t("for_a_day_both_sign"), action: t("make_it") }))) return;
    const made = await act(() => post(`${path(one)}/rotate-secret`));
    if (made) showSecret(made.secret, t("the_new_secret"));
  };
  const rows = html`${items.map(
    (one) => html`<tr key=${one.webhook_id} data-webhook=${one.webhook_id}>
    <td><span class="clip" title=${one.url}>${one.url}</span>${
      one.disabled_reason &&
      html`<br />
      <span class="problem">${one.disabled_reason}</span>`
    }</td>
    <td class="wide">${one.events.map((event) => said("hook", event)).join(", ")}</td><td class="wide">${one.office_id || t("all_offices")}</td>
    <td><input type="checkbox" aria-label=${t("is_enabled", one.url)} checked=${one.enabled} disabled=${!can("operate")}
      onChange=${() => act(() => patch(path(one), { enabled: !one.enabled }), one.enabled ? t("disabled") : t("enabled"))} />
      </td>
    <td class="number">${can("operate") && html`<button
      onClick=${() => act(() => post(`${path(one)}/test`), t("a_test_is_on_its_way"))}>${t("test")}</button> <button
      onClick=${() => edit(one).then((done) => done && list.again())}>${t("change_more")}</button> <button
      onClick=${() => rotate(one)}>${t("secret_more")}</button> <button class="danger" onClick=${() => drop(one)}>${t("delete_more")}</button>`}
      </td></tr>`,
  )}`;
  return html`<div class="head">
    <h1 class="grow">${t("webhooks")}</h1>${can("operate") && html`<button class="primary"
      onClick=${() => add().then(list.again)}>${t("new_subscription")}</button>`}
    </div>
    <${Trouble} error=${list.error} />
    <${Section} title=${plural(items.length, "subscription")}>
      ${
        items.length
          ? html`<${Scroll} label=${t("subscriptions")}><table><thead><tr><th>${t("url")}</th><th class="wide">${t("events")}</th>
        <th class="wide">${t("office")}</th><th>${t("on")}</th><th><span class="unseen">${t("actions")}</span></th></tr></thead><tbody>${rows}
        </tbody></table><//>`
          : html`<${Empty} isLoading=${list.isLoading}>${t("none_jobs_and_offices_may_have")}
            <//>`
      }
    <//>
    ${
      canWhole("read")
        ? html`<${Deliveries} title=${t("deliveries")} query=${{ status, webhook_id }} actions=${html`
      <label class="unseen" for="status">${t("status")}</label>
        <select id="status" style=${{ width: "auto" }} onChange=${(event) => set({ status: event.target.value })}>
        ${["", "PENDING", "DELIVERED", "FAILED"].map(
          (one) => html`<option key=${one} value=${one} selected=${one === status}>${one ? said("status", one) : t("any_status")}
          </option>`,
        )}</select>
      <label class="unseen" for="of">${t("subscription")}</label>
        <select id="of" style=${{ width: "auto", maxWidth: "260px" }}
          onChange=${(event) => set({ webhook_id: event.target.value })}>
        <option value="">${t("all_2")}</option>${items.map(
          (
            one,
          ) => html`<option key=${one.webhook_id} value=${one.webhook_id}
            selected=${one.webhook_id === webhook_id}>${one.url}
          </option>`,
        )}</select>`} />`
        : html`<${Empty}>${t("this_key_does_not_see_deliveries")}<//>`
    }`;
}

// A subscription may have events that this console does not know: they are shown by their names, and stay.
const offered = (given) => [...EVENTS, ...given.filter((one) => !EVENTS.includes(one))];
const chosen = (answer, given = []) => offered(given).filter((one) => answer[one]);
const wordsFor = (event) => {
  const code = event.replaceAll(".", "_");
  const words = said("hook", code);
  return words === code ? event : words;
};
const eventFields = (given) => offered(given).map((one) => ({ name: one, label: wordsFor(one), kind: "checkbox", value: given.includes(one) }));
const FORMATS = ["", "slack", "discord", "ntfy"];
const formatField = (value) => ({ name: "format", label: t("format"), value: value || "", options: FORMATS.map((one) => [one, one ? one : t("signed_json")]) });

// The address is shown without its secret part, so it is sent only if it was changed.
const edit = (one) =>
  ask({
    title: t("change", one.url),
    fields: [{ name: "url", label: t("url"), value: one.url, required: true }, formatField(one.format), ...eventFields(one.events)],
    action: t("change_it"),
    work: (answer) => {
      const body = { events: chosen(answer, one.events), format: answer.format || null };
      if (answer.url !== one.url) body.url = answer.url;
      return patch(`api/webhooks/${one.webhook_id}`, body);
    },
    done: t("changed"),
  });

async function add() {
  const made = await ask({
    title: t("new_subscription"),
    fields: [
      { name: "url", label: t("url"), kind: "url", required: true },
      ...(me.office_id === null ? [{ name: "office_id", label: t("office_empty_all") }] : []),
      formatField(null),
      ...eventFields(EVENTS.slice(0, 3)),
    ],
    action: t("subscribe"),
    work: (answer) => {
      const body = { url: answer.url, events: chosen(answer), ...(answer.format ? { format: answer.format } : {}) };
      if (answer.office_id || me.office_id) body.office_id = answer.office_id || me.office_id;
      return post("api/webhooks", body);
    },
    done: t("subscribed"),
  });
  if (made) await showSecret(made.secret, t("the_secret_of_this_subscription"));
}

export const showSecret = (secret, title) =>
  ask({
    title,
    text: t("it_is_shown_this_once_keep"),
    body: html`<code class="secret">${secret}
  </code>`,
    action: t("i_have_it"),
    only: true,
  });

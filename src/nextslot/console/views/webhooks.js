// Webhooks: who is told of what, and what became of each message.
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
        title: "Delete this subscription?",
        text: `${one.url} is told nothing more. What was delivered stays on record.`,
        action: "Delete it",
        danger: true,
      })
    )
      act(() => remove(path(one)), "Deleted.");
  };
  const rotate = async (one) => {
    if (!(await ask({ title: "Make another secret?", text: "For a day both sign.", action: "Make it" }))) return;
    const made = await act(() => post(`${path(one)}/rotate-secret`));
    if (made) showSecret(made.secret, "The new secret");
  };
  const rows = html`${items.map(
    (one) => html`<tr key=${one.webhook_id} data-webhook=${one.webhook_id}>
    <td><span class="clip" title=${one.url}>${one.url}</span>${
      one.disabled_reason &&
      html`<br />
      <span class="problem">${one.disabled_reason}</span>`
    }</td>
    <td class="wide">${one.events.join(", ")}</td><td class="wide">${one.office_id || "all offices"}</td>
    <td><input type="checkbox" aria-label=${`${one.url} is enabled`} checked=${one.enabled} disabled=${!can("operate")}
      onChange=${() => act(() => patch(path(one), { enabled: !one.enabled }), one.enabled ? "Disabled." : "Enabled.")} />
      </td>
    <td class="number">${can("operate") && html`<button
      onClick=${() => act(() => post(`${path(one)}/test`), "A test is on its way.")}>Test</button> <button
      onClick=${() => rotate(one)}>Secret…</button> <button class="danger" onClick=${() => drop(one)}>Delete…</button>`}
      </td></tr>`,
  )}`;
  return html`<div class="head">
    <h1 class="grow">Webhooks</h1>${can("operate") && html`<button class="primary"
      onClick=${() => add().then(list.again)}>New subscription</button>`}
    </div>
    <${Trouble} error=${list.error} />
    <${Section} title=${plural(items.length, "subscription")}>
      ${
        items.length
          ? html`<${Scroll} label="Subscriptions"><table><thead><tr><th>URL</th><th class="wide">Events</th>
        <th class="wide">Office</th><th>On</th><th><span class="unseen">Actions</span></th></tr></thead><tbody>${rows}
        </tbody></table><//>`
          : html`<${Empty}>${list.isLoading ? "Loading…" : "None. Jobs and offices may have webhooks of their own."}
            <//>`
      }
    <//>
    ${
      canWhole("read")
        ? html`<${Deliveries} title="Deliveries" query=${{ status, webhook_id }} actions=${html`
      <label class="unseen" for="status">Status</label>
        <select id="status" style=${{ width: "auto" }} onChange=${(event) => set({ status: event.target.value })}>
        ${["", "PENDING", "DELIVERED", "FAILED"].map(
          (one) => html`<option key=${one} value=${one} selected=${one === status}>${one || "any status"}
          </option>`,
        )}</select>
      <label class="unseen" for="of">Subscription</label>
        <select id="of" style=${{ width: "auto", maxWidth: "260px" }}
          onChange=${(event) => set({ webhook_id: event.target.value })}>
        <option value="">all</option>${items.map(
          (
            one,
          ) => html`<option key=${one.webhook_id} value=${one.webhook_id}
            selected=${one.webhook_id === webhook_id}>${one.url}
          </option>`,
        )}</select>`} />`
        : html`<${Empty}>This key does not see deliveries of the whole scheduler; a job's page does not either.<//>`
    }`;
}

async function add() {
  const made = await ask({
    title: "New subscription",
    fields: [
      { name: "url", label: "URL", kind: "url", required: true },
      ...(me.office_id === null ? [{ name: "office_id", label: "Office (empty: all)" }] : []),
      ...EVENTS.map((one, index) => ({ name: one, label: one, kind: "checkbox", value: index < 3 })),
    ],
    action: "Subscribe",
    work: (answer) => {
      const body = { url: answer.url, events: EVENTS.filter((one) => answer[one]) };
      if (answer.office_id || me.office_id) body.office_id = answer.office_id || me.office_id;
      return post("api/webhooks", body);
    },
    done: "Subscribed.",
  });
  if (made) await showSecret(made.secret, "The secret of this subscription");
}

export const showSecret = (secret, title) =>
  ask({
    title,
    text: "It is shown this once. Keep it where it is used.",
    body: html`<code class="secret">${secret}
  </code>`,
    action: "I have it",
    only: true,
  });

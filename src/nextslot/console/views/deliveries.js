// Messages to webhooks with their attempts; sent again by hand.
import { said, t } from "../i18n.js";
import { pages, post } from "../api.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../live.js";
import { attempt, can, Empty, Id, Scroll, Section, Status, Trouble, When } from "../parts.js";
import { useKept } from "../router.js";
import { duration, plural } from "../words.js";

export function Deliveries({ query, title, actions = null }) {
  const [size, setSize] = useKept("deliveries", 50);
  const [open, setOpen] = useState(null);
  const list = useLoad(
    (signal) => pages("api/webhook-deliveries", { ...query, limit: Math.min(500, size) }, { enough: size, signal }),
    [JSON.stringify(query), size],
    {
      concerns: (event) => event.type.startsWith("job_") && (!query.job_id || event.job_id === query.job_id),
      every: 3000,
    },
  );
  const items = list.data?.items || [];
  const again = (one) =>
    attempt(() => post(`api/webhook-deliveries/${one.delivery_id}/redeliver`), t("it_is_sent_once_more")).then(
      list.again,
    );
  return html`<${Section} title=${title} actions=${actions}>
    <${Trouble} error=${list.error} />
    ${
      items.length
        ? html`<${Scroll} label=${title}><table>
      <thead><tr><th>${t("status")}</th><th>${t("event")}</th><th class="wide">${t("to")}</th><th class="wide">${t("job")}</th><th class="wide">${t("created")}</th>
        <th class="number">${t("attempts")}</th><th class="wide">${t("next")}</th><th><span class="unseen">${t("actions")}</span></th></tr>
        </thead>
      <tbody>${items.map((one) => [
        html`<tr key=${one.delivery_id} data-delivery=${one.delivery_id}><td class="tight">
          <${Status} status=${one.status} /></td><td>${said("hook", one.event)}</td>
          <td class="wide"><span class="clip" title=${one.url}>${one.url}</span></td><td class="wide">
            <${Id} id=${one.job_id} to="jobs" /></td>
          <td class="wide tight"><${When} at=${one.created_at} /></td>
          <td class="number">
            <button class="quiet" aria-expanded=${String(open === one.delivery_id)}
              onClick=${() => setOpen(open === one.delivery_id ? null : one.delivery_id)}>${plural(one.attempts.length, "attempt")}
            </button></td>
          <td class="wide tight"><${When} at=${one.next_attempt_at} /></td>
          <td class="number">${can("operate") && html`<button onClick=${() => again(one)}>${t("redeliver")}</button>`}</td>
            </tr>`,
        open === one.delivery_id &&
          html`<tr key=${`${one.delivery_id} attempts`}><td colspan="8">
          <${Attempts} delivery=${one} /></td></tr>`,
      ])}</tbody></table><//>`
        : html`<${Empty} isLoading=${list.isLoading}>${t("no_deliveries")}<//>`
    }
    ${
      list.data?.cursor &&
      html`<p class="more">
      <button onClick=${() => setSize(size + 100)}>${t("more")}</button></p>`
    }
  <//>`;
}

function Attempts({ delivery }) {
  if (!delivery.attempts.length) return html`<${Empty}>${t("it_was_not_tried_yet")}<//>`;
  return html`${delivery.reason && html`<p>${delivery.reason}</p>`}<table><thead><tr><th class="number">${t("number")}</th>
    <th>${t("when")}</th><th class="number">${t("took")}</th><th class="number">${t("code")}</th><th>${t("answer")}</th></tr></thead>
    <tbody>${delivery.attempts.map(
      (one) => html`<tr key=${one.number}><td class="number">${one.number}</td>
      <td class="tight dated"><${When} at=${one.attempted_at} absolute /></td>
      <td class="number">${duration(one.duration_seconds)}</td><td class="number">${one.status_code ?? "–"}
        </td><td class="mono">${one.error || one.answer || ""}</td></tr>`,
    )}</tbody></table>`;
}

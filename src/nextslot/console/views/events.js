// A table of events, of a job or of everything.
import { said, t } from "../i18n.js";
import { html } from "../lib.js";
import { Empty, Id, Scroll, When } from "../parts.js";

export function EventTable({ events, hasJob = false }) {
  if (!events.length) return html`<${Empty}>${t("no_events")}<//>`;
  return html`<${Scroll} label=${t("events")}><table><thead><tr><th class="number">${t("number")}</th><th>${t("when")}</th>
    <th>${t("what")}</th>${hasJob && html`<th>${t("job")}</th>`}<th class="wide">${t("details")}</th></tr></thead>
    <tbody>${events.map(
      (event) => html`<tr key=${event.seq}><td class="number">${event.seq}</td><td class="tight dated">
      <${When} at=${event.timestamp} absolute /></td>
      <td>${said("event", event.type)} <span class="dim mono wide">${event.type}</span></td>
      ${hasJob && html`<td><${Id} id=${event.job_id} to="jobs" /></td>`}
      <td class="wide mono">${Object.keys(event.details).length ? JSON.stringify(event.details) : ""}</td></tr>`,
    )}
        </tbody></table><//>`;
}

// Direct requests: who waited on the line, and one of them.
import { cancelDirect } from "../actions.js";
import { get, pages } from "../api.js";
import { html } from "../lib.js";
import { useLoad } from "../live.js";
import { can, Empty, Fields, Json, Scroll, Section, Status, Trouble, useTitle, When } from "../parts.js";
import { link } from "../router.js";
import { duration } from "../words.js";

export default function Direct({ place }) {
  return place.parts.length ? html`<${One} id=${place.parts[0]} />` : html`<${List} />`;
}

function List() {
  const list = useLoad((signal) => pages("api/direct", { limit: 100 }, { enough: 100, signal }), [], {
    concerns: (event) => event.type.startsWith("reservation"),
    every: 10_000,
  });
  const items = list.data?.items || [];
  return html`<div class="head"><h1>Direct requests</h1></div><${Trouble} error=${list.error} />
    <${Section} title="The newest">
    ${
      items.length
        ? html`<${Scroll} label="Direct requests"><table><thead><tr><th>Status</th><th>Type</th>
      <th>Office</th><th>Came</th><th class="number">Waited</th><th class="number">Ran</th></tr></thead>
    <tbody>${items.map(
      (one) => html`<tr key=${one.run_id}><td class="tight"><${Status} status=${one.status} /></td>
      <td><a href=${link(["direct", one.run_id])}>${one.job_type}</a></td><td>${one.office_id}</td>
      <td class="tight"><${When} at=${one.created_at} /></td>
        <td class="number">${one.waited_seconds === null ? "–" : duration(one.waited_seconds)}</td>
        <td class="number">${one.ran_seconds === null ? "–" : duration(one.ran_seconds)}</td></tr>`,
    )}</tbody></table>
        <//>`
        : html`<${Empty}>None.<//>`
    }
  <//>`;
}

function One({ id }) {
  const one = useLoad((signal) => get(`api/direct/${encodeURIComponent(id)}`, {}, signal), [id], {
    concerns: (event) => event.type.startsWith("reservation"),
    every: 2000,
  });
  const shown = one.data;
  useTitle(shown && `direct: ${shown.job_type}`);
  if (!shown) return one.error ? html`<${Trouble} error=${one.error} />` : html`<${Empty}>Loading…<//>`;
  const cancel = () => cancelDirect(shown).then((done) => done && one.again());
  return html`<div class="head"><h1 class="grow">direct: ${shown.job_type}</h1><${Status} status=${shown.status} />
      ${can("operate") && ["WAITING", "RUNNING"].includes(shown.status) && html`<button class="danger"
        onClick=${cancel}>Cancel…</button>`}
      <a class="button" href=${link("direct")}>All</a></div>
    <${Section} title="Settings"><${Fields} of=${[
      [
        "Id",
        html`<span class="mono">${shown.direct_id}
        </span>`,
      ],
      ["Office", shown.office_id],
      ["By", shown.created_by],
      ["Came", html`<${When} at=${shown.created_at} />`],
      ["Waits until", !shown.started_at && html`<${When} at=${shown.wait_until} />`],
      ["Started", shown.started_at && html`<${When} at=${shown.started_at} />`],
      ["Ended", shown.finished_at && html`<${When} at=${shown.finished_at} />`],
      ["Detached", shown.detach ? "yes" : "no"],
      ["Failure", shown.failure_kind],
      ["Error", shown.error],
      ["Reason", shown.reason],
    ]} /><//>
    <div class="columns"><${Section} title="Parameters"><${Json} value=${shown.params} label="Parameters" /><//>
    ${shown.result !== null && html`<${Section} title="Result"><${Json} value=${shown.result} label="Result" /><//>`}
      </div>
    ${
      shown.log &&
      html`<${Section} title="Log"><pre class="log" tabindex="0" aria-label="Log">${shown.log}</pre>
      <//>`
    }`;
}

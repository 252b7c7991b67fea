// Direct requests: who waited on the line, and one of them.
import { said, t } from "../i18n.js";
import { cancelDirect } from "../actions.js";
import { get, pages } from "../api.js";
import { html } from "../lib.js";
import { useLoad } from "../live.js";
import { can, Empty, Loading, Fields, Json, Scroll, Section, Status, Trouble, useTitle, When } from "../parts.js";
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
  return html`<div class="head"><h1>${t("direct_requests")}</h1></div><${Trouble} error=${list.error} />
    <${Section} title=${t("the_newest")}>
    ${
      items.length
        ? html`<${Scroll} label=${t("direct_requests")}><table><thead><tr><th>${t("status")}</th><th>${t("type")}</th>
      <th>${t("office")}</th><th>${t("came")}</th><th class="number">${t("waited")}</th><th class="number">${t("ran")}</th></tr></thead>
    <tbody>${items.map(
      (one) => html`<tr key=${one.run_id}><td class="tight"><${Status} status=${one.status} /></td>
      <td><a href=${link(["direct", one.run_id])}>${one.job_type}</a></td><td>${one.office_id}</td>
      <td class="tight"><${When} at=${one.created_at} /></td>
        <td class="number">${one.waited_seconds === null ? "–" : duration(one.waited_seconds)}</td>
        <td class="number">${one.ran_seconds === null ? "–" : duration(one.ran_seconds)}</td></tr>`,
    )}</tbody></table>
        <//>`
        : html`<${Empty}>${t("none")}<//>`
    }
  <//>`;
}

function One({ id }) {
  const one = useLoad((signal) => get(`api/direct/${encodeURIComponent(id)}`, {}, signal), [id], {
    concerns: (event) => event.type.startsWith("reservation"),
    every: 2000,
  });
  const shown = one.data;
  useTitle(shown && t("direct", shown.job_type));
  if (!shown) return one.error ? html`<${Trouble} error=${one.error} />` : html`<${Loading} />`;
  const cancel = () => cancelDirect(shown).then((done) => done && one.again());
  return html`<div class="head"><h1 class="grow">${t("direct", shown.job_type)}</h1><${Status} status=${shown.status} />
      ${can("operate") && ["WAITING", "RUNNING"].includes(shown.status) && html`<button class="danger"
        onClick=${cancel}>${t("cancel_more")}</button>`}
      <a class="button" href=${link("direct")}>${t("all")}</a></div>
    <${Section} title=${t("settings")}><${Fields} of=${[
      [
        t("id"),
        html`<span class="mono">${shown.direct_id}
        </span>`,
      ],
      [t("office"), shown.office_id],
      [t("by"), shown.created_by],
      [t("came"), html`<${When} at=${shown.created_at} />`],
      [t("waits_until"), !shown.started_at && html`<${When} at=${shown.wait_until} />`],
      [t("started"), shown.started_at && html`<${When} at=${shown.started_at} />`],
      [t("ended"), shown.finished_at && html`<${When} at=${shown.finished_at} />`],
      [t("detached"), shown.detach ? t("yes") : t("no")],
      [t("failure"), shown.failure_kind && said("failure", shown.failure_kind)],
      [t("error"), shown.error],
      [t("reason"), shown.reason],
    ]} /><//>
    <div class="columns"><${Section} title=${t("parameters")}><${Json} value=${shown.params} label=${t("parameters")} /><//>
    ${shown.result !== null && html`<${Section} title=${t("result")}><${Json} value=${shown.result} label=${t("result")} /><//>`}
      </div>
    ${
      shown.log &&
      html`<${Section} title=${t("log")}><pre class="log" tabindex="0" aria-label=${t("log")}>${shown.log}</pre>
      <//>`
    }`;
}

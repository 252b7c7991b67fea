// Groups: how far each is.
import { said, t } from "../i18n.js";
import { pages, post } from "../api.js";
import { html } from "../lib.js";
import { useLoad } from "../live.js";
import { ask, Bar, can, Empty, Scroll, Section, Status, Trouble, When } from "../parts.js";
import { link, useKept } from "../router.js";
import { count, plural, short } from "../words.js";

export default function Groups() {
  const [size, setSize] = useKept("groups", 100);
  const list = useLoad(
    (signal) => pages("api/job-groups", { limit: Math.min(500, size) }, { enough: size, signal }),
    [size],
    { concerns: (event) => event.type.startsWith("job_") || event.type === "group_finished" },
  );
  const items = list.data?.items || [];
  return html`<div class="head"><h1 class="grow">${t("groups")}</h1></div>
    <${Trouble} error=${list.error} />
    <${Section} title=${list.data?.cursor ? t("the_newest_2", count(items.length)) : plural(items.length, "group")}>
      ${
        items.length
          ? html`<${Scroll} label=${t("groups")}><table>
        <thead><tr><th>${t("status")}</th><th>${t("group")}</th><th class="wide">${t("mode")}</th><th>${t("ended")}</th><th class="wide">${t("office")}</th>
          <th class="wide">${t("created")}</th><th><span class="unseen">${t("actions")}</span></th></tr></thead>
        <tbody>${items.map(
          (one) => html`<tr key=${one.group_id}><td class="tight"><${Status} status=${one.status} /></td>
          <td><a href=${link(["groups", one.group_id])}>${one.name || short(one.group_id)}</a></td>
            <td class="wide">${said("mode", one.mode)}, ${said("on_failure", one.on_failure)}</td>
          <td class="tight" style=${{ minWidth: "130px" }}>${count(one.ended)} / ${count(one.members)}<br />
            <${Bar} fraction=${one.members ? one.ended / one.members : 0}
              label=${t("ended_of", one.name || one.group_id)} />
            </td>
          <td class="wide">${one.office_id}</td><td class="wide tight"><${When} at=${one.created_at} /></td>
          <td class="number">${can("operate") && !one.finished_at && html`<button
            onClick=${() => cancelGroup(one).then(list.again)}>${t("cancel_more")}</button>`}
            </td></tr>`,
        )}</tbody></table><//>`
          : html`<${Empty} isLoading=${list.isLoading}>${t("none_yet_a_group_is_jobs")}
          <//>`
      }
      ${list.data?.cursor && html`<p class="more"><button onClick=${() => setSize(size + 200)}>${t("more")}</button></p>`}
    <//>`;
}

export async function cancelGroup(group) {
  const open = group.members - group.ended;
  await ask({
    title: t("cancel", group.name || t("the_group")),
    text: t("not_ended_yet", plural(open, "member")),
    fields: [{ name: "reason", label: t("reason_optional") }],
    action: t("cancel_the_group"),
    danger: true,
    work: ({ reason }) => post(`api/job-groups/${group.group_id}/cancel`, { reason: reason || null }),
    done: t("cancelled"),
  });
}

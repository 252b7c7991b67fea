// Groups: how far each is.
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
  return html`<div class="head"><h1 class="grow">Groups</h1></div>
    <${Trouble} error=${list.error} />
    <${Section} title=${`${list.data?.cursor ? "The newest " : ""}${plural(items.length, "group")}`}>
      ${
        items.length
          ? html`<${Scroll} label="Groups"><table>
        <thead><tr><th>Status</th><th>Group</th><th class="wide">Mode</th><th>Ended</th><th class="wide">Office</th>
          <th class="wide">Created</th><th><span class="unseen">Actions</span></th></tr></thead>
        <tbody>${items.map(
          (one) => html`<tr key=${one.group_id}><td class="tight"><${Status} status=${one.status} /></td>
          <td><a href=${link(["groups", one.group_id])}>${one.name || short(one.group_id)}</a></td>
            <td class="wide">${one.mode}, ${one.on_failure}</td>
          <td class="tight" style=${{ minWidth: "130px" }}>${count(one.ended)} of ${count(one.members)}<br />
            <${Bar} fraction=${one.members ? one.ended / one.members : 0}
              label=${`Ended of ${one.name || one.group_id}`} />
            </td>
          <td class="wide">${one.office_id}</td><td class="wide tight"><${When} at=${one.created_at} /></td>
          <td class="number">${can("operate") && !one.finished_at && html`<button
            onClick=${() => cancelGroup(one).then(list.again)}>Cancel…</button>`}
            </td></tr>`,
        )}</tbody></table><//>`
          : html`<${Empty}>${list.isLoading ? "Loading…" : "None yet. A group is jobs that were submitted together."}
          <//>`
      }
      ${list.data?.cursor && html`<p class="more"><button onClick=${() => setSize(size + 200)}>More</button></p>`}
    <//>`;
}

export async function cancelGroup(group) {
  const open = group.members - group.ended;
  await ask({
    title: `Cancel ${group.name || "the group"}?`,
    text: `${plural(open, "member")} that ${open === 1 ? "has" : "have"} not ended.`,
    fields: [{ name: "reason", label: "Reason (optional)" }],
    action: "Cancel the group",
    danger: true,
    work: ({ reason }) => post(`api/job-groups/${group.group_id}/cancel`, { reason: reason || null }),
    done: "Cancelled.",
  });
}

// A graph of jobs, of a group, a task, or around one job: drawn once, its statuses live.
import { said, t } from "../i18n.js";
import { get, pages } from "../api.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { useLoad } from "../live.js";
import { can, Empty, me, Section, Status, Trouble, useTitle } from "../parts.js";
import { link } from "../router.js";
import { count, named, plural, STATUSES } from "../words.js";
import { Drawing } from "./drawing.js";
import { cancelGroup } from "./groups.js";

const MOST = 3000;

export default function Graph({ place }) {
  const groupId = place.view === "groups" ? place.parts[0] : null;
  const query = place.query;
  const ids = useRef(new Set());
  const concerns = (event) => event.job_id && (ids.current.has(event.job_id) || event.type === "job_queued");
  const found = useLoad((signal) => jobsOf(groupId, query, signal), [groupId, JSON.stringify(query)], { concerns });
  const [wanted, setWanted] = useState("");
  useTitle(found.data?.group?.name || query.task_id, t("groups"));
  if (!found.data) return found.error ? html`<${Trouble} error=${found.error} />` : html`<${Empty}>${t("loading_more")}<//>`;
  const { group, jobs, isCut } = found.data;
  ids.current = new Set(jobs.map((job) => job.job_id));
  const { nodes, edges } = drawn(jobs, group);
  const numbers = STATUSES.map((status) => [status, nodes.filter((node) => node.job.status === status).length]).filter(
    ([, number]) => number,
  );
  const title = group ? group.name || t("group") : query.task_id ? t("task", query.task_id) : t("graph");
  return html`<div class="head">
    <h1 class="grow">${title} <span
      class="dim">${plural(nodes.length, "job")}, ${plural(edges.length, "edge")}${group ? `, ${said("mode", group.mode)}` : ""}${isCut ? " …" : ""}
    </span></h1>
      ${group && html`<${Status} status=${group.status} />`}
      <div class="actions">${group && can("operate") && !group.finished_at && html`<button class="danger"
        onClick=${() => cancelGroup(group).then(found.again)}>${t("cancel_more")}</button>`}
        ${group && html`<a class="button" href=${link("jobs", { group_id: group.group_id })}>${t("as_a_list")}</a>`}</div></div>
    <${Trouble} error=${found.error} />
    <${Section} title=${t("graph")} actions=${html`${numbers.map(
      ([status, number]) => html`<span key=${status}>${count(number)} <${Status} status=${status} />
      </span>`,
    )}
        <label class="unseen" for="find">${t("find_in_the_graph")}</label>
          <input id="find" type="search" placeholder=${t("find")} style=${{ width: "130px" }}
            onInput=${(event) => setWanted(event.target.value)} />`}>
      <${Drawing} nodes=${nodes} edges=${edges} wanted=${wanted} />
    <//>`;
}

async function jobsOf(groupId, query, signal) {
  if (groupId) {
    const group = await get(`api/job-groups/${encodeURIComponent(groupId)}`, {}, signal);
    return { group, jobs: group.jobs, isCut: false };
  }
  if (query.job_id) return { group: null, jobs: await around(query.job_id, signal), isCut: false };
  const filter = { task_id: query.task_id, office_id: query.office_id || me.office_id };
  const page = await pages("api/jobs", { ...filter, limit: 500 }, { enough: MOST, signal });
  return { group: null, jobs: page.items.reverse(), isCut: Boolean(page.cursor) };
}

// The job and all that it waits for, a step at a time.
async function around(jobId, signal) {
  const seen = new Map();
  let next = [jobId];
  while (next.length && seen.size < 300) {
    const found = await Promise.all(
      next.slice(0, 30).map((id) => get(`api/jobs/${encodeURIComponent(id)}`, {}, signal)),
    );
    next = next.slice(30);
    for (const job of found) {
      for (const one of job.chain.length ? job.chain : [job]) seen.set(one.job_id, one);
      next.push(...job.depends_on.filter((id) => !seen.has(id) && !next.includes(id)));
    }
  }
  return [...seen.values()];
}

// A chain of retries is one node, that of its last job; edges go between chains.
function drawn(jobs, group) {
  const root = new Map();
  const last = new Map();
  const byId = new Map(jobs.map((job) => [job.job_id, job]));
  const rootOf = (job) => {
    if (!root.has(job.job_id)) {
      const before = byId.get(job.retry_of);
      root.set(job.job_id, before ? rootOf(before) : job.job_id);
    }
    return root.get(job.job_id);
  };
  for (const job of jobs) {
    const own = rootOf(job);
    if (!last.has(own) || last.get(own).attempt < job.attempt) last.set(own, job);
  }
  const nodes = [...last].map(([id, job]) => ({ id, job, name: named(job) }));
  const edges = new Map();
  const add = (from, to) => from !== to && last.has(from) && last.has(to) && edges.set(`${from} ${to}`, [from, to]);
  for (const [id, job] of last)
    for (const needed of job.depends_on) if (byId.has(needed)) add(rootOf(byId.get(needed)), id);
  if (group?.mode === "sequential") {
    const inOrder = [...nodes].sort((one, other) => one.job.sequence - other.job.sequence);
    for (let index = 1; index < inOrder.length; index++) add(inOrder[index - 1].id, inOrder[index].id);
  }
  return { nodes, edges: [...edges.values()] };
}

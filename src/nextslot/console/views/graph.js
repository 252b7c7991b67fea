// A graph of jobs, of a group, a task, or around one job: drawn once, its statuses live.
import { said, t } from "../i18n.js";
import { get, pages } from "../api.js";
import { html, useCallback, useMemo, useRef } from "../lib.js";
import { useLoad } from "../live.js";
import { Bar, can, Fields, Id, Loading, me, Section, Status, Trouble, useNow, useTitle, When } from "../parts.js";
import { cancelJob, retryRun } from "../actions.js";
import { link, useKept } from "../router.js";
import { between, count, duration, ENDED, named, plural, STATUSES } from "../words.js";
import { Drawing } from "./drawing.js";
import { cancelGroup } from "./groups.js";

const MOST = 3000;

export default function Graph({ place }) {
  const groupId = place.view === "groups" ? place.parts[0] : null;
  const query = place.query;
  const ids = useRef(new Set());
  const concerns = (event) => event.job_id && (ids.current.has(event.job_id) || event.type === "job_queued");
  const found = useLoad((signal) => jobsOf(groupId, query, signal), [groupId, JSON.stringify(query)], { concerns });
  // Who comes back from a job finds the graph as it was.
  const [wanted, setWanted] = useKept("graph wanted", "");
  const [shownStatus, setShownStatus] = useKept("graph status", "");
  const [isCollapsed, setCollapsed] = useKept("graph collapsed", false);
  const [opened, setOpened] = useKept("graph opened", NOTHING); // Of the collapsed ones.
  const [showsPath, setShowsPath] = useKept("graph path", false);
  const [chosen, choose] = useKept("graph chosen", null);
  const take = useCallback((id) => choose((old) => (old === id ? null : id)), []);
  useTitle(found.data?.group?.name || query.task_id, t("groups"));
  const jobs = found.data?.jobs || [];
  const group = found.data?.group;
  const isOver = jobs.every((job) => ENDED.includes(job.status));
  const officeId = jobs[0]?.office_id;
  // When each is expected to end, as far as the forecast goes.
  const forecast = useLoad(
    (signal) => (officeId && !isOver ? get("api/queue", { office_id: officeId, limit: 500, wait_seconds: 20 }, signal) : null),
    [officeId, isOver],
    { concerns, every: 20_000 },
  );
  ids.current = new Set(jobs.map((job) => job.job_id));
  const whole = useMemo(() => drawn(jobs, group), [found.data]);
  const expected = useMemo(
    () => new Map([...(forecast.data?.running || []), ...(forecast.data?.queue || [])].map((job) => [job.job_id, job])),
    [forecast.data],
  );
  const { nodes, edges } = useMemo(() => (isCollapsed ? collapsed(whole, opened) : whole), [whole, isCollapsed, opened]);
  const path = useMemo(() => (showsPath ? criticalPath(nodes, edges, expected) : NOTHING), [nodes, edges, expected, showsPath]);
  if (!found.data) return found.error ? html`<${Trouble} error=${found.error} />` : html`<${Loading} />`;
  const numbers = STATUSES.map((status) => [status, whole.nodes.filter((node) => node.job.status === status).length]).filter(
    ([, number]) => number,
  );
  const done = whole.nodes.filter((node) => ENDED.includes(node.job.status)).length;
  const title = group ? group.name || t("group") : query.task_id ? t("task", query.task_id) : t("graph");
  const needle = wanted.trim().toLowerCase();
  const isDimmed = (node) => (needle && !node.name.toLowerCase().includes(needle)) || (shownStatus && !jobsOfNode(node).some((job) => job.status === shownStatus));
  const current = nodes.find((node) => node.id === chosen);
  return html`<div class="head">
    <h1 class="grow">${title} <span
      class="dim">${plural(whole.nodes.length, "job")}, ${plural(whole.edges.length, "edge")}${group ? `, ${said("mode", group.mode)}` : ""}${found.data.isCut ? " …" : ""}
    </span></h1>
      ${group && html`<${Status} status=${group.status} />`}
      <div class="actions">${group && can("operate") && !group.finished_at && html`<button class="danger"
        onClick=${() => cancelGroup(group).then(found.again)}>${t("cancel_more")}</button>`}
        ${group && html`<a class="button" href=${link("jobs", { group_id: group.group_id })}>${t("as_a_list")}</a>`}</div></div>
    <${Trouble} error=${found.error} />
    <${Section} title=${t("graph")} actions=${html`
        <button aria-pressed=${String(showsPath)} onClick=${() => setShowsPath(!showsPath)}>${t("critical_path")}</button>
        <button aria-pressed=${String(isCollapsed)} onClick=${() => (setOpened(new Set()), choose(null), setCollapsed(!isCollapsed))}>${t("collapse_alike")}</button>
        <label class="unseen" for="find">${t("find_in_the_graph")}</label>
          <input id="find" type="search" placeholder=${t("find")} style=${{ width: "130px" }} value=${wanted}
            onInput=${(event) => setWanted(event.target.value)} />`}>
      <div class="graphbar"><span class="grow"><${Bar} fraction=${done / Math.max(1, whole.nodes.length)} label=${t("progress_of", title)} /></span>
        <span>${t("done_of", count(done), count(whole.nodes.length))}</span><${Eta} nodes=${whole.nodes} expected=${expected} isOver=${isOver} />
        <div class="chips">${numbers.map(
          ([status, number]) => html`<button key=${status} aria-pressed=${String(shownStatus === status)}
          onClick=${() => setShownStatus(shownStatus === status ? "" : status)}>${count(number)} <${Status} status=${status} /></button>`,
        )}</div></div>
      <div class=${current ? "withpanel" : ""}>
        <${Drawing} nodes=${nodes} edges=${edges} isDimmed=${isDimmed} critical=${path} chosen=${chosen} choose=${take} />
        ${current && html`<${Panel} node=${current} nodes=${nodes} edges=${edges} expected=${expected} close=${() => choose(null)} choose=${choose}
          expand=${() => (setOpened(new Set([...opened, current.id])), choose(null))} again=${found.again} />`}
      </div>
    <//>`;
}

const NOTHING = new Set();
const jobsOfNode = (node) => (node.members ? node.members.map((one) => one.job) : [node.job]);

// When all of it is expected to be over, if the forecast knows the end of each that is not.
function Eta({ nodes, expected, isOver }) {
  const now = useNow(5000);
  if (isOver) return null;
  const ends = nodes.filter((node) => !ENDED.includes(node.job.status)).map((node) => expected.get(node.job.job_id)?.expected_end);
  if (!ends.every(Boolean)) return html`<span class="dim">${t("expected_end")}: ${t("no_estimate")}</span>`;
  const last = ends.reduce((one, other) => (one > other ? one : other));
  return html`<span>${t("expected_end")}: <b><${When} at=${new Date(last) > now ? last : new Date(now).toISOString()} /></b></span>`;
}

function Panel({ node, nodes, edges, expected, close, choose, expand, again }) {
  const names = new Map(nodes.map((one) => [one.id, one]));
  const beside = (from, to) => edges.filter((edge) => edge[from] === node.id && names.has(edge[to])).map((edge) => names.get(edge[to]));
  const list = (found) =>
    found.length > 0 &&
    html`<ul class="plainlist">${found.slice(0, 12).map(
      (one) => html`<li key=${one.id}><button class="quiet" onClick=${() => choose(one.id)}><${Status} status=${one.job.status} /> ${one.name}</button></li>`,
    )}${found.length > 12 ? html`<li class="dim">+ ${count(found.length - 12)}</li>` : ""}</ul>`;
  const { job } = node;
  const foreseen = expected.get(job.job_id);
  return html`<aside class="panel" aria-label=${node.name}>
    <header><strong class="grow">${node.name}</strong><button class="quiet" aria-label=${t("leave_it")} onClick=${close}>✕</button></header>
    ${
      node.members
        ? html`<div class="body"><p>${node.note}</p><button onClick=${expand}>${t("expand")}</button></div>`
        : html`<${Fields} of=${[
            [t("status"), html`<${Status} status=${job.status} />`],
            [t("id"), html`<${Id} id=${job.job_id} to="jobs" />`],
            [t("type"), job.job_type],
            [t("attempt"), job.attempt],
            [t("started"), job.started_at && html`<${When} at=${job.started_at} />`],
            [t("ran"), job.started_at && job.finished_at && duration(between(job.started_at, job.finished_at))],
            [t("expected_start"), !job.started_at && foreseen?.expected_start && html`<${When} at=${foreseen.expected_start} />`],
            [t("expected_end"), foreseen?.expected_end && html`<${When} at=${foreseen.expected_end} />`],
          ]} />`
    }
    <${Fields} of=${[
      [t("depends_on"), list(beside(1, 0))],
      [t("leads_to"), list(beside(0, 1))],
    ]} />
    ${
      !node.members &&
      html`<div class="body actions"><a class="button" href=${link(["jobs", job.job_id])}>${t("open_it")}</a>
      ${can("operate") && !ENDED.includes(job.status) && html`<button class="danger" onClick=${() => cancelJob(job).then((made) => made && again())}>${t("cancel_more")}</button>`}
      ${can("operate") && job.status === "FAILED" && html`<button onClick=${() => retried(job)}>${t("retry")}</button>`}</div>`
    }</aside>`;
}

const endOfJob = (job, foreseen) =>
  Date.parse(job.finished_at || job.cancelled_at || foreseen?.expected_end || "") || (ENDED.includes(job.status) ? 0 : Infinity);

async function retried(job) {
  const whole = await get(`api/jobs/${job.job_id}`);
  await retryRun(whole.run);
}

// Jobs of one type that wait for the same ones, and for which the same ones wait, as one node.
function collapsed({ nodes, edges }, opened) {
  const [before, after] = [new Map(), new Map()];
  for (const [from, to] of edges) {
    before.set(to, [...(before.get(to) || []), from]);
    after.set(from, [...(after.get(from) || []), to]);
  }
  const kinds = new Map();
  for (const node of nodes) {
    const sides = [before, after].map((side) => [...(side.get(node.id) || [])].sort().join());
    const kind = [node.job.job_type, ...sides].join("|");
    kinds.set(kind, [...(kinds.get(kind) || []), node]);
  }
  const owner = new Map();
  const found = [];
  for (const members of kinds.values()) {
    const id = members[0].id;
    const isOne = members.length < 3 || opened.has(id);
    for (const node of members) owner.set(node.id, isOne ? node.id : id);
    if (isOne) found.push(...members);
    else found.push(together(members));
  }
  const linked = new Map();
  for (const [from, to] of edges) linked.set(`${owner.get(from)} ${owner.get(to)}`, [owner.get(from), owner.get(to)]);
  return { nodes: found, edges: [...linked.values()].filter(([from, to]) => from !== to) };
}

function together(members) {
  const [first] = members;
  const has = (status) => members.some((node) => node.job.status === status);
  const status = ["FAILED", "RUNNING", "QUEUED", "WAITING", "CANCELLED", "SKIPPED"].find(has) || "COMPLETED";
  const done = members.filter((node) => ENDED.includes(node.job.status)).length;
  const name = `${first.job.job_type} × ${count(members.length)}`;
  const note = t("done_of", count(done), count(members.length));
  return { id: first.id, name, note, members, fraction: done / members.length, job: { ...first.job, status } };
}

// The jobs that decide when it ends: the last one to end, the last one that it waits for, and so on. One that has not
// ended and has no estimate is the last of all.
function criticalPath(nodes, edges, expected) {
  const endOf = (node) => Math.max(...jobsOfNode(node).map((job) => endOfJob(job, expected.get(job.job_id))));
  const ends = new Map(nodes.map((node) => [node.id, endOf(node)]));
  const before = new Map();
  for (const [from, to] of edges) before.set(to, [...(before.get(to) || []), from]);
  const later = (one, other) => (ends.get(other) > ends.get(one) ? other : one);
  const found = new Set();
  for (let id = nodes.map((node) => node.id).reduce(later, nodes[0]?.id); id && !found.has(id);) {
    found.add(id);
    const next = before.get(id)?.reduce(later);
    if (next) found.add(`${next} ${id}`);
    id = next;
  }
  return found;
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

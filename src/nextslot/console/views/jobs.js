// Jobs: a search whose filters are in the address, pages that follow each other, and many changed at once.
import { t } from "../i18n.js";
import { get, pages, post } from "../api.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { live, useLoad } from "../live.js";
import {
  ask,
  attempt,
  can,
  Empty,
  Field,
  Id,
  JobLink,
  me,
  More,
  Scroll,
  Section,
  sentence,
  someOffices,
  Status,
  toast,
  Trouble,
  When,
} from "../parts.js";
import { exportJobs, MOST } from "../export.js";
import { change, here, keep, link, recall } from "../router.js";
import { QueryBar } from "../search.js";
import { between, count, duration, ENDED, plural, STATUSES } from "../words.js";

const PAGE = 50;
const COUNTED = 10_000;
const FILTERS = [
  "status",
  "job_type",
  "office_id",
  "role",
  "task_id",
  "template_id",
  "schedule_id",
  "group_id",
  "retry_of",
  "fingerprint",
  "created_after",
  "created_before",
  "finished_after",
  "finished_before",
  "sort",
  "q",
];
const TYPED = ["q", "status", "job_type", "office_id", "created_after", "created_before", "sort"];
const TIMES = ["created_after", "created_before", "finished_after", "finished_before"];
// The words of filters that are shown as chips.
const CHIPS = {
  role: t("role"),
  task_id: t("task_name"),
  template_id: t("template"),
  schedule_id: t("schedule"),
  group_id: t("group"),
  retry_of: t("retry_of"),
  fingerprint: t("one_failure"),
  finished_after: t("finished_after"),
  finished_before: t("finished_before"),
};
const SORTS = {
  "-created_at": t("sort_newest"),
  created_at: t("sort_oldest"),
  "-finished_at": t("sort_last_ended"),
  finished_at: t("sort_first_ended"),
  "-duration": t("sort_longest"),
  duration: t("sort_shortest"),
  "-priority": t("sort_highest"),
  priority: t("sort_lowest"),
};
// The order that the server takes if none is chosen.
const sortOf = (filter) =>
  filter.sort || (filter.finished_after || filter.finished_before || /\bfinished_(after|before):/.test(filter.q || "") ? "-finished_at" : "-created_at");

export default function Jobs({ place }) {
  const filter = filterOf(place.query);
  const types = useLoad((signal) => get("api/job-types", {}, signal), []);
  const offices = useLoad((signal) => someOffices(200, signal), []);
  // Of the address as it is by then: what is typed is looked up a moment later.
  const set = (changes) => change("jobs", { ...filterOf(here().query), ...changes });
  const list = useJobs(filter);
  const [chosen, setChosen] = useState(() => new Set());
  const [columns, setColumns] = useState(storedColumns);
  useEffect(() => setChosen(new Set()), [JSON.stringify(filter)]);
  return html`
    <div class="head"><h1 class="grow">${t("jobs")}</h1></div>
    <section class="section" aria-label=${t("filters")}>
      <${Filters} filter=${filter} set=${set} types=${types.data?.items || []} offices=${offices.data?.items || []} />
    </section>
    <${Section} title=${titled(list, sortOf(filter))}
      tools=${html`<${Columns} columns=${columns} set=${setColumns} /><${Export} filter=${filter} />`}
      actions=${html`<${Bulk} filter=${filter}
        chosen=${[...chosen].filter((id) => list.items.some((job) => job.job_id === id))} jobs=${list.items}
        done=${() => (setChosen(new Set()), list.again())} />`}>
      <${Trouble} error=${list.error} />
      ${
        list.fresh > 0 &&
        html`<p class="more"><button onClick=${list.again}>${t("show", plural(list.fresh, "new job"))}
        </button></p>`
      }
      <${Table} jobs=${list.items} chosen=${chosen} choose=${setChosen} columns=${columns} sort=${sortOf(filter)}
        setSort=${(sort) => set({ sort })} />
      ${!list.items.length && html`<${Empty} isLoading=${list.isLoading}>${t("no_jobs_match")}<//>`}
      <${More} cursor=${list.cursor} load=${list.more} isLoading=${list.isLoading} />
    <//>`;
}

function titled({ items, cursor, isSearching }, sort) {
  if (isSearching) return t("searching_further_back_so_far", plural(items.length, "job"));
  return cursor ? t(sort === "-created_at" ? "the_newest_2" : "the_first_of_them", count(items.length)) : plural(items.length, "job");
}

const filterOf = (query) =>
  Object.fromEntries(FILTERS.filter((name) => query[name]).map((name) => [name, query[name]]));

// Rows that are shown follow the events; others that match by now are announced, so that nothing jumps.
function useJobs(filter) {
  const key = JSON.stringify(filter);
  const [list, set] = useState(() => before(key) || { items: [], cursor: null, isLoading: true, error: null });
  const [fresh, setFresh] = useState(0);
  const latest = useRef(null);
  latest.current = list;
  const abort = useRef(null);
  const load = async (cursor, before, limit = PAGE) => {
    abort.current?.abort();
    const mine = (abort.current = new AbortController());
    set((old) => ({ ...old, isLoading: true, error: null }));
    try {
      const found = await pages(
        "api/jobs",
        { ...query(filter), limit },
        {
          cursor,
          enough: limit / 2,
          signal: mine.signal,
          // A rare thing among many: what is found so far is shown while older ones are looked through.
          onPage: (items) =>
            set({ items: [...before, ...items], cursor: null, isLoading: true, isSearching: true, error: null }),
        },
      );
      set({ items: [...before, ...found.items], cursor: found.cursor, isLoading: false, error: null });
    } catch (error) {
      if (error.name !== "AbortError") set((old) => ({ ...old, isLoading: false, error }));
    }
  };
  const again = () => (setFresh(0), load(null, []));
  useEffect(() => {
    // Who comes back sees the rows that were there, and as many of them are read again.
    const rows = before(key)?.items.length;
    const look = () => (rows > PAGE ? (setFresh(0), load(null, [], Math.min(500, rows))) : again());
    const timer = setTimeout(look, latest.current.items.length ? 200 : 0);
    return () => (clearTimeout(timer), abort.current?.abort());
  }, [key]);
  useEffect(() => {
    if (!list.isLoading || list.items.length) keep("jobs", { key, list: { ...list, isSearching: false } });
  }, [list, key]);
  useEffect(() => follow(filter, latest, set, setFresh), [key]);
  const more = () =>
    !latest.current.isLoading && latest.current.cursor && load(latest.current.cursor, latest.current.items);
  return { ...list, fresh, more, again };
}

const before = (key) => (recall("jobs")?.key === key ? recall("jobs").list : null);

// Events about jobs that are not shown cause one look at the list: what matches the filter there, and is not shown, is
// counted. So a job that a filter excludes is not, and one that has become FAILED is.
function follow(filter, latest, set, setFresh) {
  const touched = new Set();
  let isOther = false;
  let timer = null;
  const look = async () => {
    const { items, isLoading, isSearching } = latest.current;
    // A list that is on its way may be older than what was heard meanwhile.
    if (isLoading && !isSearching) return void (timer = setTimeout(look, 250));
    const began = performance.now();
    const shown = new Set(items.map((job) => job.job_id));
    const ids = [...touched].filter((id) => shown.has(id)).slice(0, 30);
    if (!isLoading) [...touched].filter((id) => !shown.has(id)).forEach((id) => touched.delete(id));
    ids.forEach((id) => touched.delete(id));
    const counts = isOther && !isLoading;
    if (counts) isOther = false;
    const [found, newest] = await Promise.all([
      Promise.all(ids.map((id) => get(`api/jobs/${id}`).catch(() => null))),
      counts ? newcomers(filter, latest).catch(() => null) : null,
    ]);
    const byId = new Map(found.filter(Boolean).map((job) => [job.job_id, job]));
    if (byId.size) set((old) => ({ ...old, items: old.items.map((job) => byId.get(job.job_id) || job) }));
    if (newest !== null) setFresh(newest);
    timer = null;
    // A slow answer is asked for less often.
    if (touched.size || isOther) timer = setTimeout(look, Math.max(500, 3 * (performance.now() - began)));
  };
  const forget = live.listen((event) => {
    if (!event.job_id) return;
    if (latest.current.isLoading || latest.current.items.some((job) => job.job_id === event.job_id))
      touched.add(event.job_id);
    else isOther = true;
    timer ??= setTimeout(look, 250);
  });
  return () => (clearTimeout(timer), (timer = 0), forget());
}

// How many jobs match and are not shown, among as many of the first ones as are shown.
async function newcomers(filter, latest) {
  const limit = Math.min(500, Math.max(PAGE, latest.current.items.length));
  const page = await get("api/jobs", { ...query(filter), limit });
  const { items, cursor } = latest.current;
  const shown = new Set(items.map((job) => job.job_id));
  const first = cursor && items.length ? page.items.slice(0, items.length) : page.items;
  return first.filter((job) => !shown.has(job.job_id)).length;
}

const query = (filter) => ({ ...filter, ...Object.fromEntries(TIMES.map((name) => [name, zoned(filter[name])])) });
const zoned = (local) => (local && !Number.isNaN(Date.parse(local)) ? new Date(local).toISOString() : undefined);

function Filters({ filter, set, types, offices }) {
  const chosen = (filter.status || "").split(",").filter(Boolean);
  const flip = (status) =>
    set({ status: (chosen.includes(status) ? chosen.filter((one) => one !== status) : [...chosen, status]).join(",") });
  const rest = Object.entries(filter).filter(([name]) => !TYPED.includes(name));
  const known = { type: types.map((one) => one.job_type), office: offices.map((one) => one.office_id) };
  const choices = (items, name) => [
    ["", t("any")],
    ...[...new Set([...items.map((one) => one[name]), filter[name]].filter(Boolean))].map((one) => [one, one]),
  ];
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
      <${QueryBar} value=${filter.q || ""} known=${known} set=${(q) => set({ q })} />
      <${Field} name="job_type" label=${t("type")} value=${filter.job_type || ""} options=${choices(types, "job_type")}
        onChange=${(event) => set({ job_type: event.target.value })} />
      ${me.office_id === null && html`<${Field} name="office_id" label=${t("office")} value=${filter.office_id || ""}
        options=${choices(offices, "office_id")} onChange=${(event) => set({ office_id: event.target.value })} />`}
      <${Field} name="created_after" label=${t("created_after")} kind="datetime-local" value=${filter.created_after || ""}
        onChange=${(event) => set({ created_after: event.target.value })} />
      <${Field} name="created_before" label=${t("created_before")} kind="datetime-local" value=${filter.created_before || ""}
        onChange=${(event) => set({ created_before: event.target.value })} />
      <${Field} name="sort" label=${t("sort_by")} value=${sortOf(filter)} options=${Object.entries(SORTS)}
        onChange=${(event) => set({ sort: event.target.value })} />
    </form>
    <div class="chips" role="group" aria-label=${t("statuses")}>
      ${STATUSES.map(
        (
          status,
        ) => html`<button key=${status} aria-pressed=${String(chosen.includes(status))} onClick=${() => flip(status)}>
        <${Status} status=${status} /></button>`,
      )}
      ${rest.map(([name, value]) => html`<button key=${name} onClick=${() => set({ [name]: "" })}
        title=${t("remove_this_filter")}>${CHIPS[name]}: ${name.startsWith("finished_") ? value.replace("T", " ") : value} ✕</button>`)}
      ${Object.keys(filter).length > 0 && html`<button class="quiet"
        onClick=${() => change("jobs", {})}>${t("clear")}</button>`}
    </div>`;
}

// What a list of jobs can show besides status, name and time of creation; by default the first ones.
const COLUMNS = {
  job_type: [t("type"), "", (job) => html`<a class="clip plain" href=${link(["types", job.job_type])}>${job.job_type}</a>`],
  office_id: [t("office"), "", (job) => job.office_id],
  attempt: [t("attempt"), "number", (job) => job.attempt],
  started_at: [t("started"), "tight", (job) => html`<${When} at=${job.started_at} />`],
  took: [t("took"), "number", (job) =>
    job.started_at && job.finished_at ? duration(between(job.started_at, job.finished_at)) : html`<span class="dim">–</span>`],
  job_id: [t("id"), "", (job) => html`<${Id} id=${job.job_id} to="jobs" />`],
  finished_at: [t("finished"), "tight", (job) => html`<${When} at=${job.finished_at} />`],
  priority: [t("priority"), "number", (job) => job.priority],
  role: [t("role"), "", (job) => job.role],
  task_id: [t("task_name"), "", (job) => job.task_id],
  schedule_id: [t("schedule"), "", (job) => html`<${Id} id=${job.schedule_id} to="schedules" />`],
  group_id: [t("group"), "", (job) => html`<${Id} id=${job.group_id} to="groups" />`],
  created_by: [t("created_by"), "", (job) => job.created_by],
};
const USUAL = ["job_type", "office_id", "attempt", "started_at", "took", "job_id"];
const KEPT = "nextslot-job-columns";

function storedColumns() {
  const kept = localStorage.getItem(KEPT);
  return kept === null ? USUAL : kept.split(",").filter((name) => Object.hasOwn(COLUMNS, name));
}

function Columns({ columns, set }) {
  const flip = (name) => {
    const next = Object.keys(COLUMNS).filter((one) => (one === name) !== columns.includes(one));
    localStorage.setItem(KEPT, next.join(","));
    set(next);
  };
  return html`<details class="menu"><summary>${t("columns")}</summary><div role="group" aria-label=${t("columns")}>${Object.entries(COLUMNS).map(
    ([name, [title]]) => html`<label key=${name}><input type="checkbox" checked=${columns.includes(name)} onChange=${() => flip(name)} /> ${title}</label>`,
  )}</div></details>`;
}

function Export({ filter }) {
  const [so_far, set] = useState(null);
  const save = async (format) => {
    set(0);
    try {
      const { saved, isCut } = await exportJobs(query(filter), format, set);
      toast(isCut ? t("saved_the_newest", plural(saved, "job")) : t("saved_jobs", plural(saved, "job")));
    } catch (error) {
      toast(sentence(error), "bad");
    }
    set(null);
  };
  if (so_far !== null) return html`<span class="dim" role="status">${t("saving_so_far", count(so_far))}</span>`;
  return html`<details class="menu"><summary>${t("export")}</summary><div>
    ${["csv", "json"].map((format) => html`<button key=${format} onClick=${() => save(format)}>${format.toUpperCase()}</button>`)}
    <small class="dim">${t("at_most_newest", count(MOST))}</small></div></details>`;
}

// The fields by which the server can sort, by column.
const SORTED = { created: "created_at", finished_at: "finished_at", took: "duration", priority: "priority" };

// A heading by which the list can be sorted: first descending, then ascending.
function Heading({ name, title, look = "", sort, setSort }) {
  const field = setSort && SORTED[name];
  if (!field) return html`<th class=${look}>${title}</th>`;
  const order = sort === field ? "ascending" : sort === `-${field}` ? "descending" : "none";
  return html`<th class=${look} aria-sort=${order}><button class="quiet sorts" onClick=${() => setSort(order === "descending" ? field : `-${field}`)}>${title}${
    { ascending: " ↑", descending: " ↓", none: "" }[order]
  }</button></th>`;
}

export function Table({ jobs, chosen, choose, columns = USUAL, sort = "", setSort = null }) {
  if (!jobs.length) return null;
  const mayChoose = choose && can("operate");
  const flip = (id) =>
    choose((old) => {
      const next = new Set(old);
      if (!next.delete(id)) next.add(id);
      return next;
    });
  const all = mayChoose && jobs.every((job) => chosen.has(job.job_id));
  return html`<${Scroll} label=${t("jobs")}><table>
    <thead><tr>${
      mayChoose &&
      html`<th>
      <input type="checkbox" aria-label=${t("choose_all_that_are_shown")} checked=${all}
        onChange=${() => choose(all ? new Set() : new Set(jobs.map((job) => job.job_id)))} />
      </th>`
    }
      <th>${t("status")}</th><th>${t("job")}</th><${Heading} name="created" title=${t("created")} sort=${sort} setSort=${setSort} />
      ${columns.map((name) => html`<${Heading} key=${name} name=${name} title=${COLUMNS[name][0]} look="wide ${COLUMNS[name][1]}" sort=${sort} setSort=${setSort} />`)}</tr></thead>
    <tbody>${jobs.map(
      (job) => html`<tr key=${job.job_id} data-job=${job.job_id}>
      ${
        mayChoose &&
        html`<td>
        <input type="checkbox" aria-label=${t("choose", job.title || job.job_type)} checked=${chosen.has(job.job_id)}
          onChange=${() => flip(job.job_id)} />
        </td>`
      }
      <td class="tight"><${Status} status=${job.status} /></td>
      <td><${JobLink} job=${job} /></td>
      <td class="tight"><${When} at=${job.created_at} /></td>
      ${columns.map((name) => html`<td key=${name} class="wide ${COLUMNS[name][1]}">${COLUMNS[name][2](job)}</td>`)}
    </tr>`,
    )}</tbody></table><//>`;
}

function Bulk({ filter, chosen, jobs, done }) {
  const [isBusy, setBusy] = useState(false);
  if (!can("operate")) return null;
  const act = async (work) => {
    setBusy(true);
    try {
      if (await work()) done();
    } catch (error) {
      toast(sentence(error), "bad");
    }
    setBusy(false);
  };
  const picked = jobs.filter((job) => chosen.includes(job.job_id));
  if (chosen.length) {
    const open = picked.filter((job) => !ENDED.includes(job.status));
    const failed = picked.filter((job) => job.status === "FAILED");
    return html`<span class="dim">${t("chosen", plural(chosen.length, "job"))}</span>
      <button disabled=${isBusy || !open.length}
        onClick=${() => act(() => cancelChosen(open))}>${t("cancel_more_2", count(open.length))}</button>
      <button disabled=${isBusy || !failed.length}
        onClick=${() => act(() => retryChosen(failed))}>${t("retry_more", count(failed.length))}</button>`;
  }
  return html`<button disabled=${isBusy} onClick=${() => act(() => cancelAll(filter))}>${t("cancel_all_that_match_more")}</button>
    <button disabled=${isBusy} onClick=${() => act(() => retryAll(filter))}>${t("retry_all_that_match_more")}</button>`;
}

const REASON = { name: "reason", label: t("reason_optional"), maxlength: 500 };

export async function cancelChosen(jobs) {
  const answer = await ask({
    title: t("cancel", plural(jobs.length, "job")),
    text: t("what_runs_is_told_to_stop"),
    fields: [REASON],
    action: t("cancel_2", plural(jobs.length, "job")),
    danger: true,
  });
  if (!answer) return false;
  const body = { reason: answer.reason || null };
  return eachOf(jobs, (job) => post(`api/jobs/${job.job_id}/cancel`, body), (good, all) => t("bulk_cancelled", good, all));
}

// Of a chain only the last attempt can be retried, so the others are not counted.
export async function retryChosen(jobs) {
  const found = await Promise.all(jobs.map((job) => get(`api/jobs/${job.job_id}`)));
  const last = found.filter((job) => job.status === "FAILED" && job.chain.at(-1).job_id === job.job_id);
  if (!last.length) return nothing(t("none_of_these_can_be_retried"));
  const left = jobs.length - last.length;
  const answer = await ask({
    title: t("retry_2", plural(last.length, "failed job")),
    text: left ? t("not_counted_since_retried_already", plural(left, "job")) : "",
    action: t("retry_3", plural(last.length, "job")),
  });
  if (!answer) return false;
  return eachOf(last, (job) => post(`api/job-runs/${job.run.run_id}/retry`), (good, all) => t("bulk_retried", good, all));
}

async function eachOf(jobs, work, words) {
  let [good, last] = [0, null];
  for (const job of jobs) {
    try {
      await work(job);
      good += 1;
    } catch (error) {
      last = error;
    }
  }
  const done = words(count(good), plural(jobs.length, "job"));
  toast(last ? `${done} ${sentence(last)}` : done, last ? "bad" : "good");
  return true;
}

// How many there are, counted page by page up to a bound; only of statuses that the change is about.
async function counted(filter, statuses) {
  const asked = (filter.status || "").split(",").filter(Boolean);
  const left = asked.length ? statuses.filter((status) => asked.includes(status)) : statuses;
  if (!left.length) return { number: 0, words: "", filter: null };
  const narrowed = { ...query(filter), status: left.join(",") };
  const found = await pages("api/jobs", { ...narrowed, limit: 500 }, { enough: COUNTED, most: 400 });
  const number = found.items.length;
  return {
    number,
    words: found.cursor ? t("more_than", plural(number, "job")) : plural(number, "job"),
    filter: given(narrowed),
  };
}

// What a change of all that match is sent: an order is none of it.
const given = ({ sort, ...filter }) => Object.fromEntries(Object.entries(filter).filter(([, value]) => value));

async function cancelAll(filter) {
  const queued = await counted(filter, ["WAITING", "QUEUED"]);
  const running = await counted(filter, ["RUNNING"]);
  if (!queued.number && !running.number) return nothing(t("nothing_that_matches_is_queued_or"));
  const answer = await ask({
    title: t("cancel", queued.words),
    text: t("all_that_match_the_filter_and"),
    fields: [
      REASON,
      ...(running.number
        ? [{ name: "include_running", label: t("also_stop_that_run", running.words), kind: "checkbox" }]
        : []),
    ],
    action: t("cancel_them"),
    no: t("keep_them"),
    danger: true,
  });
  if (!answer) return false;
  const statuses = [...(queued.filter ? ["WAITING", "QUEUED"] : []), ...(answer.include_running ? ["RUNNING"] : [])];
  if (!statuses.length) return nothing(t("nothing_that_matches_is_queued"));
  const asked = (filter.status || "").split(",").filter(Boolean);
  const body = {
    ...(queued.filter || running.filter),
    status: asked.length ? statuses.filter((one) => asked.includes(one)) : statuses,
    reason: answer.reason || null,
    include_running: Boolean(answer.include_running),
  };
  return attempt(
    () => post("api/jobs/cancel", body),
    (made) =>
      t("cancelled_3", plural(made.cancelled, "job"), made.stopping || made.finishing ? t("told_to_stop_2", count(made.stopping + made.finishing)) : ""),
  );
}

async function retryAll(filter) {
  const asked = (filter.status || "").split(",").filter(Boolean);
  if (asked.length && !asked.includes("FAILED")) return nothing(t("nothing_that_matches_has_failed"));
  const body = { ...given(query(filter)), status: ["FAILED"] };
  const { retried } = await post("api/jobs/retry", { ...body, dry_run: true });
  if (!retried) return nothing(t("nothing_that_matches_can_be_retried"));
  return ask({
    title: t("retry_2", plural(retried, "job")),
    text: t("the_last_attempts_that_match_the"),
    action: t("retry_them"),
    work: () => post("api/jobs/retry", body),
    done: (made) => t("retried", plural(made.retried, "job")),
  });
}

const nothing = (words) => (toast(words), false);

// The palette (⌘K or Ctrl+K): goes to a view, opens what an id names, searches jobs. And the list of keys (?).
import { plural, t } from "./i18n.js";
import { get, post } from "./api.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { attempt, can, canWhole, keyOf, me, someOffices, Status } from "./parts.js";
import { here, link } from "./router.js";
import { ENDED, named, short } from "./words.js";

const ID = /[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/i;
// What else an id may be of, in the order in which it is asked for.
const KINDS = [
  ["api/job-runs/", "jobs", () => t("run"), (one) => one.job_id],
  ["api/job-groups/", "groups", (one) => one.name || t("group")],
  ["api/schedules/", "schedules", (one) => one.name],
];

function Box({ label, close, children }) {
  const dialog = useRef(null);
  useLayoutEffect(() => dialog.current.showModal(), []);
  // Who goes elsewhere, such as back, has left it.
  useEffect(() => {
    addEventListener("hashchange", close);
    return () => removeEventListener("hashchange", close);
  }, []);
  const outside = (event) => event.target === dialog.current && close();
  return html`<dialog ref=${dialog} class="palette" aria-label=${label} onClose=${close} onClick=${outside}>${children}
    </dialog>`;
}

// `views` are [name, title, letter] of those that this key may open.
export function Finder({ views, close }) {
  const [text, setText] = useState("");
  const [current, setCurrent] = useState(0);
  const found = useFound(text);
  const wanted = text.trim().toLowerCase();
  const places = views
    .filter(([name, title]) => title.toLowerCase().includes(wanted) || name.includes(wanted))
    .map(([name, title, letter]) => ({ id: name, text: title, hint: letter ? `g ${letter}` : "", to: link(name) }));
  const search = wanted && !ID.test(wanted) ? [{ id: "search", text: t("search_jobs_for", text.trim()), to: link("jobs", { q: text.trim() }) }] : [];
  const acts = useActs().filter((one) => wanted && one.text.toLowerCase().includes(wanted));
  const chosenActs = useChosenActs().filter((one) => one.text.toLowerCase().includes(wanted));
  const items = ID.test(wanted) ? found : [...chosenActs, ...places, ...acts, ...found, ...search];
  const chosen = Math.min(current, Math.max(0, items.length - 1));
  const take = (item) => {
    close();
    if (item.act) item.act();
    else location.hash = item.to.slice(1);
  };
  const pressed = (event) => {
    const key = keyOf(event);
    const turn = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (turn && items.length) {
      event.preventDefault();
      setCurrent((chosen + turn + items.length) % items.length);
    } else if (key === "Enter" && items[chosen]) {
      event.preventDefault();
      take(items[chosen]);
    }
  };
  const typed = (event) => (setText(event.target.value), setCurrent(0));
  return html`<${Box} label=${t("palette")} close=${close}>
    <input class="wanted" role="combobox" aria-expanded="true" aria-controls="palette-items" aria-autocomplete="list"
      aria-label=${t("go_search_or_paste_an_id")} placeholder=${t("go_search_or_paste_an_id")} autocomplete="off"
      spellcheck="false" aria-activedescendant=${items.length ? `palette-${chosen}` : undefined} value=${text} onInput=${typed}
      onKeyDown=${pressed} />
    <ul id="palette-items" role="listbox" aria-label=${t("palette")}>${items.map(
      (item, index) => html`<li key=${item.id} id=${`palette-${index}`} role="option" aria-selected=${String(index === chosen)}
        onClick=${() => take(item)} onMouseMove=${() => index !== chosen && setCurrent(index)}>
        <span class="clip">${item.text}</span>${item.status && html`<${Status} status=${item.status} />`}
        <kbd class="dim">${item.hint || ""}</kbd></li>`,
    )}</ul>
    ${!items.length && html`<p class="empty" role="status">${t("nothing_found")}</p>`}<//>`;
}

// What can be done from everywhere: pauses begin and end, of everything and of each office.
function useActs() {
  const [acts, set] = useState([]);
  useEffect(() => {
    const abort = new AbortController();
    if (can("operate"))
      actsOf(abort.signal).then(
        (found) => !abort.signal.aborted && set(found),
        () => {},
      );
    return () => abort.abort();
  }, []);
  return acts;
}

// The jobs that an act is about: those that are ticked in a list, else the one whose row has the focus or whose page it is.
const MOST_CHOSEN = 100;
function chosenIds() {
  const idOf = (one) => one?.closest("[data-job]")?.dataset.job;
  const ticked = [...document.querySelectorAll("main tr[data-job] input[type=checkbox]:checked")].map(idOf);
  if (ticked.length) return ticked.slice(0, MOST_CHOSEN);
  const place = here();
  const one = idOf(document.activeElement) || (place.view === "jobs" && place.parts[0]);
  return one ? [one] : [];
}

// What can be done with them: of several, each act is about those that allow it.
function useChosenActs() {
  // As the palette opens: its own field has the focus after that.
  const [ids] = useState(() => (can("operate") ? chosenIds() : []));
  const [jobs, set] = useState([]);
  useEffect(() => {
    const abort = new AbortController();
    const load = (id) => get(`api/jobs/${encodeURIComponent(id)}`, {}, abort.signal).catch(() => null);
    if (ids.length) Promise.all(ids.map(load)).then((found) => !abort.signal.aborted && set(found.filter(Boolean)));
    return () => abort.abort();
  }, []);
  const name = (found) => (found.length === 1 ? named(found[0]) : plural(found.length, "job"));
  const act = (id, key, found, work) => (found.length ? [{ id: `act ${id}`, text: t(key, name(found)), hint: "", act: () => work(found) }] : []);
  const open = jobs.filter((job) => !ENDED.includes(job.status));
  // Among themselves they stay in the order of the queue.
  const queued = jobs
    .filter((job) => job.status === "QUEUED" || job.status === "WAITING")
    .sort((one, other) => other.priority - one.priority || one.position - other.position);
  const failed = jobs.filter((job) => job.status === "FAILED" && job.chain.at(-1).job_id === job.job_id);
  return [
    ...act("retry chosen", "act_retry_chosen", failed, async (found) => (await import("./views/jobs.js")).retryChosen(found)),
    ...act("cancel chosen", "act_cancel_chosen", open, async (found) => (await import("./views/jobs.js")).cancelChosen(found)),
    ...act("front chosen", "act_to_the_front", queued, (found) => moveAll([...found].reverse(), "front", t("moved_to_the_front", name(found)))),
    ...act("back chosen", "act_to_the_back", queued, (found) => moveAll(found, "back", t("moved_to_the_back", name(found)))),
  ];
}

// One after the other: each goes before, or behind, those that were moved already.
const moveAll = (jobs, to, done) =>
  attempt(async () => {
    for (const job of jobs) await post(`api/jobs/${job.job_id}/move`, { to });
  }, done);

async function actsOf(signal) {
  const act = (name, text, path, body, done) => ({ id: `act ${name}`, text, hint: "", act: () => attempt(() => post(path, body), done) });
  const whole = canWhole("operate");
  const known = (await someOffices(100, signal)).items;
  const ids = me.office_id ? [me.office_id] : known.length ? known.map((one) => one.office_id) : ["default"];
  const paused = whole ? (await get("api/status", {}, signal)).paused : null;
  const isPaused = (id) => (paused ? paused.offices.includes(id) : null);
  const found = [];
  const pause = (name, text, body) => found.push(act(`pause ${name}`, t("act_pause", text), "api/queue/pause", body, t("act_paused", text)));
  const resume = (name, text, body) => found.push(act(`resume ${name}`, t("act_resume", text), "api/queue/resume", body, t("act_resumed", text)));
  if (whole) (paused.scheduler ? resume : pause)("", t("everything"), {});
  for (const id of ids) {
    if (isPaused(id) !== true) pause(id, t("office_2", id), { office_id: id });
    if (isPaused(id) !== false) resume(id, t("office_2", id), { office_id: id });
  }
  return found;
}

// A whole id finds the one thing that has it; other text finds the newest jobs with it, a moment after the last letter.
function useFound(text) {
  const [found, set] = useState([]);
  useEffect(() => {
    const abort = new AbortController();
    set([]);
    const wanted = text.trim();
    const timer = setTimeout(async () => {
      const items = await lookUp(wanted, abort.signal).catch(() => []);
      if (!abort.signal.aborted) set(items);
    }, 200);
    return () => (clearTimeout(timer), abort.abort());
  }, [text]);
  return found;
}

async function lookUp(wanted, signal) {
  const id = wanted.match(ID)?.[0].toLowerCase();
  if (!id && wanted.length < 2) return [];
  const jobs = (await get("api/jobs", { q: id || wanted, limit: 6 }, signal)).items;
  if (!id || jobs.length) return jobs.map((job) => ({ id: job.job_id, text: named(job), hint: short(job.job_id), status: job.status, to: link(["jobs", job.job_id]) }));
  for (const [path, view, name, idOf] of KINDS) {
    const one = await get(`${path}${id}`, {}, signal).catch(() => null);
    if (one) return [{ id, text: name(one), hint: short(id), to: link([view, idOf ? idOf(one) : id]) }];
  }
  return [];
}

export function Help({ views, close }) {
  const rows = [
    ...views.filter(([, , letter]) => letter).map(([, title, letter]) => [`g ${letter}`, title]),
    ["/", t("key_search")],
    ["Ctrl K", t("palette")],
    ["j  k", t("key_rows")],
    ["x", t("key_choose")],
    ["Enter", t("key_open")],
    ["Alt ↑ ↓", t("key_move")],
    ["+ − 0", t("key_zoom")],
    ["Tab ← →", t("key_bar")],
    ["n  N  e", t("key_log")],
    ["?", t("keys_of_the_keyboard")],
  ];
  return html`<${Box} label=${t("keys_of_the_keyboard")} close=${close}><div class="help"><h2>${t("keys_of_the_keyboard")}</h2>
    <dl>${rows.map(([keys, what]) => html`<div key=${keys}><dt><kbd>${keys}</kbd></dt><dd>${what}</dd></div>`)}</dl>
    <footer><button onClick=${close}>${t("leave_it")}</button></footer></div><//>`;
}

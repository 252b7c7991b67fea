// One schedule: what comes, and what became of each occurrence, as a calendar and as a list.
import { language, said, t } from "../i18n.js";
import { parsed } from "../actions.js";
import { get, pages, patch, post, remove } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { useLoad } from "../live.js";
import { ask, attempt, can, Empty, Loading, Fields, Id, Json, Scroll, Section, Status, Trouble, useTitle, When } from "../parts.js";
import { change, go, link, useKept } from "../router.js";
import { count, day, duration, plural, setZone, storedZone, zoneName } from "../words.js";
import { Editor, Instants } from "./schedules.js";

// From a Monday on, in the language of the page.
const DAYS = Array.from({ length: 7 }, (_, index) =>
  new Date(2024, 0, 1 + index).toLocaleDateString(language, { weekday: "short" }),
);
const MOST = 3000;
// Of 500 occurrences each: about a day and a half of a schedule that fires every minute.
const PLAN_PAGES = 4;
const ROWS = 50;

export default function Schedule({ place }) {
  const id = place.parts[0];
  const path = `api/schedules/${encodeURIComponent(id)}`;
  const concerns = (event) => event.details?.schedule_id === id;
  const one = useLoad((signal) => get(path, {}, signal), [id], { concerns });
  const coming = useLoad(
    (signal) => get(`${path}/upcoming`, { count: 10 }, signal),
    [id, one.data?.cron_expression, one.data?.timezone],
    { concerns, every: 60_000 },
  );
  const month = place.query.month || day(Date.now()).slice(0, 7);
  const ledger = useLoad((signal) => ledgerOf(path, month, signal), [id, month, one.data?.enabled, zoneName()], { concerns });
  const plan = useLoad(
    (signal) => planOf(path, month, signal),
    [id, month, one.data?.cron_expression, one.data?.timezone, zoneName()],
    { concerns, every: 300_000 },
  );
  const [isEdited, setEdited] = useState(false);
  const shown = one.data;
  useEffect(() => () => setZone(storedZone(), false), [id]);
  useTitle(shown?.name, t("schedules"));
  if (!shown) return one.error ? html`<${Trouble} error=${one.error} />` : html`<${Loading} />`;
  const again = () => (one.again(), coming.again(), ledger.again());
  const act = (work, words) => attempt(work, words).then((done) => (again(), done));
  const trigger = async () => {
    const made = await triggered(shown, path);
    if (made) go(made.job_id ? ["jobs", made.job_id] : ["groups", made.group_id]);
  };
  const drop = async () => {
    const sure = await ask({
      title: t("delete", shown.name),
      text: t("it_plans_nothing_more_its_jobs"),
      action: t("delete_it"),
      danger: true,
    });
    if (sure && (await attempt(() => remove(path), t("deleted")))) go("schedules");
  };
  return html`
    <div class="head"><h1 class="grow">${shown.name} <span class="dim">${shown.cron_words}</span></h1>
      <div class="actions">
        ${shown.timezone !== storedZone() && html`<button aria-pressed=${String(zoneName() === shown.timezone)}
          onClick=${() => setZone(zoneName() === shown.timezone ? storedZone() : shown.timezone, false)}>${t("times_in", shown.timezone)}</button>`}
        ${can("submit") && !shown.deleted_at && html`<button onClick=${trigger}>${t("trigger_more")}</button>`}
        ${
          can("operate") &&
          !shown.deleted_at &&
          html`<button onClick=${() => setEdited(!isEdited)}>${t("change_more")}</button>
          <button onClick=${() => act(() => patch(path, { enabled: !shown.enabled }), shown.enabled ? t("disabled") : t("enabled"))}>${shown.enabled ? t("disable") : t("enable")}
            </button>
          <button class="danger" onClick=${drop}>${t("delete_more")}</button>`
        }
        <a class="button" href=${link("jobs", { schedule_id: id })}>${t("its_jobs")}</a></div></div>
    <${Trouble} error=${one.error} />
    ${isEdited && html`<${Editor} schedule=${shown} close=${() => setEdited(false)} done=${again} />`}
    <div class="columns">
      <${Section} title=${t("settings")}><${Fields} of=${[
        [
          t("expression"),
          html`<code>${shown.cron_expression}
          </code>`,
        ],
        [t("zone"), shown.timezone],
        [t("office"), shown.office_id],
        [t("enabled_2"), shown.deleted_at ? t("deleted_2") : shown.enabled ? t("yes") : t("no")],
        [t("next"), html`<${When} at=${shown.next_trigger_at} none=${t("disabled_2")} />`],
        [t("last"), html`<${When} at=${shown.last_triggered_at} none=${t("never")} />`],
        [t("after_downtime"), said("catch_up", shown.catch_up)],
        [t("window"), duration(shown.catch_up_window_seconds)],
        [t("overlap"), said("overlap", shown.overlap)],
        [t("priority"), shown.priority],
      ]} />${shown.param_overrides && html`<${Json} value=${shown.param_overrides}
        label=${t("parameters_over_the_template_s")} />`}
        <//>
      <${Section} title=${shown.enabled ? t("next_occurrences") : t("occurrences_it_would_have")}>
        <${Trouble} error=${coming.error} />${coming.data && html`<${Instants} items=${coming.data.items} />`}<//>
    </div>
    <${Calendar} month=${month} items=${ledger.data?.items || []}
      plan=${shown.enabled && !shown.deleted_at ? plan.data : null}
      move=${(value) => change(["schedules", id], { month: value })} />
    <${Ledger} items=${ledger.data?.items || []} isCut=${Boolean(ledger.data?.isCut)} error=${ledger.error}
      month=${month} />`;
}

// Makes its job or group now, perhaps with other parameters.
const triggered = (schedule, path) =>
  ask({
    title: t("trigger", schedule.name),
    text: t("it_fires_once_now"),
    fields: [
      { name: "params", label: t("params_over_the_schedules_json"), kind: "area", value: "" },
      { name: "priority", label: t("priority_empty_the_schedules"), kind: "number", value: "", min: -999_999, max: 999_999 },
    ],
    action: t("trigger_now"),
    work: ({ params, priority }) => {
      const body = {};
      if (params.trim()) body.params = parsed(params, "params");
      if (priority !== "") body.priority = Number(priority);
      return post(`${path}/trigger`, body);
    },
    done: t("it_is_in_the_queue"),
  });

// The occurrences of a month, newest first; older pages are not asked for.
async function ledgerOf(path, month, signal) {
  const first = new Date(`${month}-01T00:00:00`).toISOString();
  const items = [];
  let cursor = null;
  do {
    const page = await pages(`${path}/occurrences`, { limit: 500 }, { cursor, enough: 1, signal });
    items.push(...page.items);
    cursor = page.cursor;
  } while (cursor && items.length < MOST && (items.at(-1).until || items.at(-1).instant) >= first);
  const isIn = (one) => day(one.until || one.instant).slice(0, 7) >= month && day(one.instant).slice(0, 7) <= month;
  return { items: items.filter(isIn), isCut: Boolean(cursor) && items.length >= MOST };
}

// The occurrences still to come that the calendar of a month shows: by day, and the day from which on it is unknown,
// since a schedule of every minute has more than are asked for.
async function planOf(path, month, signal) {
  const first = new Date(`${month}-01T00:00:00`);
  const last = new Date(first);
  first.setDate(-7);
  last.setDate(46);
  const found = { days: new Map(), unknownFrom: null };
  let after = new Date(Math.max(Date.now(), first)).toISOString();
  for (let page = 0; page < PLAN_PAGES; page++) {
    const { items } = await get(`${path}/upcoming`, { count: 500, after }, signal);
    for (const { utc } of items) found.days.set(day(utc), (found.days.get(day(utc)) || 0) + 1);
    if (items.length < 500 || new Date(items.at(-1).utc) > last) return found;
    after = items.at(-1).utc;
  }
  return { ...found, unknownFrom: day(after) };
}

function Calendar({ month, items, plan, move }) {
  // Days of the calendar are dates alone; only what happened has a zone.
  const first = new Date(`${month}-01T00:00:00Z`);
  const start = 1 - ((first.getUTCDay() + 6) % 7);
  const date = (at) => at.toISOString().slice(0, 10);
  const cells = Array.from({ length: 42 }, (_, index) => date(new Date(first.getTime() + (start - 1 + index) * 86_400_000)));
  const weeks = cells.slice(35)[0].startsWith(month) ? cells : cells.slice(0, 35);
  const entries = byDay(items, cells);
  const next = plan?.days || new Map();
  const isMore = (date) => plan?.unknownFrom && date >= plan.unknownFrom;
  const step = (months) => {
    const at = new Date(first);
    at.setUTCMonth(at.getUTCMonth() + months);
    move(date(at).slice(0, 7));
  };
  return html`<${Section} title=${t("calendar", month)} actions=${html`<button aria-label=${t("the_month_before")}
    onClick=${() => step(-1)}>←</button>
    <button onClick=${() => move(day(Date.now()).slice(0, 7))}>${t("this_month")}</button>
    <button aria-label=${t("the_month_after")} onClick=${() => step(1)}>→</button>`}>
    <div class="calendar">${DAYS.map((name) => html`<div class="name" key=${name}>${name}</div>`)}
      ${weeks.map(
        (
          date,
        ) => html`<div key=${date}
          class="day ${date.startsWith(month) ? "" : "other"} ${date === day(Date.now()) ? "today" : ""}">
        <span class="dim">${Number(date.slice(8))}</span>
        ${Object.entries(entries[date] || {}).map(
          ([
            word,
            number,
          ]) => html`<span key=${word} class="status ${word === "fired" ? "is-completed" : "is-skipped"}"
            title=${`${count(number)} ${said("skipped", word)}`}>${count(number)}<span class="wide">${said("skipped", word)}</span>
          </span>`,
        )}
        ${
          (next.has(date) || isMore(date)) &&
          html`<span class="status dim" title=${t("to_come")}>${next.has(date) ? count(next.get(date)) : ""}${isMore(date) ? "…" : ""}<span class="wide">${t("to_come")}</span>
          </span>`
        }
      </div>`,
      )}</div><//>`;
}

// A span of skipped ones stands on each day that it covers.
function byDay(items, cells) {
  const found = {};
  const note = (date, word, number) => {
    found[date] ||= {};
    found[date][word] = (found[date][word] || 0) + number;
  };
  for (const one of items) {
    const word = one.outcome === "fired" ? "fired" : one.reason || "skipped";
    const [from, to] = [day(one.instant), day(one.until || one.instant)];
    if (from === to) note(from, word, one.count || 1);
    else for (const date of cells) if (date >= from && date <= to) note(date, word, 1);
  }
  return found;
}

function Ledger({ items, isCut, error, month }) {
  const [rows, setRows] = useKept(`ledger ${month}`, ROWS);
  return html`<${Section}
    title=${t("ledger_in", plural(items.length, "entry"), month, isCut ? t("and_more") : "")}>
    <${Trouble} error=${error} />
    ${
      items.length
        ? html`<${Scroll} label=${t("ledger")}><table><thead><tr><th>${t("planned_for")}</th><th>${t("outcome")}</th>
      <th>${t("reason")}</th><th class="number">${t("count")}</th><th>${t("made_2")}</th></tr></thead>
      <tbody>${items.slice(0, rows).map(
        (one) => html`<tr key=${one.instant}><td class="tight dated">
        <${When} at=${one.instant} absolute />${one.until && html` – <${When} at=${one.until} absolute />`}</td>
        <td class="tight"><${Status} status=${one.outcome} /></td>
          <td>${one.reason ? said("skipped", one.reason) : ""} <span class="dim">${one.detail || ""}</span></td>
          <td class="number">${count(one.count || 1)}</td><td>${
            one.group_id
              ? html`${t("group_2")} <${Id} id=${one.group_id} to="groups" />`
              : html`<${Id} id=${one.job_id} to="jobs" />`
          }</td></tr>`,
      )}</tbody>
          </table><//>
      ${
        items.length > rows &&
        html`<p class="more"><button onClick=${() => setRows(rows + 200)}>${t("more")}</button></p>`
      }`
        : html`<${Empty}>${t("nothing_in_this_month")}<//>`
    }<//>`;
}

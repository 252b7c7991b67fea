// Failures: what failed alike, how often and since when; retried together, muted, or noted.
import { said, t } from "../i18n.js";
import { get, patch, post } from "../api.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { useLoad } from "../live.js";
import { ask, attempt, can, Empty, Id, me, More, Section, someOffices, toast, Trouble, When } from "../parts.js";
import { change, link, useKept } from "../router.js";
import { clock, count, day, plural, span } from "../words.js";

// How far back, in seconds.
const RANGES = [21_600, 86_400, 604_800, 2_592_000];
const DAY = 86_400;
const PAGE = 25;

export default function Failures({ place }) {
  const seconds = RANGES.find((one) => one === Number(place.query.range)) || DAY;
  const { muted = "", job_type: type = "", office_id: office = "", fingerprint = "", sort = "" } = place.query;
  const set = (query) => change("failures", { ...place.query, ...query });
  const list = useFailures({ seconds, muted, type, office, fingerprint });
  const offices = useLoad((signal) => (me.office_id === null ? someOffices(200, signal) : { items: [] }), []);
  const known = offices.data?.items || [];
  const rows = sort === "count" ? [...list.items].sort((one, other) => other.count - one.count) : list.items;
  return html`<div>
    <div class="head"><h1 class="grow">${t("failures")}</h1>
      ${
        known.length > 1 &&
        html`<label class="unseen" for="office">${t("office")}</label>
        <select id="office" class="narrowed" onChange=${(event) => set({ office_id: event.target.value })}>
          <option value="">${t("all_offices")}</option>
          ${known.map((one) => html`<option key=${one.office_id} value=${one.office_id} selected=${one.office_id === office}>${one.name || one.office_id}</option>`)}</select>`
      }
      <div class="actions" role="group" aria-label=${t("range")}>${RANGES.map(
        (value) => html`<button key=${value} aria-pressed=${String(value === seconds)}
        onClick=${() => set({ range: value === DAY ? "" : value })}>${value > DAY ? t("unit_d", value / DAY) : span(value)}</button>`,
      )}</div></div>
    <div class="chips" role="group" aria-label=${t("filters")}>
      <button aria-pressed=${String(sort === "count")} onClick=${() => set({ sort: sort ? "" : "count" })}>${t("most_first")}</button>
      <button aria-pressed=${String(muted === "true")} onClick=${() => set({ muted: muted ? "" : "true" })}>${t("muted_too")}</button>
      ${type && html`<button title=${t("remove_this_filter")} onClick=${() => set({ job_type: "" })}>${t("type")}: ${type} ✕</button>`}
      ${fingerprint && html`<button title=${t("remove_this_filter")} onClick=${() => set({ fingerprint: "" })}>${t("one_failure")} ✕</button>`}
    </div>
    <${Trouble} error=${list.error} />
    <${Section} title=${plural(rows.length, "failure")}>
      ${
        rows.length
          ? html`<ul class="failures">${rows.map(
              (one) => html`<${Failure} key=${one.fingerprint} failure=${one} page=${list} again=${list.again} />`,
            )}</ul>`
          : html`<${Empty} isLoading=${list.isLoading}>${t("nothing_has_failed")}<//>`
      }
      <${More} cursor=${list.cursor} load=${list.more} isLoading=${list.isLoading} />
    <//></div>`;
}

const NO_MORE = { items: [], cursor: undefined };

// The first page follows the events; pages behind it are read when they are asked for.
function useFailures({ seconds, muted, type, office, fingerprint }) {
  const query = { job_type: type, office_id: office, fingerprint, muted: muted || fingerprint ? undefined : "false", limit: PAGE };
  const deps = [seconds, muted, type, office, fingerprint];
  const ask = (cursor, signal) =>
    get("api/failures", { ...query, cursor, since: new Date(Date.now() - seconds * 1000).toISOString() }, signal);
  const first = useLoad((signal) => ask(null, signal), deps, {
    concerns: (event) => /^job_(failed|timeout)/.test(event.type),
    every: 60_000,
    gap: 2000,
  });
  const [rest, setRest] = useKept("failures", NO_MORE);
  const [isLoading, setLoading] = useState(false);
  const [error, setError] = useState(null);
  // Who comes back finds the pages that were read; another filter begins anew.
  const asked = useRef(JSON.stringify(deps));
  useEffect(() => {
    if (asked.current !== JSON.stringify(deps)) setRest(NO_MORE);
    asked.current = JSON.stringify(deps);
  }, deps);
  const cursor = rest.cursor === undefined ? (first.data?.next_cursor ?? null) : rest.cursor;
  const more = async () => {
    if (isLoading || !cursor) return;
    setLoading(true);
    try {
      const found = await ask(cursor);
      setRest((old) => ({ items: [...old.items, ...found.items], cursor: found.next_cursor }));
    } catch (problem) {
      setError(problem);
    }
    setLoading(false);
  };
  const shown = first.data?.items || [];
  const known = new Set(shown.map((one) => one.fingerprint));
  const behind = first.data ? rest.items : [];
  return {
    ...first.data,
    items: [...shown, ...behind.filter((one) => !known.has(one.fingerprint))],
    cursor,
    more,
    isLoading: first.isLoading || isLoading,
    error: first.error || error,
    again: () => (setRest(NO_MORE), first.again()),
  };
}

function Failure({ failure, page, again }) {
  const { fingerprint, muted, note } = failure;
  const set = (changes, words) =>
    attempt(() => patch(`api/failures/${fingerprint}`, changes), words).then((done) => done && again());
  return html`<li class=${muted ? "is-muted" : ""} data-fingerprint=${fingerprint}>
    <div class="what">
      <a class="message" href=${link("jobs", { q: `fingerprint:${fingerprint}` })} title=${failure.last_error}>${failure.message || t("no_message")}</a>
      <p class="dim"><a href=${link(["types", failure.job_type])}>${failure.job_type}</a><span>${said("failure", failure.failure_kind)}</span>
        ${me.office_id === null && html`<span>${failure.office_id}</span>`}
        <span>${t("first_seen")} <${When} at=${failure.first_seen} /></span><span>${t("last_seen")} <${When} at=${failure.last_seen} /></span>
        ${muted && html`<strong>${t("is_muted")}</strong>`}</p>
      ${failure.last_error !== failure.message && html`<p class="error-line dim" title=${failure.last_error}>${failure.last_error}</p>`}
      ${note && html`<p class="note">${note}</p>`}
      ${
        failure.schedules.length > 0 &&
        html`<p class="dim">${t("schedules")}: ${failure.schedules.map(
          (one) => html`<a key=${one.schedule_id} href=${link(["schedules", one.schedule_id])}>${one.name || one.schedule_id}</a>`,
        )}</p>`
      }
      ${
        failure.last_runs.length > 0 &&
        html`<p class="dim">${t("last_jobs")}: ${failure.last_runs.map((one) => html`<${Id} key=${one.job_id} id=${one.job_id} to="jobs" />`)}</p>`
      }
    </div>
    <div class="counts"><strong>${count(failure.count)}</strong>
      <${Sparkline} values=${failure.buckets} since=${page.since} seconds=${page.bucket_seconds}
        label=${t("failures_over_time", plural(failure.count, "failure"))} /></div>
    ${
      can("operate") &&
      html`<div class="actions">
      <button onClick=${() => retry(failure, page.since, again)}>${t("retry_these")}</button>
      <button onClick=${() => set({ muted: !muted }, muted ? t("shown_again") : t("is_muted_now"))}>${muted ? t("unmute") : t("mute")}</button>
      <button onClick=${() => writeNote(failure, again)}>${note ? t("change_note") : t("add_note")}</button></div>`
    }</li>`;
}

// Bars, the oldest first. A browser says the time and the number of a bar on hover.
export function Sparkline({ values, since, seconds, label }) {
  const most = Math.max(1, ...values);
  const wide = 100 / Math.max(1, values.length);
  const at = (index) => new Date(new Date(since).getTime() + index * seconds * 1000);
  return html`<svg class="sparkline" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label=${label}>
    <line x1="0" x2="100" y1="23.5" y2="23.5" />
    ${values.map((value, index) => {
      const high = value ? Math.max(2, (value / most) * 22) : 0;
      return html`<rect key=${index} x=${index * wide + wide * 0.1} width=${wide * 0.8} y=${23 - high} height=${high}>
        <title>${`${day(at(index))} ${clock(at(index)).slice(0, 5)}: ${value}`}</title></rect>`;
    })}</svg>`;
}

// Says how many before it does anything: of those that the row counts, only last attempts can be retried. A bound excludes
// its instant, and the range begins with it.
async function retry(failure, since, again) {
  const body = { fingerprint: failure.fingerprint, finished_after: new Date(new Date(since) - 1).toISOString() };
  const tried = await attempt(() => post("api/jobs/retry", { ...body, dry_run: true }));
  if (!tried) return;
  if (!tried.retried) return void toast(t("none_of_these_can_be_retried"));
  const done = await ask({
    title: t("retry_2", plural(tried.retried, "failed job")),
    text: failure.message,
    action: t("retry_them"),
    work: () => post("api/jobs/retry", body),
    done: (made) => t("retried", plural(made.retried, "job")),
  });
  if (done) again();
}

async function writeNote(failure, again) {
  const done = await ask({
    title: t("note_about"),
    text: failure.message,
    fields: [{ name: "note", label: t("note"), kind: "area", value: failure.note || "", maxlength: 1000 }],
    action: t("save"),
    work: (values) => patch(`api/failures/${failure.fingerprint}`, { note: values.note.trim() || null }),
    done: t("saved"),
  });
  if (done) again();
}

// Overview: what is wrong, what ended and how long it took, how each office does, and what comes next.
import { plural, said, t } from "../i18n.js";
import { get, pages } from "../api.js";
import { Chart } from "../charts.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../live.js";
import { canWhole, Empty, hasOffices, me, Section, someOffices, Status, Trouble, useNow, When } from "../parts.js";
import { change, go, link } from "../router.js";
import { count, duration, named, span } from "../words.js";
import { enable, release, Remedy, resume } from "../remedies.js";
import { own } from "./offices.js";

// How far back, and in which steps: seconds.
const RANGES = [
  [3600, 60],
  [21_600, 300],
  [86_400, 900],
  [604_800, 3600],
  [2_592_000, 86_400],
];
const FAILED_LATELY = 86_400;
// As often as this, failures of the same work are a problem.
const OFTEN = 3;
const CARDS = 12;

export default function Overview({ place }) {
  const seconds = Number(place.query.range) || 21_600;
  const [, step] = RANGES.find(([one]) => one === seconds) || RANGES[1];
  const officeId = place.query.office || "";
  const series = useLoad((signal) => seriesOf(seconds, step, officeId, signal), [seconds, step, officeId], { every: 15_000 });
  const state = useLoad(stateOf, [], {
    concerns: (event) => /^(job_|queue_|resource_|node_)/.test(event.type),
    every: 15_000,
  });
  const set = (query) => change("overview", { ...place.query, ...query });
  return html`<div><div class="head"><h1 class="grow">${t("overview")}</h1>
      ${
        (state.data?.offices.length || 0) > 1 &&
        html`<label class="unseen" for="office">${t("office")}</label>
        <select id="office" class="narrowed" onChange=${(event) => set({ office: event.target.value })}>
          <option value="">${t("all_offices")}</option>
          ${state.data.offices.map(
            (one) => html`<option key=${one.office_id} value=${one.office_id}
            selected=${one.office_id === officeId}>${one.name || one.office_id}</option>`,
          )}</select>`
      }
      <div class="actions" role="group" aria-label=${t("range")}>${RANGES.map(
        ([value]) => html`<button key=${value} aria-pressed=${String(value === seconds)}
        onClick=${() => set({ range: value === 21_600 ? "" : value })}>${value > 86_400 ? t("unit_d", value / 86_400) : span(value)}</button>`,
      )}</div></div>
    <${Problems} state=${state} />
    <${Trouble} error=${state.error || series.error} />
    <${Charts} series=${series.data} officeId=${officeId} />
    <${Offices} items=${state.data?.offices} isLoading=${state.isLoading} />
    <div class="columns">
      <${Oldest} items=${state.data?.offices} />
      <${Coming} items=${state.data?.schedules} />
    </div></div>`;
}

const seriesOf = (seconds, step, officeId, signal) =>
  get("api/stats/series", { step, from: new Date(Date.now() - seconds * 1000).toISOString(), office_id: officeId }, signal);

// Each part by itself: one that this key may not see, or that fails, does not hide the others.
async function stateOf(signal) {
  const quiet = (work) => work.catch((error) => (error.name === "AbortError" ? Promise.reject(error) : null));
  const whole = canWhole("read");
  const [status, offices, schedules, failed, webhooks] = await Promise.all([
    whole ? get("api/status", {}, signal) : quiet(mine(signal)),
    someOffices(500, signal),
    quiet(pages("api/schedules", { limit: 500 }, { enough: 500, signal })),
    quiet(get("api/jobs", { status: "FAILED", limit: 200 }, signal)),
    quiet(get("api/webhooks", { limit: 500 }, signal)),
  ]);
  const names = new Map(offices.items.map((one) => [one.office_id, one]));
  return {
    status,
    offices: (status?.offices || []).map((one) => ({ ...names.get(one.office_id), ...one })),
    schedules: (schedules?.items || []).filter((one) => one.next_trigger_at),
    failed: failed?.items || [],
    webhooks: webhooks?.items || [],
  };
}

const mine = async (signal) => (hasOffices() ? { offices: [await own(me.office_id, signal)] } : null);

// One sentence: what is wrong, the worst first, each with a link to where it can be changed.
function Problems({ state }) {
  const now = useNow(5000);
  if (!state.data) return html`<p class="verdict" role="status">${t("loading_more")}</p>`;
  const found = problemsOf(state.data, now);
  if (!found.length) return html`<p class="verdict is-well" role="status">${t("all_is_well")}</p>`;
  return html`<div class="verdict is-ill" role="status"><strong>${plural(found.length, "problem")}:</strong>
    <ul>${found.map(([text, to, remedy]) => html`<li key=${text}><a href=${to}>${text}</a> <${Remedy} of=${remedy} about=${text} again=${state.again} /></li>`)}</ul></div>`;
}

export function problemsOf({ status, offices, failed, webhooks }, now) {
  const found = [];
  if (status?.not_ready_because) found.push([t("not_ready", status.not_ready_because), link("system")]);
  if (status?.paused?.scheduler) found.push([t("the_whole_scheduler_is_paused"), link("system"), resume()]);
  for (const one of status?.held || [])
    found.push([t("held_for", one.resource, duration((now - new Date(one.since)) / 1000)), link("system"), release(one.resource)]);
  for (const one of offices.filter((office) => office.paused))
    found.push([t("office_is_paused", one.name || one.office_id), link("now", { office: one.office_id }), resume({ office_id: one.office_id })]);
  for (const one of status?.paused?.job_types || []) found.push([t("type_is_paused", one), link("system"), resume({ job_type: one })]);
  for (const one of status?.paused?.resources || []) found.push([t("resource_is_paused", one), link("system"), resume({ resource: one })]);
  for (const { job, times } of oftenFailed(failed, now))
    found.push([t("failed_times", named(job), count(times)), link("jobs", { status: "FAILED", job_type: job.job_type })]);
  for (const one of webhooks.filter((hook) => hook.disabled_reason))
    found.push([t("webhook_is_disabled", one.url), link("webhooks"), enable(one)]);
  return found;
}

// Work of the same type and title that failed again and again in the last day, the most frequent first.
function oftenFailed(failed, now) {
  const groups = new Map();
  for (const job of failed) {
    if (now - new Date(job.finished_at || job.created_at) > FAILED_LATELY * 1000) continue;
    const name = `${job.job_type} ${(job.title || "").replace(/\d+/g, "#")}`;
    groups.set(name, { job: groups.get(name)?.job || job, times: (groups.get(name)?.times || 0) + 1 });
  }
  return [...groups.values()].filter((one) => one.times >= OFTEN).sort((one, other) => other.times - one.times).slice(0, 3);
}

function Charts({ series, officeId }) {
  const [mark, setMark] = useState({ at: null, from: null });
  const points = series?.points || [];
  const step = series?.step || 300;
  const choose = (first, last) => {
    const until = new Date(new Date(points[last].at).getTime() + step * 1000);
    setMark({ at: null, from: null });
    go("jobs", { created_after: local(points[first].at), created_before: local(until), office_id: officeId });
  };
  const shared = { points, step, mark, setMark, choose };
  const outcome = (status, look) => ({ name: status.toLowerCase(), label: said("status", status), look });
  const quantiles = (name) => [
    { name: `${name}_p50_seconds`, label: "p50", look: "is-running" },
    { name: `${name}_p95_seconds`, label: "p95", look: "is-queued" },
  ];
  return html`<${Section} title=${t("history")} actions=${html`<span class="dim wide">${t("drag_a_range")}</span>`}>
    <div class="charts">
      <${Chart} ...${shared} title=${t("ended_by_outcome")} isStacked format=${whole} series=${[
        outcome("COMPLETED", "is-completed"),
        outcome("FAILED", "is-failed"),
        outcome("SKIPPED", "is-skipped"),
        outcome("CANCELLED", "is-cancelled"),
      ]} />
      <${Chart} ...${shared} title=${t("queue_depth")} format=${whole}
        series=${[{ name: "queue_depth", label: t("jobs"), look: "is-queued" }]} />
      <${Chart} ...${shared} title=${t("wait")} isTime format=${duration} series=${quantiles("wait")} />
      <${Chart} ...${shared} title=${t("run_time")} isTime format=${duration} series=${quantiles("duration")} />
    </div><//>`;
}

const whole = (number) => count(Math.round(number));
// As a field for a date and a time has it: in the browser's zone, whatever zone is shown.
const local = (at) => new Date(new Date(at) - new Date(at).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);

function Offices({ items, isLoading }) {
  if (!items) return html`<${Section} title=${t("offices")}><${Empty}>${isLoading ? t("loading_more") : t("none")}<//><//>`;
  if (!items.length) return null;
  const busiest = [...items].sort((one, other) => load(other) - load(one)).slice(0, CARDS);
  return html`<${Section} title=${plural(items.length, "office")}
    actions=${hasOffices() && items.length > CARDS && html`<a class="button" href=${link("offices")}>${t("all")}</a>`}>
    <div class="cards">${busiest.map(
      (one) => html`<a key=${one.office_id} class="card" href=${link("now", { office: one.office_id })}>
      <strong class="clip">${one.name || one.office_id}</strong>
      ${one.paused ? html`<${Status} status="paused" />` : html`<span></span>`}
      <span>${said("status", "RUNNING")} <b>${count(one.running)}</b></span>
      <span>${said("status", "QUEUED")} <b>${count(one.queued)}</b></span>
      <span>${said("status", "WAITING")} <b>${count(one.waiting)}</b></span>
      <span>${t("waiting_callers")} <b>${count(one.direct_waiting)}</b></span></a>`,
    )}</div><//>`;
}

const load = (one) => one.running * 1e6 + one.queued + one.waiting;

function Oldest({ items }) {
  const waiting = (items || []).filter((one) => one.oldest_queued_at);
  const oldest = waiting.sort((one, other) => (one.oldest_queued_at < other.oldest_queued_at ? -1 : 1)).slice(0, 6);
  return html`<${Section} title=${t("oldest_waiting")}>${
    oldest.length
      ? html`<ul class="rows">${oldest.map(
          (one) => html`<li key=${one.office_id}><a href=${link("now", { office: one.office_id })}>${one.name || one.office_id}</a>
          <${When} at=${one.oldest_queued_at} /></li>`,
        )}</ul>`
      : html`<${Empty}>${t("nothing_waits")}<//>`
  }<//>`;
}

function Coming({ items }) {
  const next = [...(items || [])].sort((one, other) => (one.next_trigger_at < other.next_trigger_at ? -1 : 1)).slice(0, 6);
  return html`<${Section} title=${t("next_occurrences")}>${
    next.length
      ? html`<ul class="rows">${next.map(
          (one) => html`<li key=${one.schedule_id}><a href=${link(["schedules", one.schedule_id])}>${one.name}</a>
          <${When} at=${one.next_trigger_at} /></li>`,
        )}</ul>`
      : html`<${Empty}>${t("none")}<//>`
  }<//>`;
}

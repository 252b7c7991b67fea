// Overview: what is wrong, what ended and how long it took, how each office does, and what comes next.
import { plural, said, t } from "../i18n.js";
import { get, pages, shared } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { useLoad } from "../live.js";
import { canWhole, Empty, hasOffices, JobLink, me, Section, someOffices, Status, Trouble, useNow, When } from "../parts.js";
import { change, go, link } from "../router.js";
import { count, duration, span } from "../words.js";
import { enable, release, Remedy, resume, undrain } from "../remedies.js";

// What the first page needs only after it is shown.
const notices = () => import("../notices.js");
const charts = () => import("../charts.js");

// How far back, and in which steps: seconds.
const RANGES = [
  [3600, 60],
  [21_600, 300],
  [86_400, 900],
  [604_800, 3600],
  [2_592_000, 86_400],
];
const LATELY = 86_400;
// As often as this, failures that are alike are a problem.
const OFTEN = 3;
const MOST_FAILURES = 3;
const CARDS = 12;
const OLDEST = 6;
// Events about jobs may come by the hundred in a second: what they change is read again at most this often.
const GAP_MS = 5000;
const ofQueue = (event) => /^(queue_|resource_)/.test(event.type);

export default function Overview({ place }) {
  const seconds = Number(place.query.range) || 21_600;
  const [, step] = RANGES.find(([one]) => one === seconds) || RANGES[1];
  const officeId = place.query.office || "";
  // Each part has a request of its own, so that none waits for another, and none that fails hides the others.
  const series = useLoad((signal) => seriesOf(seconds, step, officeId, signal), [seconds, step, officeId], { every: 15_000 });
  const status = useLoad(statusOf, [], { concerns: ofQueue, every: 15_000 });
  const offices = useLoad((signal) => someOffices(200, signal), []);
  const names = new Map((offices.data?.items || []).map((one) => [one.office_id, one.name]));
  const cards = status.data?.offices.map((one) => ({ ...one, name: names.get(one.office_id) || one.office_id }));
  const set = (query) => change("overview", { ...place.query, ...query });
  return html`<div><div class="head"><h1 class="grow">${t("overview")}</h1>
      ${
        (cards?.length || 0) > 1 &&
        html`<label class="unseen" for="office">${t("office")}</label>
        <select id="office" class="narrowed" onChange=${(event) => set({ office: event.target.value })}>
          <option value="">${t("all_offices")}</option>
          ${cards.map((one) => html`<option key=${one.office_id} value=${one.office_id} selected=${one.office_id === officeId}>${one.name}</option>`)}</select>`
      }
      <div class="actions" role="group" aria-label=${t("range")}>${RANGES.map(
        ([value]) => html`<button key=${value} aria-pressed=${String(value === seconds)}
        onClick=${() => set({ range: value === 21_600 ? "" : value })}>${value > 86_400 ? t("unit_d", value / 86_400) : span(value)}</button>`,
      )}</div></div>
    <${Problems} status=${status} cards=${cards} />
    <${Trouble} error=${status.error || series.error} />
    <${Charts} series=${series.data} officeId=${officeId} />
    <${Offices} items=${cards} isLoading=${status.isLoading} />
    <div class="columns"><${Oldest} officeId=${officeId} /><${Coming} /></div></div>`;
}

const seriesOf = (seconds, step, officeId, signal) =>
  get("api/stats/series", { step, from: new Date(Date.now() - seconds * 1000).toISOString(), office_id: officeId }, signal);

// A key of one office does not see the status of the scheduler, but the numbers of its office.
async function statusOf(signal) {
  if (canWhole("read")) return shared("api/status");
  return { offices: hasOffices() ? [await (await import("./offices.js")).own(me.office_id, signal)] : [] };
}

// A part that this key may not see says nothing.
const quiet = (work) => work.catch((error) => (error.status === 403 || error.status === 404 ? null : Promise.reject(error)));

// One sentence: what is wrong, the worst first, each with a link to where it can be changed. Problems are shown as soon
// as they are known; that all is well is said when every part has answered.
function Problems({ status, cards }) {
  const now = useNow(5000);
  const whole = canWhole("read");
  const nodes = useLoad(async () => (whole ? quiet(shared("api/nodes")) : null), [], { concerns: (event) => event.type.startsWith("node_"), every: 60_000 });
  const webhooks = useLoad(async () => quiet(shared("api/webhooks?limit=500")), [], { every: 300_000 });
  const failures = useLoad((signal) => get("api/failures", { muted: "false", limit: 25 }, signal), [], {
    concerns: (event) => /^job_(failed|timeout)/.test(event.type),
    every: 60_000,
    gap: GAP_MS,
  });
  const quotas = useLoad(async () => (await notices()).fullQuotas(whole ? await quiet(shared("api/status")) : null), [], { every: 300_000 });
  const parts = [status, nodes, webhooks, failures, quotas];
  const again = () => parts.forEach((one) => one.again());
  const found = problemsOf({ status: status.data, cards: cards || [], nodes: nodes.data, quotas: quotas.data, webhooks: webhooks.data, failures: failures.data }, now);
  const error = parts.find((one) => one.error)?.error;
  if (found.length)
    return html`<div class="verdict is-ill" role="status"><strong>${plural(found.reduce((sum, [, , , number = 1]) => sum + number, 0), "problem")}:</strong>
      <ul>${found.map(([text, to, remedy]) => html`<li key=${text}><a href=${to}>${text}</a> <${Remedy} of=${remedy} about=${text} again=${again} /></li>`)}</ul></div>`;
  if (error) return html`<p class="verdict" role="status">${t("not_everything_is_known")}</p>`;
  if (parts.some((one) => one.asOf === 0)) return html`<p class="verdict" role="status">${t("loading_more")}</p>`;
  return html`<p class="verdict is-well" role="status">${t("all_is_well")}</p>`;
}

export function problemsOf({ status, cards, nodes, quotas, webhooks, failures }, now) {
  const found = [];
  const isRecent = (at) => at && now - new Date(at) < LATELY * 1000;
  if (status?.not_ready_because) found.push([t("not_ready", status.not_ready_because), link("system")]);
  if (status?.paused?.scheduler) found.push([t("the_whole_scheduler_is_paused"), link("system"), resume()]);
  for (const one of (nodes?.items || []).filter((node) => node.status === "lost" && isRecent(node.ended_at || node.last_seen_at)))
    found.push([t("node_is_lost", one.node_id), link("system")]);
  for (const one of status?.held || [])
    found.push([t("held_for", one.resource, duration((now - new Date(one.since)) / 1000)), link("system"), release(one.resource)]);
  for (const one of cards.filter((office) => office.paused))
    found.push([t("office_is_paused", one.name), link("now", { office: one.office_id }), resume({ office_id: one.office_id })]);
  for (const one of status?.paused?.job_types || []) found.push([t("type_is_paused", one), link("system"), resume({ job_type: one })]);
  for (const one of status?.paused?.resources || []) found.push([t("resource_is_paused", one), link("system"), resume({ resource: one })]);
  for (const one of (nodes?.items || []).filter((node) => node.status === "draining"))
    found.push([t("node_is_drained", one.node_id), link("system"), undrain(one.node_id)]);
  for (const one of quotas || []) found.push([one.text, one.to]);
  const often = oftenFailed(failures);
  for (const one of often.slice(0, MOST_FAILURES))
    found.push([t("failed_times", one.job_type, count(one.count), one.message || t("no_message")), link("failures", { fingerprint: one.fingerprint })]);
  if (often.length > MOST_FAILURES) found.push([plural(often.length - MOST_FAILURES, "other failure"), link("failures", { sort: "count" }), null, often.length - MOST_FAILURES]);
  for (const one of (webhooks?.items || []).filter((hook) => hook.disabled_reason))
    found.push([t("webhook_is_disabled", one.url), link("webhooks"), enable(one)]);
  return found;
}

// Failures of the last day, by what they have in common, without those that somebody has muted: the most frequent first.
const oftenFailed = (failures) =>
  (failures?.items || []).filter((one) => one.count >= OFTEN).sort((one, other) => other.count - one.count);

function Charts({ series, officeId }) {
  const [mark, setMark] = useState({ at: null, from: null });
  const [drawing, setDrawing] = useState({});
  useEffect(() => {
    charts().then(({ Chart }) => setDrawing({ Chart }), () => {});
  }, []);
  const points = series?.points || [];
  const step = series?.step || 300;
  // The jobs that ended in a range: those with the outcome at which the drag began, else all.
  const lead = (query) => (first, last, name) => {
    setMark({ at: null, from: null });
    const status = (name || "").toUpperCase();
    go("jobs", { finished_after: local(points[first].at), finished_before: until(last), office_id: officeId, status, ...query });
  };
  const until = (last) => local(new Date(points[last].at).getTime() + step * 1000);
  // What came into the queue then.
  const created = (first, last) => (
    setMark({ at: null, from: null }), go("jobs", { created_after: local(points[first].at), created_before: until(last), office_id: officeId })
  );
  const shown = { points, step, mark, setMark, choose: lead({}) };
  const outcome = (status, look) => ({ name: status.toLowerCase(), label: said("status", status), look });
  const quantiles = (name) => [
    { name: `${name}_p50_seconds`, label: "p50", look: "is-running" },
    { name: `${name}_p95_seconds`, label: "p95", look: "is-queued" },
  ];
  const drawn = (Chart) => html`<${Chart} ...${shown} title=${t("ended_by_outcome")} isStacked format=${whole} series=${[
      outcome("COMPLETED", "is-completed"),
      outcome("FAILED", "is-failed"),
      outcome("SKIPPED", "is-skipped"),
      outcome("CANCELLED", "is-cancelled"),
    ]} />
    <${Chart} ...${shown} choose=${created} title=${t("queue_depth")} format=${whole}
      series=${[{ name: "queue_depth", label: t("jobs"), look: "is-queued" }]} />
    <${Chart} ...${shown} title=${t("wait")} isTime format=${duration} series=${quantiles("wait")} />
    <${Chart} ...${shown} choose=${lead({ sort: "-duration" })} title=${t("run_time")} isTime format=${duration} series=${quantiles("duration")} />`;
  return html`<${Section} title=${t("history")} actions=${html`<span class="dim wide">${t("drag_a_range")}</span>`}>
    <div class="charts">${drawing.Chart && drawn(drawing.Chart)}</div><//>`;
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
      <strong class="clip">${one.name}</strong>
      ${one.paused ? html`<${Status} status="paused" />` : html`<span></span>`}
      <span>${said("status", "RUNNING")} <b>${count(one.running)}</b></span>
      <span>${said("status", "QUEUED")} <b>${count(one.queued)}</b></span>
      <span>${said("status", "WAITING")} <b>${count(one.waiting)}</b></span>
      <span>${t("waiting_callers")} <b>${count(one.direct_waiting)}</b></span></a>`,
    )}</div><//>`;
}

const load = (one) => one.running * 1e6 + one.queued + one.waiting;

// The jobs that are ready and have waited the longest.
function Oldest({ officeId }) {
  const jobs = useLoad(
    (signal) => get("api/jobs", { status: "QUEUED", sort: "created_at", limit: OLDEST, office_id: officeId }, signal),
    [officeId],
    { concerns: (event) => event.type.startsWith("job_"), every: 30_000, gap: GAP_MS },
  );
  const items = jobs.data?.items || [];
  return html`<${Section} title=${t("oldest_waiting")}><${Trouble} error=${jobs.error} />${
    items.length
      ? html`<ul class="rows">${items.map((one) => html`<li key=${one.job_id}><${JobLink} job=${one} /> <${When} at=${one.created_at} /></li>`)}</ul>`
      : html`<${Empty}>${jobs.data ? t("nothing_waits") : t("loading_more")}<//>`
  }<//>`;
}

function Coming() {
  const schedules = useLoad((signal) => pages("api/schedules", { limit: 500 }, { enough: 500, signal }), [], {
    concerns: (event) => event.type.startsWith("schedule_"),
    every: 60_000,
    gap: GAP_MS,
  });
  const known = (schedules.data?.items || []).filter((one) => one.next_trigger_at);
  const next = known.sort((one, other) => (one.next_trigger_at < other.next_trigger_at ? -1 : 1)).slice(0, 6);
  return html`<${Section} title=${t("next_occurrences")}><${Trouble} error=${schedules.error} />${
    next.length
      ? html`<ul class="rows">${next.map(
          (one) => html`<li key=${one.schedule_id}><a href=${link(["schedules", one.schedule_id])}>${one.name}</a>
          <${When} at=${one.next_trigger_at} /></li>`,
        )}</ul>`
      : html`<${Empty}>${schedules.data ? t("none") : t("loading_more")}<//>`
  }<//>`;
}

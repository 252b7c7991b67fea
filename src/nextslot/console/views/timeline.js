// The last hours and what is expected ahead, in one picture: a bar for each run, on as few lines as they fit on.
import { said, t } from "../i18n.js";
import { get } from "../api.js";
import { html, useLayoutEffect, useRef, useState } from "../lib.js";
import { useLoad } from "../live.js";
import { classOf, Section, Status, Trouble, useNow } from "../parts.js";
import { go } from "../router.js";
import { clock, duration, named, span } from "../words.js";

const LANE = 20;
const MOST_LANES = 12;
const TOP = 18;
const RUNS = 500;
const SPANS = [0.25, 1, 6, 24];

export function Timeline({ officeId, hours, queue, setHours }) {
  const concerns = (event) => event.office_id === officeId && event.type.startsWith("job_");
  const past = useLoad((signal) => recent(officeId, hours, signal), [officeId, hours], { concerns, every: 60_000 });
  const now = useNow(2000);
  const box = useRef(null);
  const [width, setWidth] = useState(900);
  useLayoutEffect(() => {
    const seen = new ResizeObserver((entries) => setWidth(Math.max(280, Math.round(entries[0].contentRect.width))));
    seen.observe(box.current);
    return () => seen.disconnect();
  }, []);
  const bars = collect(past.data || [], queue, now, hours);
  const lanes = Math.min(MOST_LANES, Math.max(3, ...bars.map((bar) => bar.lane + 1)));
  const from = now - hours * 3_600_000;
  const until = now + (hours * 3_600_000) / 2;
  const x = (time) => ((time - from) / (until - from)) * width;
  const height = TOP + lanes * LANE + 6;
  const shown = bars.filter((bar) => bar.lane < MOST_LANES && bar.to >= from && bar.from <= until);
  const coming = shown.filter((bar) => bar.isComing).length;
  const label = t("runs_in_the_last_expected_in", shown.length - coming, duration(hours * 3600), coming, duration(hours * 1800));
  return html`<${Section} title=${t("past_and_forecast")} actions=${SPANS.map(
    (value) => html`<button key=${value} aria-pressed=${String(hours === value)}
      onClick=${() => setHours(value)}>${span(value * 3600)}</button>`,
  )}>
    <${Trouble} error=${past.error} />
    <div ref=${box}>
      <svg class="timeline" height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${label}>
        ${ticks(from, until, hours).map(
          (at) => html`<g key=${at}>
          <line class="grid" x1=${x(at)} x2=${x(at)} y1=${TOP - 4} y2=${height} />
          <text x=${x(at) + 3} y="12">${clock(at).slice(0, 5)}</text></g>`,
        )}
        ${shown.map((bar) => html`<${Mark} key=${bar.key} bar=${bar} x=${x} width=${width} />`)}
        <line class="now" x1=${x(now)} x2=${x(now)} y1="0" y2=${height} />
      </svg>
    </div>
    <div class="legend">${["COMPLETED", "FAILED", "SKIPPED", "CANCELLED", "RUNNING"].map((status) => html`<${Status}
      key=${status} status=${status} />`)}
      <span class="status dim">${t("expected")}</span>${(past.data || []).length >= RUNS && html`<span class="dim">${t("the_newest_runs", RUNS)}</span>`}
        </div>
  <//>`;
}

function Mark({ bar, x, width }) {
  const left = Math.max(-4, x(bar.from));
  const right = Math.min(width + 4, Math.max(left + 3, x(bar.to)));
  const y = TOP + bar.lane * LANE;
  const room = Math.floor((right - left - 8) / 6.4);
  const told = `${bar.name}: ${bar.words}`;
  return html`<g class=${classOf(bar.status)} onClick=${() => bar.jobId && go(["jobs", bar.jobId])}>
    <rect class="mark ${bar.isComing ? "coming" : bar.status === "RUNNING" ? "solid" : ""}" x=${left} y=${y}
      width=${right - left} height=${LANE - 4}>
      <title>${told}</title></rect>
    ${
      room > 3 &&
      html`<text class="label" x=${left + 5}
        y=${y + 12}>${bar.name.length > room ? `${bar.name.slice(0, room - 1)}…` : bar.name}
      </text>`
    }
  </g>`;
}

// Runs know when; their jobs know what. Both are the newest.
async function recent(officeId, hours, signal) {
  const after = new Date(Date.now() - hours * 3_600_000).toISOString();
  const [runs, jobs] = await Promise.all([
    get("api/job-runs", { office_id: officeId, started_after: after, limit: RUNS }, signal),
    get("api/jobs", { office_id: officeId, status: "COMPLETED,FAILED,SKIPPED,CANCELLED,RUNNING", limit: RUNS }, signal),
  ]);
  const known = new Map(jobs.items.map((job) => [job.job_id, job]));
  return runs.items.map((run) => ({ ...run, job: known.get(run.job_id) }));
}

function collect(runs, queue, now, hours) {
  const bars = [];
  for (const run of runs) {
    if (!run.finished_at) continue;
    const [from, to] = [Date.parse(run.started_at), Date.parse(run.finished_at)];
    const status = run.job?.status === "CANCELLED" ? "CANCELLED" : run.status;
    bars.push({
      key: run.run_id,
      jobId: run.job_id,
      from,
      to,
      status,
      name: run.job ? named(run.job) : t("run"),
      words: t("to_2", said("status", status), clock(from), clock(to), duration((to - from) / 1000)),
    });
  }
  for (const job of queue.running) {
    const from = Date.parse(job.started_at);
    bars.push({
      key: job.job_id,
      jobId: job.job_id,
      from,
      to: now,
      status: "RUNNING",
      name: named(job),
      words: t("runs_since", clock(from)),
    });
    const end = Date.parse(job.expected_end);
    if (end > now)
      bars.push({
        key: `${job.job_id} end`,
        jobId: job.job_id,
        from: now,
        to: end,
        status: "RUNNING",
        isComing: true,
        follows: job.job_id,
        name: named(job),
        words: t("expected_to_end", clock(end)),
      });
  }
  const horizon = now + (hours * 3_600_000) / 2;
  for (const job of queue.queue) {
    if (!job.expected_start) continue;
    const from = Math.max(now, Date.parse(job.expected_start));
    if (from > horizon) continue;
    const to = job.expected_end ? Math.max(from, Date.parse(job.expected_end)) : from;
    bars.push({
      key: job.job_id,
      jobId: job.job_id,
      from,
      to,
      status: job.status,
      isComing: true,
      name: named(job),
      words: t("expected_to", clock(from), clock(to)),
    });
  }
  return packed(bars.sort((one, other) => one.from - other.from));
}

// Each on the first line that is free.
function packed(bars) {
  const ends = [];
  const lanes = new Map();
  for (const bar of bars) {
    if (bar.follows && lanes.has(bar.follows)) {
      bar.lane = lanes.get(bar.follows);
    } else {
      const free = ends.findIndex((end) => end <= bar.from + 1);
      bar.lane = free < 0 ? ends.length : free;
    }
    ends[bar.lane] = Math.max(bar.to, ends[bar.lane] || 0);
    lanes.set(bar.key, bar.lane);
  }
  return bars;
}

function ticks(from, until, hours) {
  const step = { 0.25: 3, 1: 15, 6: 60, 24: 240 }[hours] * 60_000 || 3_600_000;
  const zone = new Date(from).getTimezoneOffset() * 60_000;
  const found = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at < until; at += step) found.push(at);
  return found;
}

// Runs of the past and what is expected, in one picture that can be moved, zoomed and sorted into lanes. A bar is a run;
// where there are more runs than the picture has room for, columns count them.
import { said, t } from "../i18n.js";
import { get } from "../api.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import { useLoad } from "../live.js";
import { canWhole, classOf, Section, Status, Trouble, useNow } from "../parts.js";
import { go, useKept } from "../router.js";
import { between, clock, count, day, duration, named, plural, span, zoneName } from "../words.js";

const LANE = 20;
const MOST_LANES = 12;
const TOP = 18;
const RUNS = 500;
const SPANS = [0.25, 1, 6, 24];
const HOUR = 3_600_000;
const [SHORTEST, LONGEST] = [10_000, 40 * 24 * HOUR];
const COLUMN = 6;
const STEPS = [1, 5, 15, 60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800].map((one) => one * 1000);
const LANES = ["free", "slot", "type", "office"];
const SERIES_STEPS = [60, 300, 900, 3600, 86_400];

export function Timeline({ officeId, hours, queue, setHours }) {
  const now = useNow(2000);
  // Null: the last hours and half as many ahead, as time goes by.
  const [held, setHeld] = useKept("timeline held", null);
  const [lanesBy, setLanesBy] = useKept("timeline lanes", "free");
  const [hovered, hover] = useState(null);
  // The bar that has the focus, and the last one that had it, which Tab leads to.
  const [focused, setFocused] = useState(null);
  const [last, setLast] = useState(null);
  const [brush, setBrush] = useState(null);
  const view = held || { from: now - hours * HOUR, until: now + (hours * HOUR) / 2 };
  const wide = view.until - view.from;
  // Loaded a little around what is shown, so that not every move asks the server.
  const snap = 2 ** Math.ceil(Math.log2(wide / 2));
  const range = held ? [Math.floor(view.from / snap) * snap, Math.ceil(view.until / snap) * snap] : [hours, 0];
  const isWhole = lanesBy === "office";
  const past = useLoad((signal) => recent(isWhole ? null : officeId, held ? range : null, hours, signal), [officeId, isWhole, ...range], {
    concerns: (event) => (isWhole || event.office_id === officeId) && event.type.startsWith("job_"),
    every: 60_000,
  });
  const box = useRef(null);
  const svg = useRef(null);
  const [width, setWidth] = useState(900);
  useLayoutEffect(() => {
    const seen = new ResizeObserver((entries) => setWidth(Math.max(280, Math.round(entries[0].contentRect.width))));
    seen.observe(box.current);
    return () => seen.disconnect();
  }, []);
  const drawn = useRef(`${officeId} ${hours}`);
  useEffect(() => {
    if (drawn.current !== `${officeId} ${hours}`) setHeld(null);
    drawn.current = `${officeId} ${hours}`;
  }, [officeId, hours]);
  const move = (from, until) => {
    const length = Math.min(LONGEST, Math.max(SHORTEST, until - from));
    const middle = (from + until) / 2;
    setHeld({ from: middle - length / 2, until: middle + length / 2 });
    hover(null);
  };
  const zoom = (factor, share = 0.5) => {
    const at = view.from + share * wide;
    move(at - (at - view.from) / factor, at + (view.until - at) / factor);
  };
  usePointer(svg, { view, width, move, zoom, setBrush, hover });
  const runs = past.data?.runs || [];
  const bars = collect(runs, queue, now, view.until).filter((bar) => bar.to >= view.from && bar.from <= view.until);
  const isDense = bars.length > width / 4;
  const { lanes, names, cut } = laid(bars, isDense && lanesBy === "free" ? "type" : lanesBy);
  const seen = isDense ? [] : bars.filter((bar) => bar.lane < MOST_LANES);
  const first = seen.find((bar) => bar.key === last) || seen.filter((bar) => !bar.isComing).at(-1) || seen[0];
  const gutter = names ? Math.min(130, width / 4) : 0;
  const x = (time) => gutter + ((time - view.from) / wide) * (width - gutter);
  const height = TOP + Math.max(3, lanes) * LANE + 6;
  const coming = bars.filter((bar) => bar.isComing).length;
  const label = t("runs_in_the_last_expected_in", bars.length - coming, duration(wide / 1000), coming);
  const keys = isDense ? t("timeline_keys") : `${t("timeline_keys")}. ${t("bar_keys")}`;
  const focusOn = (key) => {
    setFocused(key);
    if (key) setLast(key);
  };
  const pressed = (event) => {
    const shift = { ArrowLeft: -0.1, ArrowRight: 0.1 }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const bar = seen.find((one) => one.key === event.target.closest("[data-key]")?.dataset.key);
    const next = bar && beside(seen, bar, event.key);
    if (next) focusBar(svg.current, next);
    else if (bar && event.key === "Enter") go(["jobs", bar.jobId]);
    else if (bar && event.key === "Escape") svg.current.focus();
    else if (bar && event.key.startsWith("Arrow")) return event.preventDefault();
    else if (shift) move(view.from + shift * wide, view.until + shift * wide);
    else if (event.key === "+" || event.key === "=" || event.key === "ArrowUp") zoom(1.5);
    else if (event.key === "-" || event.key === "ArrowDown") zoom(1 / 1.5);
    else if (event.key === "0") setHeld(null);
    else return;
    event.preventDefault();
  };
  const card = hovered || (focused && seen.some((bar) => bar.key === focused) && placeOf(seen.find((bar) => bar.key === focused), x, gutter));
  const isCut = past.data?.isCut;
  const uncounted = isCut ? Math.min(...runs.map((run) => Date.parse(run.started_at))) : 0;
  return html`<${Section} title=${t("past_and_forecast")} actions=${html`
    <label class="unseen" for="lanes">${t("lanes")}</label>
    <select id="lanes" class="narrowed" onChange=${(event) => setLanesBy(event.target.value)}>${LANES.filter(
      (one) => one !== "office" || canWhole("read"),
    ).map((one) => html`<option key=${one} value=${one} selected=${one === lanesBy}>${said("lanes", one)}</option>`)}</select>
    ${SPANS.map(
      (value) => html`<button key=${value} aria-pressed=${String(!held && hours === value)}
      onClick=${() => (setHeld(null), setHours(value))}>${span(value * 3600)}</button>`,
    )}
    <button aria-label=${t("zoom_in")} onClick=${() => zoom(1.5)}>+</button>
    <button aria-label=${t("zoom_out")} onClick=${() => zoom(1 / 1.5)}>−</button>
    ${held && html`<button onClick=${() => setHeld(null)}>${t("to_now")}</button>`}`}>
    <${Trouble} error=${past.error} />
    <div ref=${box} class="stage">
      <svg class="timeline" ref=${svg} height=${height} viewBox=${`0 0 ${width} ${height}`} role="group" tabindex="0" aria-label=${`${label}. ${keys}`}
        data-from=${Math.round(view.from)} data-until=${Math.round(view.until)} onKeyDown=${pressed}>
        ${ticks(view.from, view.until, width - gutter).map(
          ([at, words]) => html`<g key=${at}>
          <line class="grid" x1=${x(at)} x2=${x(at)} y1=${TOP - 4} y2=${height} />
          <text x=${x(at) + 3} y="12">${words}</text></g>`,
        )}
        ${isCut && html`<${Counted} points=${past.data.series} step=${past.data.step} until=${uncounted} x=${x} height=${height} />`}
        ${
          isDense
            ? dense(bars, x, width).map((one) => html`<${Column} key=${one.key} of=${one} />`)
            : seen.map((bar) => html`<${Mark} key=${bar.key} bar=${bar} x=${x} width=${width} gutter=${gutter} isFirst=${bar === first} focusOn=${focusOn} />`)
        }
        ${names && html`<rect class="gutter" x="0" y=${TOP - 4} width=${gutter - 2} height=${height} />
          ${names.map((name, index) => html`<text key=${name} class="label" x="12" y=${TOP + index * LANE + 12}>${name.length > 18 ? `${name.slice(0, 17)}…` : name}</text>`)}`}
        ${now >= view.from && now <= view.until && html`<line class="now" x1=${x(now)} x2=${x(now)} y1="0" y2=${height} />`}
        ${brush && html`<rect class="chosen" x=${Math.min(...brush)} y="0" width=${Math.abs(brush[1] - brush[0])} height=${height} />`}
      </svg>
      ${card && html`<${Card} hovered=${card} bar=${bars.find((bar) => bar.key === card.key)} width=${width} />`}
    </div>
    <div class="legend">${["COMPLETED", "FAILED", "SKIPPED", "CANCELLED", "RUNNING"].map((status) => html`<${Status}
      key=${status} status=${status} />`)}
      <span class="status dim">${t("expected")}</span>
      <span class="dim">${t("times_in", zoneName())}</span>
      ${cut > 0 && html`<span class="problem" role="status">${t("lanes_are_cut", plural(cut, "more lane"))}</span>`}
      ${isDense && html`<span class="dim">${t("columns_count_runs")}</span>`}
      ${isCut && html`<span class="dim">${t("before_columns_count", count(runs.length))}</span>`}
      <span class="dim wide grow">${t("wheel_zooms")}</span></div>
  <//>`;
}

// Wheel zooms at the pointer, a drag moves, a drag with Shift chooses a range.
function usePointer(svg, now) {
  const latest = useRef(now);
  latest.current = now;
  useEffect(() => {
    const place = svg.current;
    let grip = null;
    const at = (event) => event.clientX - place.getBoundingClientRect().left;
    const down = (event) => {
      if (event.button) return;
      grip = { x: at(event), view: latest.current.view, isBrush: event.shiftKey, hasMoved: false };
      if (grip.isBrush) event.preventDefault();
    };
    const moved = (event) => {
      const { width, move, setBrush, hover } = latest.current;
      if (!grip) {
        const key = event.target.closest?.("[data-key]")?.dataset.key;
        return hover(key && place.contains(event.target) ? { key, x: at(event), y: event.clientY - place.getBoundingClientRect().top } : null);
      }
      const way = at(event) - grip.x;
      if (!grip.hasMoved && Math.abs(way) < 4) return undefined;
      grip.hasMoved = true;
      if (grip.isBrush) return setBrush([grip.x, at(event)]);
      const shift = (-way / width) * (grip.view.until - grip.view.from);
      return move(grip.view.from + shift, grip.view.until + shift);
    };
    const up = (event) => {
      if (grip?.isBrush && grip.hasMoved) {
        const { width, move, setBrush } = latest.current;
        const { from, until } = grip.view;
        const ends = [grip.x, at(event)].sort((one, other) => one - other).map((one) => from + (one / width) * (until - from));
        move(...ends);
        setBrush(null);
      }
      if (grip?.hasMoved) addEventListener("click", (click) => click.stopPropagation(), { capture: true, once: true });
      grip = null;
    };
    const wheel = (event) => {
      event.preventDefault();
      const { view, width, move, zoom } = latest.current;
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const shift = (event.deltaX / width) * (view.until - view.from);
        move(view.from + shift, view.until + shift);
      } else zoom(Math.exp(-event.deltaY / 500), at(event) / width);
    };
    place.addEventListener("pointerdown", down);
    addEventListener("pointermove", moved);
    addEventListener("pointerup", up);
    place.addEventListener("wheel", wheel, { passive: false });
    return () => {
      place.removeEventListener("pointerdown", down);
      removeEventListener("pointermove", moved);
      removeEventListener("pointerup", up);
      place.removeEventListener("wheel", wheel);
    };
  }, []);
}

// What the card says of a bar, in one line.
const wordsOf = (bar) => [`${bar.name}: ${bar.words}`, bar.type, bar.office, bar.slot].filter(Boolean).join(" · ");

// The card of a bar that has the focus stands below its beginning.
const placeOf = (bar, x, gutter) => ({ key: bar.key, x: Math.max(gutter, x(bar.from)), y: TOP + bar.lane * LANE });

// By arrow keys from bar to bar: the one before or after in time, or the nearest in time of the next lane that has one.
function beside(bars, bar, key) {
  const turn = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (turn) return bars[bars.indexOf(bar) + turn];
  const way = { ArrowUp: -1, ArrowDown: 1 }[key];
  if (!way) return undefined;
  const there = bars.filter((one) => Math.sign(one.lane - bar.lane) === way);
  const lane = Math.min(...there.map((one) => Math.abs(one.lane - bar.lane)));
  const away = (one) => Math.max(0, one.from - bar.to, bar.from - one.to);
  return there.filter((one) => Math.abs(one.lane - bar.lane) === lane).sort((one, other) => away(one) - away(other))[0];
}

const focusBar = (svg, bar) => [...svg.querySelectorAll("[data-key]")].find((one) => one.dataset.key === bar.key)?.focus();

function Mark({ bar, x, width, gutter, isFirst, focusOn }) {
  const left = Math.max(gutter - 4, x(bar.from));
  const right = Math.min(width + 4, Math.max(left + 3, x(bar.to)));
  const y = TOP + bar.lane * LANE;
  const room = Math.floor((right - left - 8) / 6.4);
  return html`<g class=${classOf(bar.status)} data-key=${bar.key} role="link" tabindex=${isFirst ? 0 : -1} aria-label=${wordsOf(bar)}
    onFocus=${() => focusOn(bar.key)} onBlur=${() => focusOn(null)} onClick=${() => bar.jobId && go(["jobs", bar.jobId])}>
    <rect class="mark ${bar.isComing ? "coming" : bar.status === "RUNNING" ? "solid" : ""}" x=${left} y=${y}
      width=${right - left} height=${LANE - 4}>
      <title>${bar.name}: ${bar.words}</title></rect>
    ${
      room > 3 &&
      html`<text class="label" x=${left + 5}
        y=${y + 12}>${bar.name.length > room ? `${bar.name.slice(0, room - 1)}…` : bar.name}
      </text>`
    }
  </g>`;
}

// How many runs began in a column of a lane, the failed ones by themselves.
const Column = ({ of: one }) => html`<g class=${classOf(one.status)}><rect class="count" x=${one.x} y=${one.y} width=${COLUMN - 1} height=${one.height}>
  <title>${plural(one.number, "run")}, ${said("status", one.status)}</title></rect></g>`;

function dense(bars, x, width) {
  const columns = new Map();
  for (const bar of bars) {
    if (bar.lane >= MOST_LANES || bar.isComing) continue;
    const place = Math.floor(Math.min(width, Math.max(0, x(bar.from))) / COLUMN);
    const column = columns.get(`${bar.lane} ${place}`) || { lane: bar.lane, place, numbers: {}, sum: 0 };
    column.numbers[bar.status] = (column.numbers[bar.status] || 0) + 1;
    column.sum += 1;
    columns.set(`${bar.lane} ${place}`, column);
  }
  const most = Math.max(1, ...[...columns.values()].map((one) => one.sum));
  const found = [];
  for (const [key, { lane, place, numbers }] of columns) {
    let y = TOP + lane * LANE + LANE - 3;
    for (const [status, number] of Object.entries(numbers)) {
      const height = Math.max(2, (number / most) * (LANE - 5));
      y -= height;
      found.push({ key: `${key} ${status}`, x: place * COLUMN, y, height, status, number });
    }
  }
  return found;
}

// Runs before the oldest one that was fetched, as the statistics count them.
function Counted({ points, step, until, x, height }) {
  const most = Math.max(1, ...points.map((one) => one.completed + one.failed + one.skipped + one.cancelled));
  return points
    .filter((one) => Date.parse(one.at) + step * 1000 <= until)
    .map((one) => {
      const from = x(Date.parse(one.at));
      const wide = Math.max(1, x(Date.parse(one.at) + step * 1000) - from - 1);
      let y = height - 3;
      return ["completed", "skipped", "cancelled", "failed"].map((status) => {
        const tall = (one[status] / most) * (height - TOP - 10);
        y -= tall;
        return tall > 0 && html`<g key=${one.at + status} class=${`is-${status}`}><rect class="count" x=${from} y=${y} width=${wide} height=${tall}>
          <title>${plural(one[status], "run")}, ${said("status", status.toUpperCase())}, ${clock(one.at)}</title></rect></g>`;
      });
    });
}

function Card({ hovered, bar, width }) {
  if (!bar) return null;
  const left = Math.min(Math.max(0, width - 270), Math.max(0, hovered.x + 12));
  return html`<div class="hovercard" role="tooltip" style=${{ left: `${left}px`, top: `${hovered.y + 16}px` }}>
    <strong>${bar.name}</strong> <${Status} status=${bar.status} />
    <div>${bar.words}</div>
    <div class="dim">${[bar.type, bar.office, bar.slot].filter(Boolean).join(" · ")}</div></div>`;
}

// Runs know when; their jobs know what. Both are the newest of the range.
async function recent(officeId, range, hours, signal) {
  const from = new Date(range ? range[0] : Date.now() - hours * HOUR).toISOString();
  const until = range && range[1] < Date.now() ? new Date(range[1]).toISOString() : undefined;
  const of = officeId ? { office_id: officeId } : {};
  const [runs, jobs] = await Promise.all([
    get("api/job-runs", { ...of, started_after: from, started_before: until, limit: RUNS }, signal),
    get("api/jobs", { ...of, status: "COMPLETED,FAILED,SKIPPED,CANCELLED,RUNNING", created_before: until, limit: RUNS }, signal),
  ]);
  const known = new Map(jobs.items.map((job) => [job.job_id, job]));
  const found = { runs: runs.items.map((run) => ({ ...run, job: known.get(run.job_id) })), isCut: runs.next_cursor !== null, series: [] };
  if (found.isCut) {
    const seconds = (Date.parse(until || new Date().toISOString()) - Date.parse(from)) / 1000;
    found.step = SERIES_STEPS.find((one) => seconds / one <= 200) || 86_400;
    // Of long ago only coarser steps are kept: then there are bars only.
    const series = await get("api/stats/series", { ...of, from, to: until, step: found.step }, signal).catch(() => null);
    found.series = series?.points || [];
  }
  return found;
}

function collect(runs, queue, now, horizon) {
  const bars = [];
  const about = (job) => ({
    jobId: job.job_id,
    name: named(job),
    type: job.job_type,
    office: job.office_id,
    slot: (job.worker_id || "").split("/").pop(),
  });
  for (const run of runs) {
    if (!run.finished_at) continue;
    const [from, to] = [Date.parse(run.started_at), Date.parse(run.finished_at)];
    const status = run.job?.status === "CANCELLED" ? "CANCELLED" : run.status;
    const words = t("to_2", said("status", status), clock(from), clock(to), duration((to - from) / 1000));
    bars.push({ key: run.run_id, jobId: run.job_id, name: t("run"), from, to, status, words, ...(run.job && about(run.job)) });
  }
  for (const job of queue.running) {
    const from = Date.parse(job.started_at);
    const end = Date.parse(job.expected_end);
    bars.push({ ...about(job), key: job.job_id, from, to: now, status: "RUNNING", words: `${t("runs_since", clock(from))}, ${duration(between(from, now))}` });
    if (end > now)
      bars.push({ ...about(job), key: `${job.job_id} end`, follows: job.job_id, from: now, to: end, status: "RUNNING", isComing: true, words: t("expected_to_end", clock(end)) });
  }
  for (const job of queue.queue) {
    if (!job.expected_start) continue;
    const from = Math.max(now, Date.parse(job.expected_start));
    if (from > horizon) continue;
    const to = job.expected_end ? Math.max(from, Date.parse(job.expected_end)) : from;
    bars.push({ ...about(job), key: job.job_id, from, to, status: job.status, isComing: true, words: t("expected_to", clock(from), clock(to)) });
  }
  return bars.sort((one, other) => one.from - other.from);
}

// Gives each bar its lane: the first that is free, or that of its slot, type or office. Later ones of such a lane cover
// earlier ones.
function laid(bars, by) {
  if (by === "free") {
    const needed = packed(bars);
    return { lanes: Math.min(MOST_LANES, needed), names: null, cut: needed - MOST_LANES };
  }
  const nameOf = (bar) => bar[by] || (bar.isComing ? t("no_slot_yet") : "–");
  const all = [...new Set(bars.map(nameOf))].sort((one, other) => one.localeCompare(other, undefined, { numeric: true }));
  const names = all.slice(0, MOST_LANES);
  for (const bar of bars) {
    const lane = names.indexOf(nameOf(bar));
    bar.lane = lane < 0 ? MOST_LANES : lane;
  }
  return { lanes: names.length, names, cut: all.length - MOST_LANES };
}

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
  return ends.length;
}

// Round times of the zone, about ninety pixels apart, with their words.
function ticks(from, until, width) {
  const step = STEPS.find((one) => (one / (until - from)) * width >= 76) || STEPS.at(-1);
  const offset = Date.parse(`${day(from)}T${clock(from)}Z`) - Math.floor(from / 1000) * 1000;
  const found = [];
  for (let at = Math.ceil((from + offset) / step) * step - offset; at < until; at += step) {
    const time = clock(at);
    found.push([at, step >= 86_400_000 || time === "00:00:00" ? day(at).slice(5) : step < 60_000 ? time : time.slice(0, 5)]);
  }
  return found;
}

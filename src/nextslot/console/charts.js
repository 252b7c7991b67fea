// Charts of a series over time, drawn as SVG: stacked bars or lines. Several of them share a crosshair and a chosen range.
import { t } from "./i18n.js";
import { html, useLayoutEffect, useRef, useState } from "./lib.js";
import { clock, day } from "./words.js";

const HEIGHT = 150;
const [LEFT, TOP, BOTTOM] = [52, 8, 18];
const INNER = HEIGHT - TOP - BOTTOM;

// `mark` is {at, from, name}: the step under the crosshair, and the step and the pillar at which a drag began. `choose` gets
// the first and the last step of a range, and the name of that pillar's series.
export function Chart({ title, points, step, series, isStacked = false, isTime = false, format, mark, setMark, choose }) {
  const box = useRef(null);
  const width = useWidth(box);
  const wide = Math.max(1, width - LEFT - 6);
  const value = (point, one) => point[one.name];
  const total = (point) => series.reduce((sum, one) => sum + (value(point, one) || 0), 0);
  const tops = points.map((point) => (isStacked ? total(point) : Math.max(0, ...series.map((one) => value(point, one) || 0))));
  const top = rounded(Math.max(...tops, 0), isTime);
  const slot = wide / Math.max(1, points.length);
  const x = (index) => LEFT + slot * index;
  const y = (number) => TOP + INNER * (1 - number / top);
  const at = (event) => {
    const place = event.clientX - box.current.getBoundingClientRect().left;
    return Math.max(0, Math.min(points.length - 1, Math.floor((place - LEFT) / slot)));
  };
  const shown = mark.at === null ? null : points[Math.min(mark.at, points.length - 1)];
  const said = (one) => (shown ? number(value(shown, one), format) : "");
  const moved = (event) => points.length && setMark({ ...mark, at: at(event), from: event.buttons ? mark.from : null });
  const down = (event) =>
    points.length && (event.preventDefault(), event.currentTarget.focus(), setMark({ at: at(event), from: at(event), name: event.target.dataset?.name }));
  const up = (event) => {
    if (mark.from !== null && mark.from !== at(event)) choose(Math.min(mark.from, at(event)), Math.max(mark.from, at(event)), mark.name);
    else setMark({ at: mark.at, from: null });
  };
  const pressed = (event) => {
    const turn = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    const here = mark.at ?? points.length - 1;
    if (turn && points.length) {
      event.preventDefault();
      const to = Math.max(0, Math.min(points.length - 1, here + turn));
      setMark({ at: to, from: event.shiftKey ? (mark.from ?? here) : null });
    } else if (event.key === "Enter" && mark.at !== null)
      choose(Math.min(mark.from ?? mark.at, mark.at), Math.max(mark.from ?? mark.at, mark.at));
    else if (event.key === "Escape") setMark({ at: null, from: null });
  };
  const spoken = shown ? `${stamp(shown.at, step)}: ${series.map((one) => `${one.label} ${said(one)}`).join(", ")}` : title;
  return html`<figure class="chart">
    <figcaption><h3>${title}</h3><span class="legend">${series.map(
      (one) => html`<span key=${one.name} class=${one.look}><i></i>${one.label} <b>${said(one)}</b></span>`,
    )}</span></figcaption>
    <div ref=${box} class="plot" role="slider" tabindex="0" aria-label=${title} aria-valuemin="0"
      aria-valuemax=${Math.max(0, points.length - 1)} aria-valuenow=${mark.at ?? Math.max(0, points.length - 1)}
      aria-valuetext=${spoken} onPointerMove=${moved} onPointerDown=${down} onPointerUp=${up} onKeyDown=${pressed}
      onPointerLeave=${(event) => !event.buttons && setMark({ at: null, from: null })}>
      <svg width=${width} height=${HEIGHT} aria-hidden="true">
        ${[0, 0.5, 1].map(
          (part) => html`<g key=${part}><line class="grid" x1=${LEFT} x2=${width} y1=${y(part * top)} y2=${y(part * top)} />
          <text x=${LEFT - 6} y=${y(part * top) + 4} text-anchor="end">${isTime ? brief(part * top) : format(part * top)}</text></g>`,
        )}
        ${ticks(points, wide).map((index) => html`<text key=${index} x=${x(index)} y=${HEIGHT - 4}>${stamp(points[index].at, step)}</text>`)}
        ${
          isStacked
            ? points.map((point, index) => stack(point, index, series, x, y, slot))
            : series.map((one) => {
                const { lines, dots } = curve(points, one.name, x, y, slot);
                return html`<g key=${one.name} class=${one.look}><path class="curve" d=${lines} /><path class="dots" d=${dots} /></g>`;
              })
        }
        ${
          mark.at !== null &&
          points.length > 0 &&
          html`<rect class="chosen" x=${x(Math.min(mark.at, mark.from ?? mark.at))} y=${TOP}
            width=${slot * (Math.abs(mark.at - (mark.from ?? mark.at)) + 1)} height=${INNER} />
          <line class="cross" x1=${x(mark.at) + slot / 2} x2=${x(mark.at) + slot / 2} y1=${TOP} y2=${TOP + INNER} />`
        }
      </svg>
    </div>
    <span class="when dim">${shown ? stamp(shown.at, step, true) : ""}</span>
  </figure>`;
}

const number = (value, format) => (value === null || value === undefined ? "–" : format(value));

function stack(point, index, series, x, y, slot) {
  let below = 0;
  return series.map((one) => {
    const size = point[one.name];
    if (!size) return null;
    const [from, to] = [below, (below += size)];
    return html`<rect key=${`${index} ${one.name}`} class="pillar ${one.look}" data-name=${one.name} x=${x(index) + slot * 0.1}
      width=${Math.max(1, slot * 0.8)} y=${y(to)} height=${Math.max(1, y(from) - y(to))} />`;
  });
}

// Through the middles of the steps; a step without a value breaks the line. One that stands alone is a dot.
function curve(points, name, x, y, slot) {
  let [lines, dots] = ["", ""];
  points.forEach((point, index) => {
    if (point[name] === null) return;
    const isFirst = index === 0 || points[index - 1][name] === null;
    const place = `${(x(index) + slot / 2).toFixed(1)} ${y(point[name]).toFixed(1)}`;
    if (isFirst && (index === points.length - 1 || points[index + 1][name] === null)) dots += `M${place}h0.01`;
    else lines += `${isFirst ? "M" : "L"}${place}`;
  });
  return { lines, dots };
}

// The next number whose half is easy to read too; times in seconds, minutes and hours.
const TIMES = [60, 120, 240, 600, 1200, 2400, 3600, 7200, 14_400, 43_200, 86_400, 172_800, 345_600, 864_000];

function rounded(most, isTime) {
  if (isTime && most > 40) return TIMES.find((one) => one >= most) || most;
  const power = 10 ** Math.floor(Math.log10(most || 1));
  const found = [1, 2, 4, 10].map((one) => one * power).find((one) => one >= most);
  return isTime ? found : Math.max(2, found);
}

function brief(seconds) {
  if (seconds === 0) return "0";
  if (seconds < 1) return t("unit_ms", Math.round(seconds * 1000));
  if (seconds < 60) return t("unit_s", Number(seconds.toFixed(1)));
  if (seconds < 3600) return t("unit_min", Number((seconds / 60).toFixed(1)));
  return seconds < 172_800 ? t("unit_h", Number((seconds / 3600).toFixed(1))) : t("unit_d", Number((seconds / 86_400).toFixed(1)));
}

function ticks(points, wide) {
  const every = Math.max(1, Math.ceil(points.length / Math.max(1, Math.floor(wide / 90))));
  return points.map((_, index) => index).filter((index) => index % every === 0 && index < points.length - every / 2);
}

const stamp = (at, step, isFull = false) =>
  step >= 86_400 ? day(at) : isFull || step >= 3600 ? `${day(at).slice(5)} ${clock(at).slice(0, 5)}` : clock(at).slice(0, 5);

function useWidth(box) {
  const [width, set] = useState(480);
  useLayoutEffect(() => {
    const seen = new ResizeObserver((entries) => set(Math.max(200, Math.round(entries[0].contentRect.width))));
    seen.observe(box.current);
    return () => seen.disconnect();
  }, []);
  return width;
}

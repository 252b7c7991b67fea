// Draws nodes and edges: laid out in a worker, moved with the mouse, fingers or keys, and drawn again only where a status
// has changed.
import { plural, said, t } from "../i18n.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { classOf, shapeOf } from "../parts.js";
import { go, useKept } from "../router.js";

const WIDTH = 168;
const HEIGHT = 34;
// Smaller than this, words cannot be read and are left out.
const LEGIBLE = 0.45;

// Nodes that `isDimmed` says are drawn pale; `critical` has ids of nodes and, joined by a space, of edges; a click chooses.
export function Drawing({ nodes, edges, isDimmed, critical, chosen, choose }) {
  const shape = nodes.map((node) => node.id).join() + edges.join();
  const layout = useLayout(nodes, edges, shape);
  const svg = useRef(null);
  const [view, setView] = useKept("drawing", null);
  const [focused, setCurrent] = useState(null);
  const current = focused || chosen;
  const box = useBox(svg);
  const whole = layout && fitted(layout, box);
  const shown = view || whole || { x: 0, y: 0, scale: 1 };
  const drawn = useRef(shape);
  useEffect(() => {
    if (drawn.current !== shape) setView(null);
    drawn.current = shape;
  }, [shape]);
  usePointers(svg, shown, setView);
  if (!nodes.length) return html`<p class="empty">${t("no_jobs")}</p>`;
  const zoom = (factor) => setView(zoomed(shown, factor, box.width / 2, box.height / 2));
  const here = current && layout?.at[current] ? current : nodes[0].id;
  const pressed = (event) => {
    const turn = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (turn && layout) {
      event.preventDefault();
      const next = neighbour(layout, here, turn);
      setCurrent(next);
      setView(brought(shown, layout.at[next], box));
      requestAnimationFrame(() => document.getElementById(`node-${next}`)?.focus());
    } else if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 1.3 : 1 / 1.3);
    else if (event.key === "0") setView(null);
    else if (event.key === " ") choose(here);
    else if (event.key === "Enter") opened(nodes.find((node) => node.id === here));
    else return;
    event.preventDefault();
  };
  const opened = (node) => (node.members ? choose(node.id) : go(["jobs", node.job.job_id]));
  return html`<div style=${{ position: "relative" }}>
    <svg ref=${svg} class="graph ${shown.scale < LEGIBLE ? "far" : ""}" role="group"
      aria-label=${t("graph_keys")} onKeyDown=${pressed}
      data-ready=${String(Boolean(layout))}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerUnits="userSpaceOnUse" markerWidth="9" markerHeight="9" orient="auto">
        <path d="M0 0 8 4 0 8Z" fill="#8b949d" /></marker></defs>
      ${
        layout &&
        html`<g transform=${`translate(${shown.x} ${shown.y}) scale(${shown.scale})`}>
        <${Edges} layout=${layout} critical=${critical} />
        ${nodes.map(
          (node) =>
            layout.at[node.id] &&
            html`<${Node} key=${node.id} node=${node} at=${layout.at[node.id]} status=${node.job.status} note=${node.note}
              isCurrent=${node.id === here} isChosen=${node.id === chosen} isCritical=${critical.has(node.id)}
              isDimmed=${isDimmed(node)} fraction=${node.fraction} focus=${setCurrent} choose=${choose} open=${opened} />`,
        )}
      </g>`
      }
    </svg>
    <div class="actions" style=${{ position: "absolute", right: "8px", top: "8px" }}>
      <button aria-label=${t("zoom_in")} onClick=${() => zoom(1.4)}>+</button>
        <button aria-label=${t("zoom_out")} onClick=${() => zoom(1 / 1.4)}>−</button>
        <button onClick=${() => setView(null)}>${t("fit")}</button></div>
    ${!layout && html`<p class="empty">${t("drawing_more", plural(nodes.length, "job"))}</p>`}
  </div>`;
}

function Edges({ layout, critical }) {
  return useMemo(
    () =>
      layout.edges.map(
        ([ends, points], index) => html`<path key=${index} class="edge ${critical.has(ends) ? "critical" : ""}" marker-end="url(#tip)"
          d=${path(points)} />`,
      ),
    [layout, critical],
  );
}

function Node({ node, at, status, note = "", isCurrent, isChosen, isCritical, isDimmed, fraction = null, focus, choose, open }) {
  const words = [node.name, said("status", status), note].filter(Boolean).join(", ");
  const looks = ["node", classOf(status), isDimmed && "dimmed", isChosen && "chosen", isCritical && "critical"].filter(Boolean).join(" ");
  return useMemo(
    () => html`<g id=${`node-${node.id}`} class=${looks}
      transform=${`translate(${at.x - WIDTH / 2} ${at.y - HEIGHT / 2})`}
      role="button" tabindex=${isCurrent ? 0 : -1} aria-label=${words} aria-pressed=${String(isChosen)} data-status=${status}
        onFocus=${() => focus(node.id)} onClick=${() => choose(node.id)} onDblClick=${() => open(node)}>
      <title>${words}</title>
      ${node.members && html`<rect class="behind" x="4" y="-4" width=${WIDTH} height=${HEIGHT} rx="5" />`}
      <rect width=${WIDTH} height=${HEIGHT} rx="5" /><rect class="fill" width=${WIDTH} height=${HEIGHT} rx="5" />
      ${fraction !== null && html`<rect class="done" y=${HEIGHT - 4} width=${Math.max(0, Math.min(1, fraction)) * WIDTH} height="4" rx="2" />`}
      <path class="icon" transform="translate(10 11)" d=${shapeOf(status)} />
      <svg width=${WIDTH - 6} height=${HEIGHT}><text x="29" y="21">${cut(node.name, 20)}</text></svg>
    </g>`,
    [node.id, words, node.job.job_id, at.x, at.y, isCurrent, looks, fraction, choose],
  );
}

// A name of so many columns at most. Letters of East Asian scripts are two columns wide.
function cut(name, columns) {
  const wide = (sign) => (sign.codePointAt(0) >= 0x1100 ? 2 : 1);
  const signs = [...name];
  if (signs.reduce((sum, sign) => sum + wide(sign), 0) <= columns) return name;
  let room = columns - 1;
  const end = signs.findIndex((sign) => (room -= wide(sign)) < 0);
  return `${signs.slice(0, end).join("")}…`;
}

// In a worker, so that a thousand nodes do not stop the page.
function useLayout(nodes, edges, shape) {
  const [layout, set] = useState(null);
  useEffect(() => {
    if (!nodes.length) return undefined;
    const worker = new Worker(new URL("../layout-worker.js", import.meta.url), { type: "module" });
    worker.onmessage = (event) => set(event.data);
    worker.postMessage({ nodes: nodes.map((node) => node.id), edges, width: WIDTH, height: HEIGHT });
    return () => worker.terminate();
  }, [shape]);
  return layout;
}

function useBox(svg) {
  const [box, set] = useState({ width: 900, height: 500 });
  useEffect(() => {
    const seen = new ResizeObserver((entries) =>
      set({ width: entries[0].contentRect.width || 900, height: entries[0].contentRect.height || 500 }),
    );
    if (svg.current) seen.observe(svg.current);
    return () => seen.disconnect();
  }, []);
  return box;
}

function usePointers(svg, shown, setView) {
  const latest = useRef(shown);
  latest.current = shown;
  useEffect(() => {
    const place = svg.current;
    if (!place) return undefined;
    let grip = null;
    let hasMoved = false;
    const down = (event) => {
      grip = { x: event.clientX, y: event.clientY, view: latest.current };
      hasMoved = false;
    };
    const move = (event) => {
      if (!grip) return;
      const [dx, dy] = [event.clientX - grip.x, event.clientY - grip.y];
      if (!hasMoved && Math.hypot(dx, dy) < 4) return;
      hasMoved = true;
      setView({ ...grip.view, x: grip.view.x + dx, y: grip.view.y + dy });
    };
    const up = () => (grip = null);
    // The end of a drag is not a click on what lies under it.
    const click = (event) => hasMoved && (event.stopPropagation(), (hasMoved = false));
    const wheel = (event) => {
      event.preventDefault();
      const corner = place.getBoundingClientRect();
      setView(
        zoomed(latest.current, Math.exp(-event.deltaY / 500), event.clientX - corner.left, event.clientY - corner.top),
      );
    };
    place.addEventListener("pointerdown", down);
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
    place.addEventListener("click", click, true);
    place.addEventListener("wheel", wheel, { passive: false });
    return () => {
      place.removeEventListener("pointerdown", down);
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", up);
      place.removeEventListener("click", click, true);
      place.removeEventListener("wheel", wheel);
    };
  }, []);
}

function fitted(layout, box) {
  const scale = Math.min(1, (box.width - 32) / layout.width, (box.height - 32) / layout.height);
  return { scale, x: (box.width - layout.width * scale) / 2, y: (box.height - layout.height * scale) / 2 };
}

function zoomed(view, factor, x, y) {
  const scale = Math.max(0.02, Math.min(3, view.scale * factor));
  const ratio = scale / view.scale;
  return { scale, x: x - (x - view.x) * ratio, y: y - (y - view.y) * ratio };
}

// Moved just so far that the node can be seen, and close enough to be read.
function brought(view, at, box) {
  const scale = Math.max(view.scale, LEGIBLE);
  const [x, y] = [
    at.x * scale + (scale === view.scale ? view.x : box.width / 2 - at.x * scale),
    at.y * scale + (scale === view.scale ? view.y : box.height / 2 - at.y * scale),
  ];
  const isSeen = x > 60 && x < box.width - 60 && y > 40 && y < box.height - 40;
  return isSeen && scale === view.scale
    ? view
    : { scale, x: box.width / 2 - at.x * scale, y: box.height / 2 - at.y * scale };
}

function neighbour(layout, from, [dx, dy]) {
  const here = layout.at[from];
  let [best, least] = [from, Infinity];
  for (const [id, at] of Object.entries(layout.at)) {
    const along = (at.x - here.x) * dx + (at.y - here.y) * dy;
    const aside = Math.abs((at.x - here.x) * dy) + Math.abs((at.y - here.y) * dx);
    if (along > 1 && along + 2 * aside < least) [best, least] = [id, along + 2 * aside];
  }
  return best;
}

const path = (points) =>
  points.map(({ x, y }, index) => `${index ? "L" : "M"}${Math.round(x)} ${Math.round(y)}`).join("");

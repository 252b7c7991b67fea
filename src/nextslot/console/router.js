// Where we are is the part of the address after the #, so that every view can be linked, kept and gone back to.
import { useEffect, useMemo, useState } from "./lib.js";

export function here() {
  // Lines of a log stand at the end: #/jobs/ID#L120, #/jobs/ID#L120-L130.
  const [, route, from, until] = location.hash.match(/^#?(.*?)(?:#L(\d+)(?:-L(\d+))?)?$/s);
  const [path, query = ""] = route.split(/\?(.*)/s);
  const parts = path.split("/").filter(Boolean).map(decoded);
  const lines = from ? [Number(from), Number(until || from)] : null;
  return { view: parts[0] || "overview", parts: parts.slice(1), query: Object.fromEntries(new URLSearchParams(query)), lines };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function link(parts, query, mark = "") {
  const path = [].concat(parts).map(encodeURIComponent).join("/");
  const given = Object.entries(query || {}).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  return `#/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}${mark && `#${mark}`}`;
}

export function go(parts, query) {
  location.hash = link(parts, query).slice(1);
}

// The same view with another query: no step in the history for each letter typed.
export function change(parts, query, mark) {
  history.replaceState(history.state, "", link(parts, query, mark));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

// Each entry of the history has a number. What was seen at it, and how far down, is kept until the page is closed.
const kept = new Map();
let entries = Date.now();
const entry = () => {
  if (!history.state?.entry) history.replaceState({ entry: ++entries }, "");
  return history.state.entry;
};

// How far down the user was when the buttons of the browser led here; null for a new entry. Read at once, since the page
// scrolls by itself when its content changes.
let before = null;
addEventListener("popstate", () => (before = kept.get(`${history.state?.entry} scroll`) ?? null));

export function arrive() {
  entry();
  const found = before;
  before = null;
  return found;
}

// Kept at an entry of the history: the entry's number with a name.
export const keep = (name, value) => kept.set(`${entry()} ${name}`, value);
export const recall = (name) => kept.get(`${history.state?.entry} ${name}`);

history.scrollRestoration = "manual";
addEventListener("scroll", () => history.state?.entry && keep("scroll", scrollY), { passive: true });

// Rows may still be on their way: tries for two seconds, or until the user does something.
export function scrollBack(wanted) {
  const end = performance.now() + 2000;
  const signs = ["wheel", "keydown", "pointerdown"];
  let isOver = false;
  const stop = () => {
    isOver = true;
    for (const name of signs) removeEventListener(name, stop);
  };
  const step = () => {
    if (isOver) return;
    scrollTo(0, wanted);
    if (Math.abs(scrollY - wanted) < 2 || performance.now() > end) stop();
    else requestAnimationFrame(step);
  };
  for (const name of signs) addEventListener(name, stop);
  step();
}

// A state that is still there when the user comes back to this entry of the history.
export function useKept(name, initial) {
  const [value, set] = useState(() => recall(name) ?? initial);
  useEffect(() => void keep(name, value), [value]);
  return [value, set];
}

export function useHere() {
  const [hash, set] = useState(location.hash);
  useEffect(() => {
    const moved = () => set(location.hash);
    addEventListener("hashchange", moved);
    moved(); // It may have changed between the first drawing and now.
    return () => removeEventListener("hashchange", moved);
  }, []);
  return useMemo(here, [hash]);
}

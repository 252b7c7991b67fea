// Where we are is the part of the address after the #, so that every view can be linked, kept and gone back to.
import { useEffect, useMemo, useState } from "./lib.js";

export function here() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { view: parts[0] || "now", parts: parts.slice(1), query: Object.fromEntries(new URLSearchParams(query)) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function link(parts, query) {
  const path = [].concat(parts).map(encodeURIComponent).join("/");
  const given = Object.entries(query || {}).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  return `#/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

export function go(parts, query) {
  location.hash = link(parts, query).slice(1);
}

// The same view with another query: no step in the history for each letter typed.
export function change(parts, query) {
  history.replaceState(null, "", link(parts, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
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

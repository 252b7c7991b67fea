// The HTTP API as functions. Who asks is known by a key that stays in this tab and is sent as a header.
import { t } from "./i18n.js";
const ROOT = new URL("../", import.meta.url);
const STORED = "nextslot-key";

export class Problem extends Error {
  constructor(status, content) {
    super(content.detail || t("the_server_answered", status));
    this.status = status;
    this.code = content.code || "";
    this.content = content;
    this.errors = Array.isArray(content.errors) ? content.errors : [];
  }
}

export const key = {
  get: () => sessionStorage.getItem(STORED) || "",
  set: (text) => (text ? sessionStorage.setItem(STORED, text) : sessionStorage.removeItem(STORED)),
};

// Called when the server wants a key, or another one.
let onUnauthorized = () => {};
export function whenUnauthorized(call) {
  onUnauthorized = call;
}

export function address(path, query) {
  const url = new URL(path.replace(/^\//, ""), ROOT);
  for (const [name, value] of Object.entries(query || {})) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

export async function send(method, path, { query, body, signal, headers, keepalive } = {}) {
  const sent = { ...headers };
  if (key.get()) sent["X-API-Key"] = key.get();
  if (body !== undefined) sent["Content-Type"] = "application/json";
  if (method !== "GET") answers.clear();
  let answer;
  try {
    answer = await fetch(address(path, query), {
      method,
      signal,
      headers: sent,
      keepalive,
      cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: t("the_server_does_not_answer"), code: "unreachable" });
  }
  if (method !== "GET") answers.clear();
  if (answer.ok) return answer;
  const problem = new Problem(answer.status, await content(answer));
  if (answer.status === 401) onUnauthorized(problem);
  throw problem;
}

async function content(answer) {
  try {
    return await answer.json();
  } catch (error) {
    // Nobody waits for it any more: then it is no answer at all.
    if (error.name === "AbortError") throw error;
    return {};
  }
}

async function json(method, path, options) {
  const answer = await send(method, path, options);
  return answer.status === 204 ? null : answer.json();
}

// The answer of a GET that several parts of a page ask for: one request for all of them, until something is changed here
// or the answer is two seconds old.
const SHARED_MS = 2000;
const answers = new Map();
export function shared(path) {
  const found = answers.get(path);
  if (found && performance.now() - found.at < SHARED_MS) return found.answer;
  const one = { at: Infinity, answer: get(path) };
  answers.set(path, one);
  // Counted from its arrival; a refusal is not kept.
  one.answer.then(() => (one.at = performance.now()), () => answers.get(path) === one && answers.delete(path));
  return one.answer;
}

export const get = (path, query, signal) => json("GET", path, { query, signal });
export const post = (path, body, options) => json("POST", path, { body: body ?? {}, ...options });
export const put = (path, body) => json("PUT", path, { body });
export const patch = (path, body) => json("PATCH", path, { body });
export const remove = (path) => json("DELETE", path);

// Items of a list until there are enough. A filter may leave pages short, or empty, that are not the last.
export async function pages(path, query, { enough, cursor = null, signal, most = 40, onPage = null }) {
  const items = [];
  for (let asked = 0; asked < most; asked++) {
    const found = await get(path, { ...query, cursor }, signal);
    items.push(...found.items);
    cursor = found.next_cursor;
    if (cursor === null || items.length >= enough) break;
    onPage?.(items);
  }
  return { items, cursor };
}

// Saved under its own name: a link could not send the key.
export async function download(path, name) {
  const answer = await send("GET", path);
  const url = URL.createObjectURL(await answer.blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// Server-sent events through fetch, since EventSource can send no key. Yields {id, event, data}.
export async function* stream(path, { query, headers, signal, onBytes }) {
  const answer = await send("GET", path, { query, signal, headers: { Accept: "text/event-stream", ...headers } });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      onBytes?.();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const one = parsed(block);
        if (one) yield one;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const found = { id: null, event: "message", data: null };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon <= 0) continue;
    const name = line.slice(0, colon);
    if (name in found) found[name] = line.slice(colon + 2);
  }
  if (found.data === null) return null;
  found.data = JSON.parse(found.data);
  return found;
}

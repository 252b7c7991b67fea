// A run's log, followed as it grows. Text goes into text nodes in blocks that the browser lays out only when seen.
import { t } from "../i18n.js";
import { attempt, Empty, Section, sentence } from "../parts.js";
import { Problem, send, stream } from "../api.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { size } from "../words.js";

const TAIL_LINES = 2000;
const BLOCK = 24_000;
// More than this is not kept in the page: the beginning goes, and the page says so.
const KEPT = 12_000_000;

export function Log({ runId, hasEnded }) {
  const place = useRef(null);
  const isFollowing = useRef(true);
  const [follows, setFollows] = useState(true);
  const [isWhole, setWhole] = useState(false);
  const [told, tell] = useState({ bytes: 0, state: "", isCut: false });
  const follow = (value) => {
    isFollowing.current = value;
    setFollows(value);
    if (value && place.current) place.current.scrollTop = place.current.scrollHeight;
  };
  useEffect(() => {
    const abort = new AbortController();
    const page = new Paper(place.current, isFollowing);
    read(runId, isWhole, page, tell, abort.signal);
    return () => (abort.abort(), page.end());
  }, [runId, isWhole]);
  const scrolled = () => {
    const box = place.current;
    if (!box) return; // A last scroll of a log that is not shown any more.
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    if (isAtEnd !== isFollowing.current && !moving.has(box)) follow(isAtEnd);
  };
  const save = () => attempt(() => saved(runId));
  return html`<${Section} title=${t("log")} actions=${html`
      <span class="dim">${size(told.bytes)} ${told.state}${told.isCut ? t("the_beginning_is_not_shown") : ""}</span>
      ${!isWhole && html`<button onClick=${() => setWhole(true)}>${t("from_the_start")}</button>`}
      <button aria-pressed=${String(follows)} onClick=${() => follow(!follows)}>${t("follow")}</button>
      <button onClick=${save}>${t("save")}</button>`}>
    ${told.refusal && html`<${Empty}>${told.refusal}<//>`}
    <pre class="log" ref=${place} hidden=${Boolean(told.refusal)} tabindex="0" aria-label=${t("log")} data-ended=${String(hasEnded)} onScroll=${scrolled}>
      </pre>
  <//>`;
}

// Boxes that we scroll ourselves at this moment.
const moving = new WeakSet();

class Paper {
  constructor(box, isFollowing) {
    this.box = box;
    this.isFollowing = isFollowing;
    this.kept = 0;
    this.isCut = false;
    this.waiting = [];
    this.clear();
  }

  clear() {
    this.box.textContent = "";
    this.block = null;
    this.room = 0;
    this.kept = 0;
  }

  // Written once per frame, however many pieces came.
  write(text) {
    this.waiting.push(text);
    this.frame ??= requestAnimationFrame(() => this.flush());
  }

  flush() {
    this.frame = null;
    const text = this.waiting.join("");
    this.waiting = [];
    for (let at = 0; at < text.length;) at = this.#put(text, at);
    while (this.kept > KEPT && this.box.firstChild !== this.block) {
      this.kept -= this.box.firstChild.textContent.length;
      this.box.firstChild.remove();
      this.isCut = true;
    }
    if (!this.isFollowing.current) return;
    moving.add(this.box);
    this.box.scrollTop = this.box.scrollHeight;
    requestAnimationFrame(() => moving.delete(this.box));
  }

  end() {
    cancelAnimationFrame(this.frame);
  }

  // Blocks end with a line, so that no line is torn in two.
  #put(text, at) {
    if (this.block === null || this.room <= 0) {
      this.block = this.box.appendChild(document.createElement("div"));
      this.room = BLOCK;
    }
    let end = Math.min(text.length, at + this.room);
    const line = text.indexOf("\n", end - 1);
    if (end < text.length) end = line < 0 ? text.length : line + 1;
    const piece = text.slice(at, end);
    this.block.append(piece);
    this.room = piece.endsWith("\n") ? this.room - piece.length : Math.max(1, this.room - piece.length);
    this.kept += piece.length;
    return end;
  }
}

async function read(runId, isWhole, page, tell, signal) {
  let offset = null;
  let bytes = 0;
  for (let pause = 500; !signal.aborted; pause = Math.min(pause * 2, 10_000)) {
    try {
      const query = offset === null && !isWhole ? { tail: TAIL_LINES } : { offset: offset ?? 0 };
      for await (const one of stream(`api/job-runs/${runId}/log`, { query, signal })) {
        pause = 500;
        if (one.event === "end") {
          bytes = Math.max(bytes, one.data.offset);
          tell({ bytes, state: one.data.ended ? "" : "…", isCut: page.isCut });
          if (one.data.ended) return;
          break;
        }
        offset = Number(one.id);
        bytes = offset;
        page.write(one.data.text);
        tell({ bytes, state: t("so_far"), isCut: page.isCut });
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error instanceof Problem && error.status >= 400 && error.status < 500) {
        // Such as one that is on the disk of another node.
        tell({ bytes, state: "", isCut: page.isCut, refusal: sentence(error) });
        return;
      }
      tell({ bytes, state: t("so_far_the_line_is_lost"), isCut: page.isCut });
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

// Piece by piece, since one answer has a bound.
async function saved(runId) {
  const parts = [];
  for (let offset = 0; ;) {
    const answer = await send("GET", `api/job-runs/${runId}/log`, { query: { offset } });
    const part = await answer.arrayBuffer();
    if (!part.byteLength) break;
    parts.push(part);
    // What was cut from the middle is counted too.
    offset = Number(answer.headers.get("X-Log-Next"));
  }
  const url = URL.createObjectURL(new Blob(parts, { type: "text/plain" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: `${runId}.log` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

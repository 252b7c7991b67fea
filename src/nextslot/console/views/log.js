// A run's log: only the rows in sight are drawn, so that its length does not matter. The end comes first; all of it is
// fetched when it is needed: for its beginning, a search, a filter, a line that the address names.
import { t } from "../i18n.js";
import { attempt, Empty, keyOf, Section, sentence } from "../parts.js";
import { get, Problem, send, stream } from "../api.js";
import { rest } from "../live.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib.js";
import { LEVELS, Lines } from "../log-lines.js";
import { change, link } from "../router.js";
import { clock, count, plural, size, zoneName } from "../words.js";

const TAIL_LINES = 400;
const ROW = 18;
const SPARE = 8;
// Browsers do not draw boxes of any height: from here on a scrolled pixel is more than one.
const TALLEST = 12_000_000;
const WRAP = "nextslot-log-wrap";

// The log of the run, and beside it that of another attempt of its chain, if one is chosen.
export function Log({ job, lines }) {
  const [other, setOther] = useState(null);
  const together = useRef({ panes: new Set(), isOn: true });
  const [isTogether, setTogether] = useState(true);
  together.current.isOn = isTogether;
  const attempts = job.chain.filter((one) => one.job_id !== job.job_id && one.started_at);
  const compare = async (id) => {
    const found = id ? await attempt(() => get(`api/jobs/${id}`)) : null;
    setOther(found?.run ? found : null);
  };
  const choice =
    attempts.length > 0 &&
    html`<label class="unseen" for="beside">${t("beside_it")}</label>
    <select id="beside" class="narrowed" onChange=${(event) => compare(event.target.value)}>
      <option value="">${t("beside_it")}</option>${attempts.map(
        (one) => html`<option key=${one.job_id} value=${one.job_id}
      selected=${one.job_id === other?.job_id}>${t("attempt_2", one.attempt)}</option>`,
      )}</select>
    ${
      other &&
      html`<button aria-pressed=${String(isTogether)} onClick=${() => setTogether(!isTogether)}>${t("scroll_together")}
      </button>`
    }`;
  const pane = (one, extra) => html`<${Pane} key=${one.run.run_id} runId=${one.run.run_id} jobId=${one.job_id}
    hasEnded=${one.run.status !== null} together=${together} ...${extra} />`;
  const title = (one) => `${t("log")}: ${t("attempt_2", one.attempt)}`;
  return html`<div class=${other ? "beside" : ""}>
    ${pane(job, { title: other ? title(job) : t("log"), lines, choice })}
    ${other && pane(other, { title: title(other), lines: null, choice: null })}</div>`;
}

function Pane({ runId, jobId, title, hasEnded, lines, choice, together }) {
  const box = useRef(null);
  const log = useLog(runId);
  const [view, setView] = useState({ top: 0, height: 400, columns: 120, letter: 7.6 });
  const [wraps, setWraps] = useState(() => localStorage.getItem(WRAP) !== "no");
  const [least, setLeast] = useState(0);
  const [showsTimes, setTimes] = useState(false);
  const [needle, setNeedle] = useState("");
  const [follows, setFollows] = useState(!lines);
  const [wanted, setWanted] = useState(null); // A line to bring into sight, once it is there.
  const isMoving = useRef(false);
  const seen = useRef(0);
  const sight = useRef(1); // The number of the first line in sight.
  const model = log.model;
  model.arrange(wraps ? view.columns - (showsTimes ? 9 : 0) : 0, least);
  const rows = model.rowLines.length;
  const tall = rows * ROW;
  const stretch = tall > TALLEST ? (tall - view.height) / (TALLEST - view.height) : 1;
  const first = Math.max(0, Math.floor((view.top * stretch) / ROW) - SPARE);
  const hits = useHits(model, needle, least, log.version, () => sight.current - model.first);
  const until = Math.min(rows, first + Math.ceil(view.height / ROW) + 2 * SPARE);

  const scrollTo = (pixels) => {
    isMoving.current = true;
    box.current.scrollTop = pixels / stretch;
    requestAnimationFrame(() => (isMoving.current = false));
  };
  const bring = (line, at = 0) => {
    setFollows(false);
    scrollTo(model.rowOf(line, at) * ROW - view.height / 3);
  };
  const follow = (value) => {
    setFollows(value);
    if (!value) seen.current = model.count;
    else scrollTo(tall);
  };
  const scrolled = () => {
    const place = box.current;
    if (!place) return; // A last scroll of a log that is not shown any more.
    setView((old) => ({ ...old, top: place.scrollTop }));
    sight.current = model.first + (model.rowLines[Math.floor((place.scrollTop * stretch) / ROW)] ?? 0);
    for (const call of together.current.isOn ? together.current.panes : []) call(place);
    if (isMoving.current) return;
    const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 40;
    if (isAtEnd !== follows) follow(isAtEnd);
    if (place.scrollTop < 200 && model.first > 1) log.wantAll();
  };
  useLayoutEffect(() => {
    const place = box.current;
    const measure = () => {
      const letter = place.querySelector(".measure").getBoundingClientRect().width / 100 || 7.6;
      const columns = Math.max(20, Math.floor((place.clientWidth - 12 - 8 * letter - 24) / letter));
      setView((old) => ({ ...old, height: place.clientHeight, columns, letter }));
    };
    const observer = new ResizeObserver(measure);
    observer.observe(place);
    measure();
    const panes = together.current.panes;
    const moved = (source) => {
      if (source === place || isMoving.current) return;
      isMoving.current = true;
      place.scrollTop = source.scrollTop;
      requestAnimationFrame(() => (isMoving.current = false));
    };
    panes.add(moved);
    return () => (observer.disconnect(), panes.delete(moved));
  }, []);
  // New lines keep the end in sight, or the lines that are read. Lines that come before them do so too.
  const before = useRef(model);
  useLayoutEffect(() => {
    if (before.current !== model) {
      before.current = model;
      if (!follows && wanted === null) scrollTo(model.rowOf(sight.current - model.first) * ROW);
    }
    if (follows) scrollTo(tall);
  }, [log.version, follows, tall, view.height]);
  useEffect(() => {
    if (!lines) return;
    setLeast(0);
    setWanted(lines[0]);
  }, [lines?.join(), runId]);
  useEffect(() => {
    if (wanted === null) return;
    const index = wanted - model.first;
    if (index < 0) log.wantAll();
    if (index < 0 || !model.count || (index >= model.count && !log.isDone)) return;
    setWanted(null);
    bring(Math.min(index, model.count - 1));
  }, [wanted, log.version]);
  useEffect(() => {
    if (needle || least) log.wantAll();
  }, [needle, least]);
  useEffect(() => {
    const hit = hits.current;
    if (hit) bring(hit[0], hit[1]);
  }, [hits.current?.join()]);
  const toFirstError = async () => {
    await log.wantAll();
    const found = log.latest().firstError();
    if (found >= 0) setWanted(log.latest().first + found);
  };
  const wrap = () => {
    localStorage.setItem(WRAP, wraps ? "no" : "yes");
    setWraps(!wraps);
  };
  const choose = (event, number) => {
    event.preventDefault();
    const isRange = event.shiftKey && lines;
    const range = isRange && [lines[0], number].sort((one, other) => one - other);
    change(["jobs", jobId], {}, isRange ? `L${range[0]}-L${range[1]}` : `L${number}`);
  };
  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const key = keyOf(event);
    if (key === "n" || key === "N") hits.step(key === "n" ? 1 : -1);
    else if (key === "e") toFirstError();
    // The box has no scrolling of its own for these where its height is stretched.
    else if (event.key === "Home") follow(false);
    else if (event.key === "End") follow(true);
  };
  const fresh = follows ? 0 : Math.max(0, model.count - seen.current);
  const range = lines && [lines[0], lines[1] ?? lines[0]];
  const drawn = [];
  for (let index = first; index < until; index++) {
    const row = model.row(index);
    const number = model.first + row.line;
    const isWanted = range && number >= range[0] && number <= range[1];
    drawn.push(html`<${Row} key=${index} row=${row} number=${log.isCounted ? number : null} jobId=${jobId} isWanted=${isWanted}
      stamp=${showsTimes && row.from === 0 ? model.stampOf(row.line) : null} showsTimes=${showsTimes} zone=${zoneName()}
      colours=${model.colours.get(row.line)} needle=${needle} hit=${hits.current} choose=${choose} />`);
  }
  const find = (event) => {
    if (keyOf(event) !== "Enter") return;
    event.preventDefault();
    hits.step(event.shiftKey ? -1 : 1);
  };
  const numberWidth = `${Math.max(4, String(model.first + model.count).length)}ch`;
  return html`<${Section} title=${title} actions=${choice}>
    <div class="logbar">
      <div class="search"><label class="unseen" for=${`find-${runId}`}>${t("find_in_the_log")}</label>
        <input id=${`find-${runId}`} type="search" placeholder=${t("find_in_the_log")} value=${needle}
          onInput=${(event) => setNeedle(event.target.value)} onKeyDown=${find} />
        <span class="dim hits" role="status">${needle ? hits.words : ""}</span>
        <button aria-label=${t("hit_before")} disabled=${!hits.number} onClick=${() => hits.step(-1)}>↑</button>
        <button aria-label=${t("hit_after")} disabled=${!hits.number} onClick=${() => hits.step(1)}>↓</button></div>
      <label class="unseen" for=${`level-${runId}`}>${t("levels")}</label>
      <select id=${`level-${runId}`} class="narrowed" onChange=${(event) => setLeast(Number(event.target.value))}>
        ${[0, 2, 3, 4].map((one) => html`<option key=${one} value=${one} selected=${one === least}>${t(["level_all", "", "level_info", "level_warning", "level_error"][one])}</option>`)}</select>
      <div class="actions">
        <button onClick=${toFirstError} title="e">${t("first_error")}</button>
        <button aria-pressed=${String(wraps)} onClick=${wrap}>${t("wrap")}</button>
        ${model.hasStamps && html`<button aria-pressed=${String(showsTimes)} onClick=${() => setTimes(!showsTimes)}>${t("times_in", zoneName())}</button>`}
        ${!hasEnded && html`<button aria-pressed=${String(follows)} onClick=${() => follow(!follows)}>${t("follow")}</button>`}
        <button onClick=${() => attempt(() => saved(runId))}>${t("save")}</button></div>
      <span class="dim grow">${[size(log.bytes), log.isCounted && model.first === 1 && plural(model.count, "line"), log.state].filter(Boolean).join(" · ")}</span>
    </div>
    ${log.refusal && html`<${Empty}>${log.refusal}<//>`}
    <div class="logframe" hidden=${Boolean(log.refusal)}>
      <pre class="log ${wraps ? "" : "plain"}" ref=${box} tabindex="0" role="group" aria-label=${title} data-ended=${String(hasEnded)}
        data-lines=${model.count} data-whole=${String(model.first === 1)} onScroll=${scrolled} onKeyDown=${pressed}
        style=${{ height: `${Math.min(60, Math.max(6, rows + 1)) * ROW}px` }}><span class="measure" aria-hidden="true">${"0".repeat(100)}</span><div
        class="sheet" style=${{ height: `${Math.min(tall, TALLEST)}px`, minWidth: wraps ? "" : `${Math.round((model.longest + 12) * view.letter)}px` }}><div
        class="drawn" style=${{ transform: `translateY(${view.top - (view.top * stretch - first * ROW)}px)`, "--number": numberWidth }}>${drawn}</div></div></pre>
      ${!rows && log.isDone && html`<p class="empty over">${least ? t("no_lines_of_this_level") : t("it_has_said_nothing")}</p>`}
      ${fresh > 0 && !hasEnded && html`<button class="primary below" onClick=${() => follow(true)}>↓ ${plural(fresh, "new line")}</button>`}
    </div>
  <//>`;
}

function Row({ row, number, jobId, isWanted, stamp, showsTimes, zone, colours, needle, hit, choose }) {
  const isFirst = row.from === 0;
  return useMemo(
    () => html`<div class="row level-${LEVELS[row.level]} ${isWanted ? "is-wanted" : ""}" id=${isFirst && number ? `L${number}` : undefined}
      data-line=${number}><a class="no" tabindex="-1" aria-hidden="true" href=${link(["jobs", jobId], {}, `L${number}`)}
      onClick=${(event) => choose(event, number)}>${isFirst && number ? number : ""}</a>${
        showsTimes && html`<span class="stamp">${stamp === null ? "" : clock(stamp)}</span>`
      }<span class="said">${pieces(row, colours, needle, hit)}</span></div>`,
    [row.line, row.from, row.text, row.level, number, isWanted, stamp, showsTimes, zone, colours, needle, hit?.join(), choose.line],
  );
}

// The text of a row in parts, each with its colours and marked if it is found.
function pieces({ line, from, until, text }, colours, needle, hit) {
  const marks = needle ? found(text, needle) : [];
  if (!colours && !marks.length) return text;
  const edges = new Set([0, text.length]);
  for (const [start, end] of marks) edges.add(start).add(end);
  const inside = (colours || []).filter(([start, end]) => end > from && start < until);
  for (const [start, end] of inside) edges.add(Math.max(0, start - from)).add(Math.min(text.length, end - from));
  const places = [...edges].sort((one, other) => one - other);
  return places.slice(0, -1).map((start, index) => {
    const end = places[index + 1];
    const classes = inside.find((one) => one[0] - from <= start && one[1] - from >= end)?.[2] || "";
    const mark = marks.find((one) => one[0] <= start && one[1] >= end);
    const part = text.slice(start, end);
    if (mark) return html`<mark key=${start} class="${classes} ${hit && hit[0] === line && hit[1] === from + mark[0] ? "is-current" : ""}">${part}</mark>`;
    return classes ? html`<span key=${start} class=${classes}>${part}</span>` : part;
  });
}

function found(text, needle) {
  const marks = [];
  const wanted = new RegExp(needle.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu");
  for (const one of text.matchAll(wanted)) {
    marks.push([one.index, one.index + one[0].length]);
    if (marks.length > 500) break;
  }
  return marks;
}

// All hits of a text. They are looked for a few milliseconds at a time, so that typing stays quick.
// The first is the one at or after the lines in sight.
function useHits(model, needle, least, version, lineInSight) {
  const [state, set] = useState({ hits: [], index: 0, isDone: true });
  const latest = useRef(state);
  latest.current = state;
  useEffect(() => {
    if (!needle) return void set({ hits: [], index: 0, isDone: true });
    let isGone = false;
    const hits = [];
    // The hit that is shown stays, also when lines have come before it.
    const { current } = latest;
    const isSame = current.needle === needle && current.hits.length > 0;
    const shown = isSame && current.hits[current.index];
    const sight = isSame ? shown[0] + current.model.first - model.first : lineInSight();
    const step = (line) => {
      if (isGone) return;
      const next = model.find(needle, line, hits);
      const near = hits.findIndex(([at, place]) => at > sight || (at === sight && place >= (isSame ? shown[1] : 0)));
      if (near >= 0 || next === null)
        set((old) => {
          const isOn = old.needle === needle && old.model === model && old.hits.length;
          return { hits: [...hits], needle, model, index: isOn ? Math.min(old.index, hits.length - 1) : Math.max(0, near), isDone: next === null };
        });
      if (next !== null) setTimeout(step, 0, next);
    };
    const timer = setTimeout(step, 150, 0);
    return () => ((isGone = true), clearTimeout(timer));
  }, [model, needle, least, Math.floor(version / 8)]);
  const number = state.hits.length;
  return {
    number,
    current: number ? state.hits[state.index] : null,
    step: (by) => number && set((old) => ({ ...old, index: (old.index + by + number) % number })),
    words: number ? t("hit_of", count(state.index + 1), `${count(number)}${state.isDone && number < 10_000 ? "" : "+"}`) : state.isDone ? t("not_found") : "…",
  };
}

// The lines of a run's log: first the end of it, then what is added; and all of it, once that is wanted.
function useLog(runId) {
  const [, draw] = useState(0);
  const state = useRef(null);
  state.current ||= new Reader(runId, () => draw((old) => old + 1));
  useEffect(() => {
    state.current.begin();
    return () => state.current.end();
  }, []);
  return state.current;
}

class Reader {
  constructor(runId, draw) {
    Object.assign(this, { runId, model: new Lines(), bytes: 0, state: t("loading_more"), refusal: "", version: 0 });
    this.isDone = false;
    this.isCounted = false;
    this.draw = draw;
    this.readers = new Set();
    this.all = null;
  }

  latest = () => this.model;

  async begin() {
    const abort = this.#reader();
    this.first = abort;
    let ready = () => {};
    this.ready = new Promise((resolve) => (ready = resolve));
    try {
      const query = { tail: TAIL_LINES };
      const answer = await send("GET", `api/job-runs/${this.runId}/log`, { query, signal: abort.signal });
      const bytes = new Uint8Array(await answer.arrayBuffer());
      const rest = unfinished(bytes);
      const line = Number(answer.headers.get("X-Log-Line") || 1);
      this.model = new Lines(line);
      this.isCounted = true;
      this.model.append(new TextDecoder().decode(bytes.subarray(0, bytes.length - rest)));
      this.#told(Number(answer.headers.get("X-Log-Size")), t("so_far"));
      ready();
      await this.#read(this.model, Number(answer.headers.get("X-Log-Next")) - rest, abort);
    } catch (error) {
      this.#failed(error);
    }
    ready();
  }

  end() {
    for (const one of this.readers) one.abort();
    this.isGone = true;
  }

  #reader() {
    const abort = new AbortController();
    this.readers.add(abort);
    return abort;
  }

  // Reads the log from its beginning; the lines that are shown stay until it has come as far as they have.
  async wantAll() {
    await this.ready;
    if (this.model.first === 1) return;
    this.all ||= new Promise((resolve) => {
      const abort = this.#reader();
      const model = new Lines();
      const wanted = this.bytes;
      const came = (bytes, isOver) => {
        if (this.model === model) return true;
        if (bytes < wanted && !isOver) {
          this.#told(this.bytes, t("loaded_so_far", `${Math.floor((100 * bytes) / wanted)} %`));
          return false;
        }
        this.model = model;
        this.first.abort();
        resolve();
        return true;
      };
      this.#read(model, 0, abort, came).catch((error) => (this.#failed(error), resolve()));
    });
    await this.all;
  }

  // Follows the log into a model from a byte on, until the run has ended.
  async #read(model, offset, abort, came = () => this.model === model) {
    for (let pause = 500; !abort.signal.aborted; pause = Math.min(pause * 2, 10_000)) {
      await rest.isOver(abort.signal);
      const signal = AbortSignal.any([abort.signal, rest.signal]);
      try {
        for await (const one of stream(`api/job-runs/${this.runId}/log`, { query: { offset }, signal })) {
          pause = 500;
          if (one.event === "end") {
            if (came(Math.max(offset, one.data.offset), one.data.ended)) {
              this.isDone = one.data.ended;
              this.#told(Math.max(this.bytes, offset, one.data.offset), one.data.ended ? "" : "…");
            }
            if (one.data.ended) return;
            break;
          }
          offset = Number(one.id);
          model.append(one.data.text);
          if (came(offset, false)) this.#told(Math.max(this.bytes, offset), t("so_far"));
        }
      } catch (error) {
        if (rest.isOn) continue;
        if (error.name === "AbortError" || (error instanceof Problem && error.status >= 400 && error.status < 500)) throw error;
        this.#told(this.bytes, t("so_far_the_line_is_lost"));
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  #failed(error) {
    if (error.name === "AbortError") return;
    // Such as one that is on the disk of another node.
    this.refusal = sentence(error);
    this.#told(this.bytes, "");
  }

  // Drawn once per frame, however many pieces came.
  #told(bytes, state) {
    Object.assign(this, { bytes, state });
    this.version += 1;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (!this.isGone) this.draw();
    });
  }
}

// How many bytes at the end are the beginning of a letter that is not complete.
function unfinished(bytes) {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back];
    if (byte >= 0xc0) return back < (byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2) ? back : 0;
    if (byte < 0x80) return 0;
  }
  return 0;
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
  const name = document.createElement("a");
  Object.assign(name, { href: url, download: `${runId}.log` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

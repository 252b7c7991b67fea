// The event stream: one for the whole page, read from where it was when the page opened, and resumed where it broke.
import { Problem, stream } from "./api.js";
import { useEffect, useRef, useState } from "./lib.js";

const SILENCE_MS = 40_000; // The server says something every 15 seconds.
const LONGEST_PAUSE_MS = 10_000;

// A browser opens six connections to a server at most, and each page holds one or two. So a page that has been out of
// sight for some seconds gives them back until it is looked at, or until notifications need them.
const REST_MS = 5_000;

class Rest {
  isOn = document.visibilityState === "hidden";
  #needed = 0;
  #timer = null;
  #awake = new AbortController();
  #wakes = new Set();

  constructor() {
    document.addEventListener("visibilitychange", this.#look);
  }

  // Aborted when the page goes to rest.
  get signal() {
    return this.#awake.signal;
  }

  need(change) {
    this.#needed += change;
    this.#look();
  }

  async isOver(signal) {
    if (this.isOn && !signal.aborted)
      await new Promise((resolve) => {
        this.#wakes.add(resolve);
        signal.addEventListener("abort", resolve);
      });
  }

  #look = () => {
    clearTimeout(this.#timer);
    if (document.visibilityState === "hidden" && !this.#needed) this.#timer = setTimeout(this.#begin, REST_MS);
    else if (this.isOn) {
      this.isOn = false;
      this.#awake = new AbortController();
      for (const wake of this.#wakes) wake();
      this.#wakes.clear();
    }
  };

  #begin = () => {
    this.isOn = true;
    this.#awake.abort();
  };
}

export const rest = new Rest();

class Live {
  state = "connecting"; // connecting, live, lost
  seen = 0;
  caughtUp = 0;
  #listeners = new Set();
  #watchers = new Set();
  #abort = null;
  #wake = () => {};

  listen(call) {
    this.#listeners.add(call);
    return () => this.#listeners.delete(call);
  }

  watch(call) {
    this.#watchers.add(call);
    return () => this.#watchers.delete(call);
  }

  start(after) {
    this.stop();
    this.seen = after;
    this.#run((this.#abort = new AbortController()));
  }

  stop() {
    this.#abort?.abort();
    this.#wake();
  }

  // For whoever does not want to wait for the next try.
  retry = () => this.#wake();

  async #run(abort) {
    let pause = 500;
    let wasLost = false;
    let hasRested = false;
    while (!abort.signal.aborted) {
      if (rest.isOn) {
        await rest.isOver(abort.signal);
        if (abort.signal.aborted) return;
        [wasLost, hasRested] = [false, true];
        this.#set("connecting");
      }
      const before = this.seen;
      const began = Date.now();
      try {
        await this.#read(abort, wasLost, hasRested);
      } catch (error) {
        if (abort.signal.aborted) return;
        if (error instanceof Problem && (error.status === 401 || error.status === 403)) return this.#set("refused");
      }
      if (abort.signal.aborted) return;
      if (rest.isOn) continue;
      wasLost = true;
      this.#set("lost");
      pause = this.seen > before || Date.now() - began > 5_000 ? 500 : Math.min(pause * 2, LONGEST_PAUSE_MS);
      await new Promise((resolve) => {
        this.#wake = resolve;
        setTimeout(resolve, pause);
      });
    }
  }

  async #read(abort, wasLost, hasRested) {
    const line = new AbortController();
    const end = () => line.abort();
    abort.signal.addEventListener("abort", end);
    let watchdog = setTimeout(end, SILENCE_MS);
    const onBytes = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(end, SILENCE_MS);
      if (this.state !== "live") this.#set("live", wasLost, hasRested);
    };
    const headers = { "Last-Event-ID": String(this.seen) };
    try {
      for await (const one of stream("api/events", { headers, signal: AbortSignal.any([line.signal, rest.signal]), onBytes })) {
        if (one.event === "end") return;
        this.seen = one.data.seq;
        if (wasLost) this.caughtUp += 1;
        for (const call of [...this.#listeners]) call(one.data);
      }
    } finally {
      clearTimeout(watchdog);
      abort.signal.removeEventListener("abort", end);
    }
  }

  #set(state, isBack = false, hasRested = false) {
    if (state === "live" && isBack) this.caughtUp = 0;
    this.state = state;
    for (const call of [...this.#watchers]) call({ state, isBack, hasRested });
  }
}

export const live = new Live();
addEventListener("online", live.retry);
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && live.retry());

// Loads now, when `deps` change, and, gently, after events that `concerns` says are about it. What is shown stays
// until the new is there; a failed load keeps it too.
// `gap`: events cause a load this many milliseconds later, so at most so often.
export function useLoad(load, deps, { concerns = null, every = 0, gap = 120 } = {}) {
  const [shown, show] = useState({ data: null, error: null, isLoading: true, asOf: 0 });
  const again = useRef(() => {});
  // As of the last drawing: what it is about may have grown since it was first asked for.
  const asked = useRef(concerns);
  asked.current = concerns;
  useEffect(() => {
    let abort = new AbortController();
    let timer = null;
    let isBusy = false;
    let isWanted = false;
    let isGone = false;
    show((before) => ({ ...before, isLoading: true }));
    const run = async () => {
      isBusy = true;
      isWanted = false;
      const began = performance.now();
      try {
        const data = await load(abort.signal);
        if (!isGone) show({ data, error: null, isLoading: false, asOf: began });
      } catch (error) {
        if (!isGone && error.name !== "AbortError") show((before) => ({ ...before, error, isLoading: false }));
      }
      isBusy = false;
      // A slow answer is asked for less often.
      if (isWanted && !isGone) wait(Math.max(250, 2 * (performance.now() - began)));
    };
    const wait = (milliseconds) => {
      isWanted = true;
      if (!isBusy && timer === null) timer = setTimeout(() => ((timer = null), run()), milliseconds);
    };
    again.current = () => (isBusy ? (isWanted = true) : run());
    run();
    const ends = [() => abort.abort(), () => clearTimeout(timer)];
    if (concerns) ends.push(live.listen((event) => asked.current(event) && wait(gap)));
    // What was missed in between may be more than events tell.
    ends.push(live.watch(({ state, isBack, hasRested }) => state === "live" && (isBack || hasRested) && wait(50)));
    if (every) {
      const ticking = setInterval(() => document.visibilityState === "visible" && wait(0), every);
      ends.push(() => clearInterval(ticking));
    }
    return () => {
      isGone = true;
      for (const end of ends) end();
    };
  }, deps);
  return { ...shown, again: () => again.current() };
}

export function useLiveState() {
  const [state, set] = useState({ state: live.state, isBack: false });
  useEffect(() => {
    // It may have changed between the first drawing and now.
    set((old) => (old.state === live.state ? old : { state: live.state, isBack: false }));
    return live.watch(set);
  }, []);
  return state;
}

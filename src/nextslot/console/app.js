// The shell: who we are, where we are, whether the line to the server holds, and the view.
import { LANGUAGES, language, plural, said, setLanguage, t } from "./i18n.js";
import { get, key, whenUnauthorized } from "./api.js";
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./lib.js";
import { live, useLiveState } from "./live.js";
import { can, Empty, hasOffices, keepFocus, keyOf, Loading, me, Questions, sentence, toast, Toasts, useTitle } from "./parts.js";
import { arrive, link, scrollBack, useHere } from "./router.js";
import { hasTwoZones, setZone, watchZone, zoneName } from "./words.js";

// Each view is loaded when it is first opened.
const VIEWS = {
  overview: [t("overview"), () => import("./views/overview.js")],
  now: [t("now"), () => import("./views/now.js")],
  jobs: [t("jobs"), () => import("./views/jobs.js"), () => import("./views/job.js")],
  failures: [t("failures"), () => import("./views/failures.js")],
  types: [t("job_types"), () => import("./views/types.js"), () => import("./views/types.js")],
  schedules: [t("schedules"), () => import("./views/schedules.js"), () => import("./views/schedule.js")],
  groups: [t("groups"), () => import("./views/groups.js"), () => import("./views/graph.js")],
  offices: [t("offices"), () => import("./views/offices.js"), () => import("./views/office.js")],
  webhooks: [t("webhooks"), () => import("./views/webhooks.js"), () => import("./views/webhooks.js")],
  system: [t("system"), () => import("./views/system.js")],
  submit: [t("submit"), () => import("./views/submit.js")],
  graph: [null, () => import("./views/graph.js")],
  direct: [null, () => import("./views/direct.js"), () => import("./views/direct.js")],
};

function App() {
  const [who, setWho] = useState({ state: "asking", problem: "" });
  const begin = async () => {
    try {
      Object.assign(me, await get("api/me"));
      live.start(me.last_event);
      setWho({ state: "known", problem: "" });
    } catch (error) {
      if (error.status !== 401) setWho({ state: "failed", problem: sentence(error) });
    }
  };
  useEffect(() => {
    whenUnauthorized((problem) => {
      live.stop();
      setWho({ state: "stranger", problem: key.get() ? problem.message : "" });
    });
    begin();
  }, []);
  if (who.state === "asking") return html`<${Empty}>${t("loading_more")}<//>`;
  if (who.state === "failed") {
    return html`<main class="door"><h1>nextslot</h1><p class="trouble" role="alert">${who.problem}</p>
      <button class="primary" onClick=${begin}>${t("try_again")}</button></main>`;
  }
  if (who.state === "stranger") return html`<${Door} problem=${who.problem} onKey=${begin} />`;
  return html`<${Shell} forget=${() => (key.set(""), begin())} />`;
}

function Door({ problem, onKey }) {
  const submit = (event) => {
    event.preventDefault();
    key.set(event.target.elements.key.value.trim());
    onKey();
  };
  return html`<main class="door">
    <h1>nextslot</h1>
    <form onSubmit=${submit}>
      <p>${t("this_server_asks_for_a_key")}</p>
      <div class="field"><label for="key">${t("api_key")}</label>
        <input id="key" name="key" type="password" autocomplete="off" required autofocus
          aria-describedby="key-problem" />
          </div>
      <p id="key-problem" class="problem" role="alert">${problem}</p>
      <button class="primary">${t("open_the_console")}</button>
    </form>
  </main>`;
}

// Parts of the frame that come after the view.
const LATER_MS = 800;
const NOTICES = () => import("./notices.js");
const BELL = () => import("./notify.js");
// A browser keeps a failed import: a part is not asked for while the server is away.
function whenThere(load) {
  if (live.state !== "lost") return load();
  return new Promise((resolve) => {
    const forget = live.watch(({ state }) => state === "live" && (forget(), resolve(load())));
  });
}

function Later({ part, load }) {
  const [module, set] = useState(null);
  useEffect(() => {
    const timer = setTimeout(() => whenThere(load).then((found) => set({ ...found }), () => {}), LATER_MS);
    return () => clearTimeout(timer);
  }, []);
  return module ? html`<${module[part]} />` : null;
}

// The palette (⌘K or Ctrl+K) and the list of keys (?), loaded soon after the view, or by the first key.
const PALETTE = () => import("./palette.js");
function Palette({ views }) {
  const [open, setOpen] = useState(null);
  const [module, setModule] = useState(null);
  useEffect(() => {
    const load = () => whenThere(PALETTE).then((found) => setModule({ ...found }), () => {});
    const pressed = (event) => {
      const isTyping = event.target.closest?.("input, textarea, select, dialog");
      const isPalette = (event.metaKey || event.ctrlKey) && keyOf(event).toLowerCase() === "k";
      const isHelp = event.key === "?" && !isTyping && !event.metaKey && !event.ctrlKey && !event.altKey;
      if (!isPalette && !isHelp) return;
      event.preventDefault();
      setOpen(isPalette ? "Finder" : "Help");
      load();
    };
    const timer = setTimeout(load, LATER_MS);
    addEventListener("keydown", pressed);
    return () => (clearTimeout(timer), removeEventListener("keydown", pressed));
  }, []);
  // A dialog says late that it was closed: the other one may be open by then.
  const close = () => (setOpen((now) => (now === open ? null : now)), keepFocus());
  return open && module ? html`<${module[open]} key=${open} views=${views} close=${close} />` : null;
}

// Views are loaded before they are opened: first those whose link is near the pointer. Not while the server is away.
const IDLE_MS = 20_000;
function usePreloaded(offered) {
  useEffect(() => {
    const fetchView = (name) => live.state === "live" && VIEWS[name]?.slice(1).forEach((load) => load().catch(() => {}));
    const near = (event) => {
      const to = event.target.closest?.("nav a")?.getAttribute("href");
      if (to) fetchView(to.slice(2).split(/[/?]/)[0]);
    };
    const events = ["pointerover", "focusin", "touchstart"];
    for (const name of events) addEventListener(name, near, { passive: true });
    const timer = setTimeout(() => navigator.connection?.saveData || offered.forEach(([name]) => fetchView(name)), IDLE_MS);
    return () => {
      for (const name of events) removeEventListener(name, near);
      clearTimeout(timer);
    };
  }, []);
}

function Zone() {
  if (!hasTwoZones) return null;
  const isUtc = zoneName() === "UTC";
  return html`<button class="quiet" title=${t("times_in", zoneName())} aria-pressed=${String(isUtc)} aria-label=${t("times_in", "UTC")}
    onClick=${() => setZone(isUtc ? null : "UTC")}>${isUtc ? "UTC" : t("local")}</button>`;
}

function Shell({ forget }) {
  const place = useHere();
  // Every time on the page is drawn again when the zone changes.
  const [, setShownZone] = useState(zoneName);
  useEffect(() => watchZone(setShownZone), []);
  const offered = Object.entries(VIEWS).filter(([name, [title]]) => title && isOffered(name));
  const isOff = place.view === "offices" && !hasOffices();
  const shown = isOff ? null : VIEWS[place.view];
  const isFirst = useRef(true);
  useTitle(shown?.[0]);
  useEffect(() => {
    const before = arrive();
    if (before) scrollBack(before);
    else scrollTo(0, 0);
    document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    // Who came by a link goes on from the content, and is told where that is.
    if (!isFirst.current) document.getElementById("main").focus({ preventScroll: true });
    isFirst.current = false;
  }, [place.view, place.parts.join("/")]);
  useEffect(followFocus, []);
  usePreloaded(offered);
  useEffect(() => {
    const pressed = (event) => shortcut(event, offered);
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  return html`
    <a class="skip" href="#main"
      onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>${t("to_the_content")}</a>
    <header class="top">
      <a class="brand" href=${link("overview")}><img src="icon.svg" alt="" width="18" height="18" />nextslot</a>
      <nav aria-label=${t("views")}>${offered.map(
        ([name, [title]]) => html`<a key=${name} href=${link(name)} title=${`g ${letterOf(name)}`}
        aria-current=${place.view === name ? "page" : undefined}>${title}</a>`,
      )}</nav>
      <div class="tools"><${Line} />
        <${Later} part="Bell" load=${BELL} /><${Zone} /><${Language} /><${Theme} />${me.key_id && html`<button class="quiet" onClick=${forget}
          title=${t("forget_the_key")}>${me.name} ✕</button>`}
        </div>
    </header>
    <${Lost} /><${Later} part="Notices" load=${NOTICES} />
    <main id="main" tabindex="-1">
      ${
        shown
          ? html`<${View} key=${[place.view, ...place.parts].join("/")} place=${place}
            load=${place.parts.length && shown[2] ? shown[2] : shown[1]} />`
          : html`<${Empty}>${isOff ? t("the_extension_offices_is_off_on") : t("there_is_no_such_view")} <a href=${link("now")}>${t("now")}</a><//>`
      }
    </main>
    <${Toasts} /><${Questions} />
    <${Palette} views=${offered.map(([name, [title]]) => [name, title, letterOf(name)])} />`;
}

const isOffered = (name) => (name === "submit" ? can("submit") : name !== "offices" || hasOffices());

// g and a letter go to a view; / goes to the search.
const LETTERS = { v: "overview", n: "now", j: "jobs", f: "failures", t: "types", s: "schedules", g: "groups", o: "offices", w: "webhooks", y: "system", u: "submit" };
const letterOf = (name) => Object.keys(LETTERS).find((letter) => LETTERS[letter] === name);
let awaitsLetter = 0;
function shortcut(event, offered) {
  if (event.target.closest?.("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey)
    return;
  const pressed = keyOf(event);
  if (Date.now() - awaitsLetter < 1500) {
    const name = LETTERS[pressed];
    if (offered.some(([one]) => one === name)) location.hash = link(name).slice(1);
    awaitsLetter = 0;
  } else if (pressed === "g") awaitsLetter = Date.now();
  else if (pressed === "/") {
    event.preventDefault();
    if (!focusSearch()) {
      location.hash = link("jobs").slice(1);
      // The view may have to be loaded first.
      const seen = new MutationObserver(() => focusSearch() && seen.disconnect());
      seen.observe(document.body, { childList: true, subtree: true });
      setTimeout(() => seen.disconnect(), 10_000);
    }
  } else if (["j", "k", "x"].includes(pressed)) rowKeys(pressed);
}

// j and k go to the next and the previous job, x chooses it, Enter opens it. At once, since an Enter may follow quickly.
function rowKeys(key) {
  const rows = [...document.querySelectorAll("main tr[data-job], main .queue li[data-job]")];
  const place = rows.findIndex((row) => row.contains(document.activeElement));
  if (key === "x") rows[place]?.querySelector("input[type=checkbox]")?.click();
  else {
    const next = rows[place < 0 || key === "j" ? place + 1 : place - 1];
    next?.querySelector("a").focus();
    next?.scrollIntoView({ block: "nearest" });
  }
}

function focusSearch() {
  const search = document.querySelector("main input[type=search]");
  search?.focus();
  return Boolean(search);
}

// If the element that has the focus is removed, the content gets the focus, so that keys go on from there.
function followFocus() {
  let last = null;
  const focused = (event) => (last = event.target);
  const seen = new MutationObserver(() => {
    if (last && !last.isConnected && document.activeElement === document.body) keepFocus();
    if (last && !last.isConnected) last = null;
  });
  addEventListener("focusin", focused);
  seen.observe(document.getElementById("app"), { childList: true, subtree: true });
  return () => (removeEventListener("focusin", focused), seen.disconnect());
}

function View({ place, load }) {
  const [module, set] = useState(null);
  const [error, reset] = useErrorBoundary();
  const [failed, setFailed] = useState(null);
  useEffect(() => {
    let isGone = false;
    load().then(
      (found) => !isGone && set({ default: found.default }),
      (problem) => !isGone && setFailed(problem),
    );
    return () => void (isGone = true);
  }, [load]);
  if (error) {
    return html`<div class="trouble" role="alert"><p>${t("this_view_does_not_work", String(error.message || error))}</p>
      <button onClick=${reset}>${t("try_again")}</button></div>`;
  }
  if (failed) return html`<${NotLoaded} />`;
  return module ? html`<${module.default} place=${place} />` : html`<${Loading} />`;
}

// A browser keeps a failed import for as long as the page lives. So the page is loaded again as soon as the server
// answers; not more than three times a minute, since the file itself may be broken.
const RELOADS = "nextslot-reloads";

function NotLoaded() {
  useEffect(() => {
    const recent = (sessionStorage.getItem(RELOADS) || "").split(" ").filter((at) => Date.now() - at < 60_000);
    if (recent.length > 2) return undefined;
    const timer = setInterval(async () => {
      const answer = await fetch(new URL("icon.svg", import.meta.url), { cache: "no-store" }).catch(() => null);
      if (!answer?.ok) return;
      sessionStorage.setItem(RELOADS, [...recent, Date.now()].join(" "));
      location.reload();
    }, 1500);
    return () => clearInterval(timer);
  }, []);
  return html`<div class="trouble" role="alert">
    <p>${t("this_view_could_not_be_loaded")}</p>
    <button onClick=${() => location.reload()}>${t("try_again")}</button></div>`;
}

function Line() {
  const { state } = useLiveState();
  const word = said("line", state);
  return html`<span class="line ${state}" title=${t("the_stream_of_events")}>${word}</span>`;
}

function Lost() {
  const { state, isBack } = useLiveState();
  useEffect(() => {
    if (state === "live" && isBack) {
      // The missed ones come in a moment; then it can be said how many there were.
      setTimeout(
        () =>
          toast(
            live.caughtUp
              ? t("back_online_caught_up", plural(live.caughtUp, "missed event"))
              : t("back_online_nothing_was_missed"),
          ),
        700,
      );
    }
  }, [state, isBack]);
  if (state !== "lost") return html`<div role="status"></div>`;
  return html`<div class="outage" role="status">${t("the_line_to_the_server_is_more")}
    <button class="quiet" onClick=${live.retry}>${t("now")}</button></div>`;
}

function Language() {
  const next = Object.keys(LANGUAGES).find((one) => one !== language);
  return html`<button class="quiet" lang=${next} onClick=${() => setLanguage(next)}
    title=${`${t("language")}: ${LANGUAGES[next]}`}>${LANGUAGES[next]}</button>`;
}

const THEME = "nextslot-theme";
const stored = () => localStorage.getItem(THEME) || "auto";

function Theme() {
  const [theme, set] = useState(stored);
  const next = { auto: "light", light: "dark", dark: "auto" }[theme];
  const change = () => {
    if (next === "auto") localStorage.removeItem(THEME);
    else localStorage.setItem(THEME, next);
    document.documentElement.dataset.theme = next;
    set(next);
  };
  return html`<button class="quiet" onClick=${change} title=${t("colours_next", said("theme", theme), said("theme", next))}
    aria-label=${t("colours", said("theme", theme))}>${{ auto: "◐", light: "☀︎", dark: "☾" }[theme]}</button>`;
}

// Before anything is drawn, so that nothing flashes.
document.documentElement.dataset.theme = stored();
const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);

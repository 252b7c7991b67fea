// The shell: who we are, where we are, whether the line to the server holds, and the view.
import { get, key, whenUnauthorized } from "./api.js";
import { html, render, useEffect, useErrorBoundary, useState } from "./lib.js";
import { live, useLiveState } from "./live.js";
import { can, Empty, hasOffices, me, Questions, sentence, toast, Toasts } from "./parts.js";
import { link, useHere } from "./router.js";
import { plural } from "./words.js";

// Each view is loaded when it is first looked at.
const VIEWS = {
  now: ["Now", () => import("./views/now.js")],
  jobs: ["Jobs", () => import("./views/jobs.js"), () => import("./views/job.js")],
  schedules: ["Schedules", () => import("./views/schedules.js"), () => import("./views/schedule.js")],
  groups: ["Groups", () => import("./views/groups.js"), () => import("./views/graph.js")],
  offices: ["Offices", () => import("./views/offices.js"), () => import("./views/office.js")],
  webhooks: ["Webhooks", () => import("./views/webhooks.js"), () => import("./views/webhooks.js")],
  system: ["System", () => import("./views/system.js")],
  submit: ["Submit", () => import("./views/submit.js")],
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
  if (who.state === "asking") return html`<${Empty}>Loading…<//>`;
  if (who.state === "failed") {
    return html`<main class="door"><h1>nextslot</h1><p class="trouble" role="alert">${who.problem}</p>
      <button class="primary" onClick=${begin}>Try again</button></main>`;
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
      <p>This server asks for a key. It stays in this tab and is sent with each request.</p>
      <div class="field"><label for="key">API key</label>
        <input id="key" name="key" type="password" autocomplete="off" required autofocus
          aria-describedby="key-problem" />
          </div>
      <p id="key-problem" class="problem" role="alert">${problem}</p>
      <button class="primary">Open the console</button>
    </form>
  </main>`;
}

function Shell({ forget }) {
  const place = useHere();
  const offered = Object.entries(VIEWS).filter(([name, [title]]) => title && isOffered(name));
  const isOff = place.view === "offices" && !hasOffices();
  const shown = isOff ? null : VIEWS[place.view];
  useEffect(() => {
    document.title = `${shown?.[0] || "nextslot"} – nextslot`;
    scrollTo(0, 0);
  }, [place.view, place.parts.join("/")]);
  useEffect(() => {
    const pressed = (event) => shortcut(event, offered);
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  return html`
    <a class="skip" href="#main"
      onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>To the content</a>
    <header class="top">
      <a class="brand" href=${link("now")}><img src="icon.svg" alt="" width="18" height="18" />nextslot</a>
      <nav aria-label="Views">${offered.map(
        ([name, [title]]) => html`<a key=${name} href=${link(name)}
        aria-current=${place.view === name ? "page" : undefined}>${title}</a>`,
      )}</nav>
      <div class="tools"><${Line} />
        <${Theme} />${me.key_id && html`<button class="quiet" onClick=${forget}
          title="Forget the key">${me.name} ✕</button>`}
        </div>
    </header>
    <${Lost} />
    <main id="main" tabindex="-1">
      ${
        shown
          ? html`<${View} key=${place.view + (place.parts.length ? "/" : "")} place=${place}
            load=${place.parts.length && shown[2] ? shown[2] : shown[1]} />`
          : html`<${Empty}>${isOff ? "The extension offices is off on this server." : "There is no such view."} <a href=${link("now")}>Now</a><//>`
      }
    </main>
    <${Toasts} /><${Questions} />`;
}

const isOffered = (name) => (name === "submit" ? can("submit") : name !== "offices" || hasOffices());

// g and a letter go to a view; / goes to the search.
let awaitsLetter = 0;
function shortcut(event, offered) {
  if (event.target.closest?.("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey)
    return;
  if (event.key === "g") awaitsLetter = Date.now();
  else if (Date.now() - awaitsLetter < 1500) {
    const found = offered.find(([, [title]]) => title[0].toLowerCase() === event.key);
    if (found) location.hash = link(found[0]).slice(1);
    awaitsLetter = 0;
  } else if (event.key === "/") {
    event.preventDefault();
    const search = document.querySelector("main input[type=search]");
    if (search) search.focus();
    else location.hash = link("jobs").slice(1);
  }
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
  const trouble = error || failed;
  if (trouble) {
    return html`<div class="trouble" role="alert"><p>This view does not work: ${String(trouble.message || trouble)}</p>
      <button onClick=${() => (error ? reset() : location.reload())}>Try again</button></div>`;
  }
  return module ? html`<${module.default} place=${place} />` : html`<${Empty}>Loading…<//>`;
}

// Whether what is shown is live, in a word.
function Line() {
  const { state } = useLiveState();
  const word = { live: "live", lost: "offline", connecting: "connecting", refused: "not live" }[state];
  return html`<span class="line ${state}" title="The stream of events">${word}</span>`;
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
              ? `Back online: ${plural(live.caughtUp, "missed event")} caught up.`
              : "Back online: nothing was missed.",
          ),
        700,
      );
    }
  }, [state, isBack]);
  if (state !== "lost") return html`<div role="status"></div>`;
  return html`<div class="outage" role="status">The line to the server is lost; what you see may be old. Trying again…
    <button class="quiet" onClick=${live.retry}>Now</button></div>`;
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
  return html`<button class="quiet" onClick=${change} title=${`Colours: ${theme}; next: ${next}`}
    aria-label=${`Colours: ${theme}`}>${{ auto: "◐", light: "☀︎", dark: "☾" }[theme]}</button>`;
}

// Before anything is drawn, so that nothing flashes.
document.documentElement.dataset.theme = stored();
const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);

// What several views are made of. All text goes through text nodes: nothing that a job says is ever markup.
import { said, t } from "./i18n.js";
import { get } from "./api.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { link } from "./router.js";
import { moment, named, pretty, relative, short } from "./words.js";

// Who we are, as the server says. What a key may not do is not offered.
export const me = { name: "", scopes: [], office_id: null, extensions: [] };
export const can = (scope) => me.scopes.includes(scope);
export const canWhole = (scope) => can(scope) && me.office_id === null;

// The views of offices need the extension `offices`. Without it every job is shown with its office's id alone.
export const hasOffices = () => me.extensions.includes("offices");
export const someOffices = (limit, signal) => (hasOffices() ? get("api/offices", { limit }, signal) : { items: [] });

const SHAPES = {
  WAITING:
    "M6 1a5 5 0 1 0 0 10A5 5 0 0 0 6 1Zm0 1.6a3.4 3.4 0 1 1 0 6.8 3.4 3.4 0 0 1 0-6.8ZM5.3 3.5h1.4v2.3l1.5 1-.8 1.1-2.1-1.4Z",
  QUEUED: "M6 1a5 5 0 1 0 0 10A5 5 0 0 0 6 1Zm0 1.8a3.2 3.2 0 1 1 0 6.4 3.2 3.2 0 0 1 0-6.4Z",
  RUNNING: "M3 1.5v9L10.5 6Z",
  COMPLETED: "M1.2 6.4 2.6 5l2 2L9.4 2.200 10.800 3.600 4.600 9.800Z",
  FAILED:
    "M2.6 1.200 6 4.600 9.400 1.200 10.800 2.600 7.400 6 10.800 9.400 9.400 10.800 6 7.400 2.600 10.800 1.200 9.400 4.600 6 1.200 2.600Z",
  SKIPPED: "M1 2v8l5-4Zm5 0v8l5-4Z",
  CANCELLED: "M6 1a5 5 0 1 0 0 10A5 5 0 0 0 6 1ZM2.700 5.200h6.600v1.600H2.700Z",
  PARTIAL: "M6 1 11 10.500H1ZM5.400 4.500v3h1.200v-3Zm0 3.700v1.200h1.200V8.200Z",
};
const LIKE = {
  DELIVERED: "COMPLETED",
  PENDING: "QUEUED",
  fired: "COMPLETED",
  skipped: "SKIPPED",
  active: "RUNNING",
  paused: "WAITING",
  archived: "CANCELLED",
  ready: "COMPLETED",
  RELEASED: "COMPLETED",
  EXPIRED: "FAILED",
  ACTIVE: "RUNNING",
  live: "COMPLETED",
  draining: "WAITING",
  left: "CANCELLED",
  lost: "FAILED",
};

export function shapeOf(status) {
  return SHAPES[LIKE[status] || status] || SHAPES.QUEUED;
}
export const classOf = (status) =>
  `is-${String(LIKE[status] || status)
    .toLowerCase()
    .replace(/[^a-z]/g, "")}`;

// A status by word, shape and colour.
export const Status = ({ status }) => html`<span class="status ${classOf(status)}">
  <svg viewBox="0 0 12 12" aria-hidden="true"><path d=${shapeOf(status)} /></svg>${said("status", status)}</span>`;

let ticking = null;
const tickers = new Set();
export function useNow(every = 1000) {
  const [now, set] = useState(() => Date.now());
  useEffect(() => {
    let last = Date.now();
    const tick = () => Date.now() - last >= every - 20 && set((last = Date.now()));
    tickers.add(tick);
    ticking ||= setInterval(() => document.visibilityState === "visible" && tickers.forEach((one) => one()), 1000);
    return () => tickers.delete(tick);
  }, []);
  return now;
}

// The key of an event. An input method keeps its keys: its Enter ends a syllable, not a search. A keyboard that writes
// Hangul still has the Latin letters.
export function keyOf(event) {
  if (event.isComposing || (event.key === "Enter" && event.keyCode === 229)) return "";
  const letter = /^Key([A-Z])$/.exec(event.code)?.[1];
  if (!letter || /^[ -~]$/.test(event.key)) return event.key;
  return event.shiftKey ? letter : letter.toLowerCase();
}

// A time as a distance; the whole of it on hover.
export function When({ at, none = "–", absolute = false }) {
  const now = useNow();
  if (!at) return html`<span class="dim">${none}</span>`;
  return html`<time dateTime=${at} title=${`${moment(at)} (${at})`}>${absolute ? moment(at) : relative(at, now)}
    </time>`;
}

export const JobLink = ({
  job,
}) => html`<a href=${link(["jobs", job.job_id])} class="clip" title=${named(job)}>${named(job)}
  </a>${job.error_line && html`<${ErrorLine} text=${job.error_line} />`}`;

// The beginning of an error below what failed, as text.
export const ErrorLine = ({ text }) => html`<span class="error-line dim" title=${text}>${text}</span>`;
export const Id = ({ id, to }) =>
  id ? html`<a class="id" href=${link([to, id])} title=${id}>${short(id)}</a>` : html`<span class="dim">–</span>`;

export const Json = ({ value, label }) => html`<pre class="json" tabindex="0" aria-label=${label}>${pretty(value)}
  </pre>`;

export const Fields = ({ of }) =>
  html`<dl class="fields">${of
    .filter((row) => row && row[1] !== null && row[1] !== undefined && row[1] !== "" && row[1] !== false)
    .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

export const Section = ({
  title,
  children,
  actions = null,
  tools = null,
  id,
}) => html`<section class="section" id=${id} aria-label=${title}>
  <header><h2>${title}</h2>${tools && html`<div class="tools-of">${tools}</div>`}${actions && html`<div class="actions">${actions}</div>`}</header>${children}</section>`;

export const Trouble = ({ error }) => (error ? html`<p class="trouble" role="alert"><${Linked} text=${sentence(error)} /></p>` : null);

export function sentence(error) {
  const problems = error.errors || [];
  const said = String(error.message || error);
  if (problems.every((one) => said.includes(one.problem))) return said;
  return `${said} (${problems.map((one) => (one.field ? `${one.field}: ${one.problem}` : one.problem)).join("; ")})`;
}

export const Bar = ({
  fraction,
  label,
  expected = false,
}) => html`<span class="bar ${expected ? "expected" : ""}" role="progressbar"
  aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(fraction * 100)}>
  <span style=${{ width: `${Math.min(100, Math.max(0, fraction * 100))}%` }}></span></span>`;

export const Scroll = ({
  children,
  label,
}) => html`<div class="scroll" tabindex="0" role="region" aria-label=${t("the_table", label)}>${children}
  </div>`;

// What stands where content will be, and where there is none.
export const Loading = () => html`<p class="empty skeleton" role="status"><span class="unseen">${t("loading_more")}</span></p>`;
export const Empty = ({ isLoading, children }) => (isLoading ? Loading() : html`<p class="empty">${children}</p>`);

// The element that had the focus may be gone: then the content has it, not the whole page.
export function keepFocus() {
  requestAnimationFrame(() => {
    if (document.activeElement && document.activeElement !== document.body) return;
    document.getElementById("main")?.focus({ preventScroll: true });
  });
}

// The name of what a page shows, in the title of its tab.
export function useTitle(...names) {
  const title = [...names.filter(Boolean), "nextslot"].join(" – ");
  useEffect(() => void (document.title = title), [title]);
}

const PLACES = { job: "jobs", group: "groups", schedule: "schedules" };

// A sentence with its ids as links: "job 0199…" leads to that job.
export function Linked({ text }) {
  const parts = String(text).split(/((?:job|group|schedule) [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/);
  return parts.map((part, index) => {
    if (index % 2 === 0) return part;
    const [kind, id] = part.split(" ");
    return html`${kind} <${Id} key=${index} id=${id} to=${PLACES[kind]} />`;
  });
}

// Short words that come and go; also read aloud.
let tell = () => {};
let toasts = [];
// With a button, it stays as long as the button is of use; returns what takes it away.
export function toast(text, kind = "good", button = null) {
  const one = { text, kind, button, id: Math.random() };
  const end = () => tell((toasts = toasts.filter((other) => other !== one)));
  toasts = [...toasts.slice(-3), one];
  tell(toasts);
  setTimeout(end, button?.milliseconds || (kind === "bad" ? 9000 : 4000));
  return end;
}

export function Toasts() {
  const [shown, show] = useState(toasts);
  useEffect(() => void (tell = show), []);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${shown.map((one) => html`<p key=${one.id} class="toast ${one.kind}"><${Linked} text=${one.text} />${
      one.button && html` <button class="small" onClick=${one.button.act}>${one.button.word}</button>`
    }</p>`)}</div>`;
}

// Does it, and says how it went. Whatever is refused is told in the server's own words.
export async function attempt(work, done) {
  try {
    const result = await work();
    if (done) toast(typeof done === "function" ? done(result) : done);
    return result === null || result === undefined ? true : result;
  } catch (error) {
    if (error.name !== "AbortError") toast(sentence(error), "bad");
    return null;
  }
}

// A question in a dialog: resolves to what was filled in, or to null. With `work`, the dialog stays until the work has
// succeeded, shows what was refused at its field, and resolves to what the work returned.
let put = () => {};
let questions = 0;
export const ask = (question) => new Promise((resolve) => put({ ...question, id: ++questions, resolve }));

export function Questions() {
  const [question, set] = useState(null);
  const [refusal, refuse] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const dialog = useRef(null);
  useEffect(() => void (put = set), []);
  useLayoutEffect(() => {
    if (question && dialog.current && !dialog.current.open) dialog.current.showModal();
  }, [question]);
  useLayoutEffect(() => dialog.current?.querySelector("[aria-invalid=true]")?.focus(), [refusal]);
  if (!question) return null;
  const close = (values) => {
    // The event of its own closing comes later, when the next question may be open.
    if (question.isOver) return;
    question.isOver = true;
    dialog.current?.close();
    set(null);
    refuse(null);
    question.resolve(values);
    keepFocus();
  };
  const submit = async (event) => {
    event.preventDefault();
    const values = valuesOf(event.target);
    if (!question.work) return close(values);
    setBusy(true);
    try {
      const result = (await question.work(values)) ?? true;
      close(result);
      if (question.done) toast(typeof question.done === "function" ? question.done(result) : question.done);
    } catch (error) {
      refuse(error);
    }
    setBusy(false);
  };
  const problems = Object.fromEntries((refusal?.errors || []).map((one) => [one.field.split(".")[0], one.problem]));
  const names = (question.fields || []).map((field) => field.name);
  const isAtField = names.some((name) => problems[name]);
  return html`<dialog key=${question.id} ref=${dialog} aria-label=${question.title} onCancel=${() => close(null)}
    onClose=${() => question && close(null)}>
    <form onSubmit=${submit}>
      <h2>${question.title}</h2>
      ${question.text && html`<p>${question.text}</p>`}
      ${question.body}
      ${(question.fields || []).map((field) => html`<${Field} key=${field.name} ...${field}
        problem=${problems[field.name] || ""} />`)}
      ${refusal && !isAtField && html`<p class="problem" role="alert"><${Linked} text=${sentence(refusal)} /></p>`}
      <footer>
        ${
          !question.only &&
          html`<button type="button" onClick=${() => close(null)}>${question.no || t("not_now")}
          </button>`
        }
        <button class=${question.danger ? "danger" : "primary"} disabled=${isBusy}>${question.action || t("ok")}</button>
      </footer>
    </form>
  </dialog>`;
}

export function valuesOf(form) {
  const values = {};
  for (const input of form.elements) {
    if (!input.name) continue;
    if (input.type === "checkbox") values[input.name] = input.checked;
    else if (input.type !== "radio" || input.checked) values[input.name] = input.value;
  }
  return values;
}

// An input that nobody listens to keeps what was typed, also when the page around it is drawn again.
export function Field({ name, label, kind = "text", value = "", options = null, help = "", problem = "", ...rest }) {
  const id = `field-${name}`;
  const about = help || problem ? `${id}-help` : undefined;
  const isHeard = Boolean(rest.onInput || rest.onChange);
  const shared = { id, name, "aria-describedby": about, "aria-invalid": problem ? "true" : undefined, ...rest };
  const note =
    (help || problem) &&
    html`<small id=${about} class=${problem ? "problem" : ""}>${problem || help}
    </small>`;
  if (kind === "checkbox") {
    const ticked = { [isHeard ? "checked" : "defaultChecked"]: Boolean(value) };
    return html`<div class="field check"><label for=${id}><input type="checkbox" ...${shared} ...${ticked} /> ${label}
      </label>${note}</div>`;
  }
  const filled = { [isHeard ? "value" : "defaultValue"]: value };
  const input = options
    ? html`<select ...${shared}>${options.map(
        ([one, word]) => html`<option key=${one} value=${one} selected=${String(one) === String(value)}>${word ?? one}
      </option>`,
      )}</select>`
    : kind === "area"
      ? html`<textarea rows="5" spellcheck="false" ...${shared} ...${filled}></textarea>`
      : html`<input type=${kind} autocomplete="off" ...${shared} ...${filled} />`;
  return html`<div class="field"><label for=${id}>${label}</label>${input}${note}</div>`;
}

// The next page, by hand or by scrolling near it.
export function More({ cursor, load, isLoading }) {
  const place = useRef(null);
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    if (!place.current || !cursor) return undefined;
    const seen = new IntersectionObserver((entries) => entries.some((one) => one.isIntersecting) && latest.current(), {
      rootMargin: "400px",
    });
    seen.observe(place.current);
    return () => seen.disconnect();
  }, [cursor]);
  if (!cursor) return null;
  return html`<p class="more" ref=${place}>
    <button onClick=${() => load()} disabled=${isLoading}>${isLoading ? t("loading_more") : t("more")}</button></p>`;
}

// The query bar of the jobs: one line with fields, suggestions while it is typed, and words for the rest.
import { said, t } from "./i18n.js";
import { html, useEffect, useRef, useState } from "./lib.js";
import { keyOf } from "./parts.js";
import { STATUSES } from "./words.js";

const NAMES = ["status", "type", "office", "error", "params.", "since", "until", "finished_after", "finished_before", "role", "task", "schedule", "template", "group", "fingerprint", "is"];
const AGO = ["1h", "6h", "24h", "7d", "30d"];

// `known` has the values that are known of some fields.
export function suggested(text, caret, known) {
  const begin = text.slice(0, caret).search(/\S*$/);
  const token = text.slice(begin, caret);
  const [name, typed] = token.split(/:(.*)/s);
  const values = { status: STATUSES.map((one) => one.toLowerCase()), since: AGO, until: AGO, finished_after: AGO, finished_before: AGO, is: ["awaiting"], ...known }[name];
  if (typed === undefined) {
    const found = NAMES.filter((one) => one.startsWith(token.toLowerCase()) && one !== token);
    return found.map((one) => ({ begin, text: one.endsWith(".") ? one : `${one}:`, about: said("query", one.replace(".", "")) }));
  }
  const done = typed.split(",").slice(0, -1);
  const part = typed.split(",").at(-1).toLowerCase();
  return (values || [])
    .filter((one) => one.toLowerCase().startsWith(part) && one.toLowerCase() !== part && !done.includes(one))
    .slice(0, 12)
    .map((one) => ({ begin, text: `${name}:${[...done, quoted(one)].join(",")} `, about: name === "status" ? said("status", one.toUpperCase()) : "" }));
}

// A value that is still chosen, or a quote that is still open, is not asked for yet.
function isWhole(text, caret, known) {
  if (/[:=]$/.test(text) || (text.match(/(?<!\\)"/g) || []).length % 2) return false;
  return !suggested(text, caret, known).some((one) => /:./.test(one.text));
}

const quoted = (value) => (/\s/.test(value) ? `"${value}"` : value);

export function QueryBar({ value, known, set }) {
  const [text, setText] = useState(value);
  const [items, setItems] = useState([]);
  const [current, setCurrent] = useState(-1);
  const input = useRef(null);
  const typing = useRef(null);
  const sent = useRef(value);
  // The address may have changed by itself.
  useEffect(() => {
    if (value !== sent.current) setText((sent.current = value));
  }, [value]);
  useEffect(() => () => clearTimeout(typing.current), []);
  const send = (now) => (clearTimeout(typing.current), (sent.current = now), set(now));
  // All fields only when they are asked for by an arrow: else they would cover what is below.
  const offer = (isAsked) => {
    const { value: now, selectionStart } = input.current;
    const isEmpty = !/\S$/.test(now.slice(0, selectionStart));
    setItems(isEmpty && isAsked !== true ? [] : suggested(now, selectionStart, known));
    setCurrent(-1);
  };
  const close = () => (setItems([]), setCurrent(-1));
  const typed = (event) => {
    const now = event.target.value;
    setText(now);
    offer();
    clearTimeout(typing.current);
    if (isWhole(now, event.target.selectionStart, known)) typing.current = setTimeout(() => send(now), 300);
  };
  const take = (item) => {
    const rest = text.slice(input.current.selectionStart);
    const now = text.slice(0, item.begin) + item.text;
    setText(now + rest);
    requestAnimationFrame(() => {
      input.current.focus();
      input.current.setSelectionRange(now.length, now.length);
      offer();
    });
    if (item.text.endsWith(" ")) send(now + rest);
  };
  const pressed = (event) => {
    const key = keyOf(event);
    const turn = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (turn && !items.length) {
      event.preventDefault();
      offer(true);
    } else if (turn) {
      event.preventDefault();
      setCurrent((current + turn + items.length + (current < 0 && turn < 0 ? 1 : 0)) % items.length);
    } else if (key === "Enter") {
      event.preventDefault();
      if (current >= 0 && items[current]) take(items[current]);
      else send(text), close();
    } else if (key === "Escape" && items.length) {
      event.preventDefault();
      close();
    }
  };
  const isOpen = items.length > 0;
  return html`<div class="field query-bar"><label for="field-q">${t("search")}</label>
    <input id="field-q" ref=${input} type="search" name="q" role="combobox" autocomplete="off" spellcheck="false" maxlength="1000"
      placeholder=${t("query_example")} aria-expanded=${String(isOpen)} aria-controls="query-items" aria-autocomplete="list"
      aria-activedescendant=${current >= 0 ? `query-${current}` : undefined} value=${text} onInput=${typed}
      onKeyDown=${pressed} onBlur=${() => setTimeout(close, 150)} />
    <ul id="query-items" role="listbox" aria-label=${t("suggestions")} hidden=${!isOpen}>${items.map(
      (item, index) => html`<li key=${item.text} id=${`query-${index}`} role="option" aria-selected=${String(index === current)}
        onMouseDown=${(event) => (event.preventDefault(), take(item))}><code>${item.text}</code><span class="dim">${item.about}</span></li>`,
    )}</ul></div>`;
}

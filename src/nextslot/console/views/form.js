// Inputs for a JSON schema: objects, texts, numbers, choices, switches and lists of texts; all else as JSON.
import { t } from "../i18n.js";
import { parsed } from "../actions.js";
import { html } from "../lib.js";
import { Field } from "../parts.js";

// What is typed, as text; `read` makes the values.
export function initial(schema, given = {}) {
  const value = {};
  for (const [name, one] of properties(schema))
    value[name] = shown(resolved(one, schema), given?.[name] ?? one.default, (schema.required || []).includes(name));
  const known = new Set(properties(schema).map(([name]) => name));
  const rest = Object.fromEntries(Object.entries(given || {}).filter(([name]) => !known.has(name)));
  return Object.keys(rest).length ? { ...value, [REST]: rest } : value;
}

// Parameters that the schema does not name go through unchanged.
const REST = Symbol("rest");

function shown(schema, value, isRequired) {
  const kind = kindOf(schema);
  if (kind === "object") return initial(schema, value);
  if (isOpen(schema, isRequired)) return String(value ?? "");
  if (kind === "boolean") return Boolean(value);
  if (value === undefined || value === null) return "";
  if (kind === "texts") return value.join("\n");
  return kind === "json" ? JSON.stringify(value, null, 2) : String(value);
}

// Throws one error with all problems, each at its field.
export function read(schema, value, path = "params") {
  const found = { ...(value[REST] || {}) };
  const problems = [];
  for (const [name, one] of properties(schema)) {
    try {
      const isRequired = (schema.required || []).includes(name);
      const got = valueOf(resolved(one, schema), value[name], isRequired, `${path}.${name}`);
      if (got !== undefined) found[name] = got;
    } catch (error) {
      problems.push(...error.errors);
    }
  }
  if (problems.length) throw refused(problems);
  return found;
}

function refused(problems) {
  const said = problems.map(({ field, problem }) => `${field.replace(/^params\./, "")}: ${problem}`).join(" ");
  return Object.assign(new Error(said), { errors: problems });
}

function valueOf(schema, text, isRequired, field) {
  const kind = kindOf(schema);
  if (isOpen(schema, isRequired)) return text === "" ? undefined : text === "true";
  if (kind === "boolean") return text === Boolean(schema.default) && !isRequired ? undefined : text;
  if (kind === "object") {
    const inner = read(schema, text, field);
    return Object.keys(inner).length || isRequired ? inner : undefined;
  }
  if (text.trim() === "" && isRequired) throw refused([{ field, problem: t("fill_this_in") }]);
  if (text === "") return undefined;
  if (kind === "number" || kind === "integer") return Number.isNaN(Number(text)) ? text : Number(text);
  if (kind === "choice") return schema.enum.find((one) => String(one) === text) ?? text;
  if (kind === "texts")
    return text
      .split("\n")
      .map((one) => one.trim())
      .filter(Boolean);
  if (kind === "json") return parsed(text, field);
  return text;
}

// Whether a switch has a third position: the handler decides what it is if it is not given.
const isOpen = (schema, isRequired) => kindOf(schema) === "boolean" && schema.default === undefined && !isRequired;

function kindOf(schema) {
  if (Array.isArray(schema.enum)) return "choice";
  const type = Array.isArray(schema.type) ? schema.type.find((one) => one !== "null") : schema.type;
  if (type === "object") return schema.properties ? "object" : "json";
  if (type === "array") return schema.items?.type === "string" && !schema.items.enum ? "texts" : "json";
  if (type === "string") return "text";
  return ["number", "integer", "boolean"].includes(type) ? type : "json";
}

// References are followed, and "this or nothing" is this.
function resolved(schema, root) {
  let found = schema;
  for (let depth = 0; depth < 8; depth++) {
    const choices = (found.anyOf || found.oneOf || []).filter((one) => one.type !== "null");
    if (found.$ref?.startsWith("#/")) {
      const target = found.$ref
        .slice(2)
        .split("/")
        .reduce((place, part) => place?.[part], root);
      found = { ...target, ...found, $ref: undefined };
    } else if (choices.length === 1) {
      found = { ...choices[0], ...found, anyOf: undefined, oneOf: undefined };
    } else break;
  }
  return found.properties && root.$defs ? { $defs: root.$defs, ...found } : found;
}

const properties = (schema) =>
  Object.entries(schema.properties || {}).filter(([, one]) => one && typeof one === "object");

export function Inputs({ schema, value, set, path, problems }) {
  const names = properties(schema);
  if (!names.length) return html`<p class="dim">${t("it_takes_no_parameters")}</p>`;
  return names.map(([name, raw]) => {
    const one = resolved(raw, schema);
    const kind = kindOf(one);
    const put = (got) => set((old) => ({ ...old, [name]: got }));
    const isRequired = (schema.required || []).includes(name);
    const at = `${path}.${name}`;
    if (kind === "object") {
      return html`<fieldset key=${name}><legend>${one.title || name}</legend>
        <${Inputs} schema=${one} value=${value[name]}
          set=${(change) => set((old) => ({ ...old, [name]: change(old[name]) }))} path=${at} problems=${problems} />
        </fieldset>`;
    }
    const label = `${name}${isRequired ? " *" : ""}`;
    const shared = {
      name: at,
      label,
      help: [one.description, bounds(one)].filter(Boolean).join(" "),
      problem: problems[at] || problems[name],
      required: isRequired,
    };
    if (isOpen(one, isRequired))
      return html`<${Field} key=${name} ...${shared} value=${value[name]} options=${[["", "–"], ["true", t("yes")], ["false", t("no")]]}
        onChange=${(event) => put(event.target.value)} />`;
    if (kind === "boolean")
      return html`<${Field} key=${name} ...${shared} required=${false} kind="checkbox" value=${value[name]}
        onChange=${(event) => put(event.target.checked)} />`;
    const typed = (event) => put(event.target.value);
    if (kind === "choice")
      return html`<${Field} key=${name} ...${shared} value=${value[name]}
        options=${[...(isRequired && value[name] !== "" ? [] : [["", "–"]]), ...one.enum.map((choice) => [String(choice), String(choice)])]}
        onChange=${typed} />`;
    if (kind === "number" || kind === "integer")
      return html`<${Field} key=${name} ...${shared} kind="number" step=${kind === "integer" ? 1 : "any"}
        min=${one.minimum} max=${one.maximum} value=${value[name]} onInput=${typed} />`;
    if (kind === "text" && !(one.maxLength > 300))
      return html`<${Field} key=${name} ...${shared} minlength=${one.minLength} maxlength=${one.maxLength}
        value=${value[name]} onInput=${typed} />`;
    const help =
      kind === "texts"
        ? t("one_a_line", shared.help).trim()
        : kind === "json"
          ? t("json", shared.help).trim()
          : shared.help;
    return html`<${Field} key=${name} ...${shared} help=${help} kind="area" value=${value[name]} onInput=${typed} />`;
  });
}

function bounds(schema) {
  const parts = [];
  if (schema.minimum !== undefined) parts.push(t("at_least", schema.minimum));
  if (schema.maximum !== undefined) parts.push(t("at_most", schema.maximum));
  if (schema.minLength) parts.push(t("at_least_characters", schema.minLength));
  if (schema.maxLength) parts.push(t("at_most_characters", schema.maxLength));
  return parts.length ? `(${parts.join(", ")})` : "";
}

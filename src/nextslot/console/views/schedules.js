// Schedules: what fires when, and the form that makes or changes one.
import { get, pages, patch, post } from "../api.js";
import { parsed } from "../actions.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { useLoad } from "../live.js";
import { attempt, can, Empty, Field, me, Scroll, Section, sentence, toast, Trouble, valuesOf, When } from "../parts.js";
import { go, link } from "../router.js";
import { moment, plural } from "../words.js";

export default function Schedules() {
  const concerns = (event) => event.type.startsWith("schedule_");
  const list = useLoad((signal) => pages("api/schedules", { limit: 500 }, { enough: 2000, signal }), [], { concerns });
  const [isNew, setNew] = useState(false);
  const items = list.data?.items || [];
  const flip = (one) =>
    attempt(
      () => patch(`api/schedules/${one.schedule_id}`, { enabled: !one.enabled }),
      one.enabled ? "Disabled." : "Enabled.",
    ).then(list.again);
  return html`
    <div class="head">
      <h1 class="grow">Schedules</h1>${can("operate") && html`<button class="primary"
        onClick=${() => setNew(true)}>New schedule</button>`}
      </div>
    <${Trouble} error=${list.error} />
    ${isNew && html`<${Editor} schedule=${null} close=${() => setNew(false)}
      done=${(made) => go(["schedules", made.schedule_id])} />`}
    <${Section} title=${plural(items.length, "schedule")}>
      ${
        items.length
          ? html`<${Scroll} label="Schedules"><table>
        <thead><tr><th>Name</th><th>When</th><th class="wide">Zone</th><th>Next</th><th class="wide">Last</th>
          <th class="wide">Office</th><th>On</th></tr></thead>
        <tbody>${items.map(
          (one) => html`<tr key=${one.schedule_id}>
          <td><a href=${link(["schedules", one.schedule_id])}>${one.name}</a></td>
          <td>${one.cron_words}<br /><code class="dim">${one.cron_expression}</code></td>
          <td class="wide">${one.timezone}</td><td class="tight"><${When} at=${one.next_trigger_at} none="disabled" />
            </td>
          <td class="wide tight"><${When} at=${one.last_triggered_at} none="never" /></td>
            <td class="wide">${one.office_id}</td>
          <td><input type="checkbox" aria-label=${`${one.name} is enabled`} checked=${one.enabled}
            disabled=${!can("operate")} onChange=${() => flip(one)} />
            </td></tr>`,
        )}</tbody></table><//>`
          : html`<${Empty}>${list.isLoading ? "Loading…" : "None yet. A schedule makes jobs from a template, by a cron expression."}
          <//>`
      }
    <//>`;
}

const CATCH_UP = [
  ["latest", "one job for all missed"],
  ["all", "a job for each missed"],
  ["none", "nothing"],
];
const OVERLAP = [
  ["allow", "makes another job"],
  ["skip", "skips the occurrence"],
];

// With a preview of what the expression means while it is typed.
export function Editor({ schedule, close, done }) {
  const templates = useLoad((signal) => get("api/job-templates", { limit: 500 }, signal), []);
  const [cron, setCron] = useState(schedule?.cron_expression || "0 6 * * mon-fri");
  const [zone, setZone] = useState(schedule?.timezone || Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC");
  const [problems, setProblems] = useState({});
  const form = useRef(null);
  useEffect(() => form.current?.querySelector("input, select")?.focus(), []);
  const submit = async (event) => {
    event.preventDefault();
    const values = valuesOf(event.target);
    try {
      const body = {
        name: values.name,
        cron_expression: values.cron_expression,
        timezone: values.timezone,
        enabled: values.enabled,
        catch_up: values.catch_up,
        overlap: values.overlap,
        param_overrides: values.param_overrides.trim() ? parsed(values.param_overrides) : null,
        priority: values.priority === "" ? null : Number(values.priority),
      };
      if (!schedule) Object.assign(body, { template_id: values.template_id, office_id: values.office_id });
      const made = schedule
        ? await patch(`api/schedules/${schedule.schedule_id}`, body)
        : await post("api/schedules", body);
      toast("Saved.");
      done(made);
      close();
    } catch (error) {
      setProblems(Object.fromEntries((error.errors || []).map((one) => [one.field, one.problem])));
      toast(sentence(error), "bad");
    }
  };
  const known = templates.data?.items || [];
  return html`<${Section} title=${schedule ? "Change the schedule" : "New schedule"}>
    <form class="body" ref=${form} onSubmit=${submit}>
      <div class="columns"><div>
        ${
          !schedule &&
          html`<${Field} name="template_id" label="Template"
            options=${known.map((one) => [one.template_id, one.name])} required problem=${problems.template_id}
          help=${known.length ? "" : "There is no template yet: make one under Submit."} />`
        }
        <${Field} name="name" label="Name" value=${schedule?.name || ""} required problem=${problems.name} />
        <${Field} name="cron_expression" label="Cron expression" value=${cron} required
          onInput=${(event) => setCron(event.target.value)} problem=${problems.cron_expression} />
        <${Field} name="timezone" label="Time zone" value=${zone} required
          onInput=${(event) => setZone(event.target.value)} problem=${problems.timezone} />
        <${Field} name="enabled" label="Enabled" kind="checkbox" value=${schedule ? schedule.enabled : true} />
      </div><div>
        <${Preview} cron=${cron} zone=${zone} />
        <${Field} name="catch_up" label="After downtime" value=${schedule?.catch_up || "latest"} options=${CATCH_UP} />
        <${Field} name="overlap" label="While the job before has not ended" value=${schedule?.overlap || "allow"}
          options=${OVERLAP} />
        ${!schedule && html`<${Field} name="office_id" label="Office" value=${me.office_id || "default"}
          problem=${problems.office_id} />`}
        <${Field} name="priority" label="Priority (empty: the template's)" kind="number"
          value=${schedule?.priority ?? ""} />
        <${Field} name="param_overrides" label="Parameters over the template's (JSON)" kind="area"
          value=${schedule?.param_overrides ? JSON.stringify(schedule.param_overrides, null, 2) : ""} />
      </div></div>
      <div class="actions"><button class="primary">Save</button><button type="button" onClick=${close}>Leave it</button>
        </div>
    </form><//>`;
}

function Preview({ cron, zone }) {
  const [shown, show] = useState(null);
  useEffect(() => {
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      try {
        show(await get("api/schedules/preview", { cron_expression: cron, timezone: zone, count: 5 }, abort.signal));
      } catch (error) {
        if (error.name !== "AbortError") show({ problem: sentence(error) });
      }
    }, 200);
    return () => (clearTimeout(timer), abort.abort());
  }, [cron, zone]);
  return html`<fieldset aria-live="polite" style=${{ minHeight: "136px" }}><legend>What it means</legend>
    ${
      !shown
        ? "…"
        : shown.problem
          ? html`<span class="problem">${shown.problem}
      </span>`
          : html`<strong>${shown.cron_words}</strong>
      <${Instants} items=${shown.items} />`
    }</fieldset>`;
}

// On the clock of their zone; ours on hover.
export const Instants = ({ items }) =>
  html`<ul class="reasons">${items.map(
    (one) => html`<li key=${one.utc} title=${`here: ${moment(one.utc)}`}>${one.local.replace("T", " ")}
  ${" "}<span class="dim"><${When} at=${one.utc} /></span></li>`,
  )}</ul>`;

// Schedules: what fires when, and the form that makes or changes one.
import { said, t } from "../i18n.js";
import { get, pages, patch, post } from "../api.js";
import { parsed } from "../actions.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { useLoad } from "../live.js";
import { attempt, can, classOf, Empty, Field, me, Scroll, Section, sentence, shapeOf, toast, Trouble, valuesOf, When } from "../parts.js";
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
      one.enabled ? t("disabled") : t("enabled"),
    ).then(list.again);
  return html`
    <div class="head">
      <h1 class="grow">${t("schedules")}</h1>${can("operate") && html`<button class="primary"
        onClick=${() => setNew(true)}>${t("new_schedule")}</button>`}
      </div>
    <${Trouble} error=${list.error} />
    ${isNew && html`<${Editor} schedule=${null} close=${() => setNew(false)}
      done=${(made) => go(["schedules", made.schedule_id])} />`}
    <${Section} title=${plural(items.length, "schedule")}>
      ${
        items.length
          ? html`<${Scroll} label=${t("schedules")}><table>
        <thead><tr><th>${t("name")}</th><th>${t("when")}</th><th class="wide">${t("zone")}</th><th>${t("next")}</th><th class="wide">${t("last")}</th><th class="wide">${t("last_outcomes")}</th>
          <th class="wide">${t("office")}</th><th>${t("on")}</th></tr></thead>
        <tbody>${items.map(
          (one) => html`<tr key=${one.schedule_id}>
          <td class="name"><a href=${link(["schedules", one.schedule_id])}>${one.name}</a></td>
          <td>${one.cron_words}<br /><code class="dim">${one.cron_expression}</code></td>
          <td class="wide">${one.timezone}</td><td class="tight"><${When} at=${one.next_trigger_at} none=${t("disabled_2")} />
            </td>
          <td class="wide tight"><${When} at=${one.last_triggered_at} none=${t("never")} /></td>
          <td class="wide"><${Strip} schedule=${one} /></td>
            <td class="wide">${one.office_id}</td>
          <td><input type="checkbox" aria-label=${t("is_enabled", one.name)} checked=${one.enabled}
            disabled=${!can("operate")} onChange=${() => flip(one)} />
            </td></tr>`,
        )}</tbody></table><//>`
          : html`<${Empty} isLoading=${list.isLoading}>${t("none_yet_a_schedule_makes_jobs")}
          <//>`
      }
    <//>`;
}

// The last jobs, the newest on the right: asked for when the row comes into sight, and again when it has fired.
const SHOWN = 20;

function Strip({ schedule }) {
  const place = useRef(null);
  const [jobs, set] = useState(null);
  useEffect(() => {
    const abort = new AbortController();
    const seen = new IntersectionObserver(([entry]) => {
      if (!entry.isIntersecting) return;
      seen.disconnect();
      get("api/jobs", { schedule_id: schedule.schedule_id, limit: SHOWN }, abort.signal).then(
        (found) => set(found.items.reverse()),
        () => {},
      );
    });
    seen.observe(place.current);
    return () => (seen.disconnect(), abort.abort());
  }, [schedule.schedule_id, schedule.last_triggered_at]);
  return html`<span class="strip" ref=${place}>${(jobs || []).map(
    (job) => html`<a key=${job.job_id} href=${link(["jobs", job.job_id])} class=${classOf(job.status)}
      title=${`${said("status", job.status)} ${moment(job.created_at)}`} aria-label=${`${said("status", job.status)} ${moment(job.created_at)}`}>
      <svg viewBox="0 0 12 12" aria-hidden="true"><path d=${shapeOf(job.status)} /></svg></a>`,
  )}</span>`;
}

const choices = (kind, values) => values.map((value) => [value, said(kind, value)]);

// Until the templates are there, and if its own is archived, a schedule's own template is the only one by its id.
const templatesFor = (schedule, known) => {
  const named = known.map((one) => [one.template_id, one.name]);
  const isKnown = !schedule || named.some(([id]) => id === schedule.template_id);
  return isKnown ? named : [[schedule.template_id, schedule.template_id], ...named];
};

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
        catch_up_window_seconds: Number(values.catch_up_window_seconds),
        param_overrides: values.param_overrides.trim() ? parsed(values.param_overrides, "param_overrides") : null,
        priority: values.priority === "" ? null : Number(values.priority),
      };
      for (const name of ["template_id", "office_id"]) if (values[name] !== schedule?.[name]) body[name] = values[name];
      const made = schedule
        ? await patch(`api/schedules/${schedule.schedule_id}`, body)
        : await post("api/schedules", body);
      toast(t("saved"));
      done(made);
      close();
    } catch (error) {
      setProblems(Object.fromEntries((error.errors || []).map((one) => [one.field, one.problem])));
      toast(sentence(error), "bad");
    }
  };
  const known = templates.data?.items || [];
  return html`<${Section} title=${schedule ? t("change_the_schedule") : t("new_schedule")}>
    <form class="body" ref=${form} onSubmit=${submit}>
      <div class="columns"><div>
        <${Field} key=${`template ${known.length}`} name="template_id" label=${t("template")} value=${schedule?.template_id}
          options=${templatesFor(schedule, known)} required problem=${problems.template_id}
          help=${known.length || schedule ? "" : t("there_is_no_template_yet_make")} />
        <${Field} name="name" label=${t("name")} value=${schedule?.name || ""} required problem=${problems.name} />
        <${Field} name="cron_expression" label=${t("cron_expression")} value=${cron} required
          onInput=${(event) => setCron(event.target.value)} problem=${problems.cron_expression} />
        <${Field} name="timezone" label=${t("time_zone")} value=${zone} required
          onInput=${(event) => setZone(event.target.value)} problem=${problems.timezone} />
        <${Field} name="enabled" label=${t("enabled_2")} kind="checkbox" value=${schedule ? schedule.enabled : true} />
      </div><div>
        <${Preview} cron=${cron} zone=${zone} />
        <${Field} name="catch_up" label=${t("after_downtime")} value=${schedule?.catch_up || "latest"} options=${choices("catch_up", ["latest", "all", "none"])} />
        <${Field} name="overlap" label=${t("while_the_job_before_has_not")} value=${schedule?.overlap || "allow"}
          options=${choices("overlap", ["allow", "skip"])} />
        <${Field} name="catch_up_window_seconds" label=${t("catch_up_window_seconds")} kind="number" min="1" step="any" required
          value=${schedule?.catch_up_window_seconds ?? 86_400} problem=${problems.catch_up_window_seconds} />
        <${Field} name="office_id" label=${t("office")} value=${schedule?.office_id || me.office_id || "default"} required
          problem=${problems.office_id} />
        <${Field} name="priority" label=${t("priority_empty_the_template_s")} kind="number"
          value=${schedule?.priority ?? ""} />
        <${Field} name="param_overrides" label=${t("parameters_over_the_template_s_json")} kind="area"
          value=${schedule?.param_overrides ? JSON.stringify(schedule.param_overrides, null, 2) : ""} problem=${problems.param_overrides} />
      </div></div>
      <div class="actions"><button class="primary">${t("save")}</button><button type="button" onClick=${close}>${t("leave_it")}</button>
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
  return html`<fieldset aria-live="polite" style=${{ minHeight: "136px" }}><legend>${t("what_it_means")}</legend>
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
    (one) => html`<li key=${one.utc} title=${t("here", moment(one.utc))}>${one.local.replace("T", " ")}
  ${" "}<span class="dim"><${When} at=${one.utc} /></span></li>`,
  )}</ul>`;

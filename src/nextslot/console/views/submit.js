// Submit: a form made from the schema of the job's type.
import { said, t } from "../i18n.js";
import { parsed } from "../actions.js";
import { get, post } from "../api.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { useLoad } from "../live.js";
import {
  ask,
  can,
  canWhole,
  Empty,
  Field,
  Loading,
  me,
  Section,
  sentence,
  someOffices,
  toast,
  Trouble,
  valuesOf,
} from "../parts.js";
import { change, go } from "../router.js";
import { Inputs, initial, read } from "./form.js";
import { Templates } from "./templates.js";

export default function Submit({ place }) {
  const types = useLoad((signal) => get("api/job-types", {}, signal), []);
  const templates = useLoad((signal) => get("api/job-templates", { limit: 500 }, signal), []);
  const offices = useLoad((signal) => someOffices(500, signal), []);
  if (!types.data || !templates.data)
    return types.error ? html`<${Trouble} error=${types.error} />` : html`<${Loading} />`;
  if (!can("submit")) return html`<p class="trouble" role="alert">${t("this_key_may_not_submit_jobs")}</p>`;
  if (!types.data.items.length)
    return html`<${Empty}>${t("this_server_knows_no_job_types")}<//>`;
  const template = templates.data.items.find((one) => one.template_id === place.query.template);
  const name = template?.job_type || place.query.type || types.data.items[0].job_type;
  // A template that makes a group has no type: its parameters go to every job of it.
  const type = template?.jobs
    ? { job_type: "", params_schema: {} }
    : types.data.items.find((one) => one.job_type === name) || types.data.items[0];
  const choose = (value) =>
    change("submit", {
      ...place.query,
      ...(value.startsWith("template ") ? { template: value.slice(9), type: "" } : { type: value, template: "" }),
    });
  const options = [
    ...types.data.items.map((one) => [one.job_type, one.job_type]),
    ...templates.data.items.map((one) => [`template ${one.template_id}`, t("template_2", one.name)]),
  ];
  return html`<div class="head"><h1 class="grow">${t("submit_a_job")}</h1></div>
    <div class="section"><div class="body">
      <${Field} name="what" label=${t("type_or_template")}
        value=${template ? `template ${template.template_id}` : type.job_type} options=${options}
        onChange=${(event) => choose(event.target.value)} />
      </div></div>
    <${Form} key=${template?.template_id || type.job_type} type=${type} template=${template}
      office=${place.query.office || me.office_id || "default"} offices=${offices.data?.items || []}
      saved=${templates.again} />
    <${Templates} items=${templates.data.items} again=${templates.again} />`;
}

function Form({ type, template, office, offices, saved }) {
  const schema = type.params_schema || {};
  const start = useMemo(() => initial(schema, template?.params), []);
  const [params, setParams] = useState(start);
  const [isRaw, setRaw] = useState(!schema.properties);
  const [text, setText] = useState(() => JSON.stringify(template?.jobs ? {} : template?.params || {}, null, 2));
  const [problems, setProblems] = useState({});
  const form = useRef(null);
  const collected = () => (isRaw ? parsed(text, "params") : read(schema, params));
  const flip = () => {
    try {
      if (isRaw) setParams(initial(schema, parsed(text)));
      else setText(JSON.stringify(read(schema, params), null, 2));
      setRaw(!isRaw);
    } catch (error) {
      toast(sentence(error), "bad");
    }
  };
  const failed = (error) => {
    setProblems(Object.fromEntries((error.errors || []).map((one) => [one.field, one.problem])));
    toast(sentence(error), "bad");
  };
  const submit = async (event) => {
    event.preventDefault();
    try {
      const values = valuesOf(event.target);
      const made = template?.jobs
        ? await post("api/job-groups", groupBody(collected(), values, template))
        : await post("api/jobs", body(collected(), values, type, template));
      toast(t("it_is_in_the_queue"));
      go(made.job_id ? ["jobs", made.job_id] : ["groups", made.group_id]);
    } catch (error) {
      failed(error);
    }
  };
  const keep = async () => {
    try {
      const params = collected();
      const made = await ask({
        title: t("save_as_a_template"),
        fields: [
          { name: "name", label: t("name"), required: true },
          { name: "description", label: t("description") },
        ],
        action: t("save"),
        work: (answer) =>
          post("api/job-templates", {
            name: answer.name,
            job_type: type.job_type,
            params,
            ...(answer.description ? { description: answer.description } : {}),
          }),
        done: t("saved"),
      });
      if (made) saved();
    } catch (error) {
      failed(error);
    }
  };
  useEffect(() => {
    form.current?.querySelector("[aria-invalid=true]")?.focus();
  }, [problems]);
  const known = offices.length
    ? offices.map((one) => [
        one.office_id,
        one.name && one.name !== one.office_id ? `${one.name} (${one.office_id})` : one.office_id,
      ])
    : [[office, office]];
  return html`<form ref=${form} onSubmit=${submit} noValidate>
    <div class="columns">
      <${Section} title=${t("parameters")} actions=${html`<button type="button" aria-pressed=${String(isRaw)}
        onClick=${flip}>${t("json_2")}</button>`}>
        <div class="body">
        ${schema.description && html`<p class="dim">${schema.description}</p>`}
        ${
          isRaw
            ? html`<${Field} name="raw" label=${t("parameters_json")} kind="area" value=${text}
              onInput=${(event) => setText(event.target.value)} problem=${problems.params} />`
            : html`<${Inputs} schema=${schema} root=${schema} value=${params} set=${setParams} path="params"
              problems=${problems} />`
        }
      </div><//>
      <${Section} title=${t("options")}><div class="body fieldgrid">
        ${
          template?.jobs
            ? html`<p class="dim">${t("makes_a_group_of_parameters_and", plural(template.jobs.length, "job"), said("mode", template.mode))}</p>
        <${Field} name="name" label=${t("name")} maxlength="500" value=${template.name} problem=${problems.name} />
        <${Field} name="priority" label=${t("priority_empty_their_own")} kind="number" problem=${problems.priority} />`
            : html`
        <${Field} name="office_id" label=${t("office")} value=${office} options=${known} />
        <${Field} name="title" label=${t("title")} maxlength="500" problem=${problems.title} />
        <${Field} name="priority" label=${t("priority")} kind="number" value=${template?.priority ?? 0}
          problem=${problems.priority} />
        <${Field} name="scheduled_for" label=${t("not_before")} kind="datetime-local" problem=${problems.scheduled_for} />
        <${Field} name="expires_at" label=${t("expires")} kind="datetime-local" problem=${problems.expires_at} />
        <${Field} name="timeout_seconds" label=${t("timeout_seconds")} kind="number" step="any" min="0"
          problem=${problems.timeout_seconds} />
        <${Field} name="depends_on" label=${t("after_the_jobs_ids_by_comma")} problem=${problems.depends_on} />
        <${Field} name="question" label=${t("question_before_its_start")} maxlength="500"
          value=${template?.await_signal?.question || ""} problem=${problems["await_signal.question"]} />
        <${Field} name="unique_key" label=${t("unique_key")} problem=${problems.unique_key} />
        <${Field} name="urgent" label=${t("urgent_before_everything_else")} kind="checkbox" />`
        }
      </div><//>
    </div>
    <div class="actions">
      <button class="primary">${t("submit")}</button>${canWhole("operate") && !template?.jobs && html`<button type="button"
        onClick=${keep}>${t("save_as_a_template_more")}</button>`}
      </div>
  </form>`;
}

function groupBody(params, values, template) {
  return {
    template_id: template.template_id,
    office_id: template.office_id,
    params,
    ...(values.name ? { name: values.name } : {}),
    ...(values.priority !== "" ? { priority: Number(values.priority) } : {}),
  };
}

function body(params, values, type, template) {
  const made = {
    params,
    office_id: values.office_id,
    ...(template ? { template_id: template.template_id } : { job_type: type.job_type }),
  };
  if (values.urgent) made.urgent = true;
  else if (values.priority !== "") made.priority = Number(values.priority);
  for (const name of ["title", "unique_key"]) if (values[name]) made[name] = values[name];
  for (const name of ["scheduled_for", "expires_at"])
    if (values[name]) made[name] = new Date(values[name]).toISOString();
  if (values.timeout_seconds) made.timeout_seconds = Number(values.timeout_seconds);
  const after = (values.depends_on || "")
    .split(",")
    .map((one) => one.trim())
    .filter(Boolean);
  if (after.length) made.depends_on = after;
  // A question that is the template's own comes with all that the template says about it.
  const asked = template?.await_signal;
  if (values.question && values.question !== asked?.question)
    made.await_signal = { ...(asked || { name: "approval" }), question: values.question };
  return made;
}

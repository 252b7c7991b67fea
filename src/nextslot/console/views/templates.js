// Templates: used, made, changed, archived.
import { said, t } from "../i18n.js";
import { parsed } from "../actions.js";
import { patch, post, remove } from "../api.js";
import { html } from "../lib.js";
import { ask, attempt, can, Empty, me, Scroll, Section } from "../parts.js";
import { link } from "../router.js";
import { duration, plural } from "../words.js";

export function Templates({ items, again }) {
  if (!items.length && !can("operate")) return null;
  const drop = async (one) => {
    const sure = await ask({ title: t("archive_it", one.name), text: t("its_schedules_make_no_more_jobs"), action: t("archive"), danger: true });
    if (sure && (await attempt(() => remove(`api/job-templates/${one.template_id}`), t("archived")))) again();
  };
  const add = can("operate") && html`<button onClick=${() => edit(null).then((done) => done && again())}>${t("new_template")}</button>`;
  if (!items.length) return html`<${Section} title=${t("templates")} actions=${add}><${Empty}>${t("no_template_yet")}<//><//>`;
  return html`<${Section} title=${t("templates")} actions=${add}><${Scroll} label=${t("templates")}><table>
    <thead><tr><th>${t("name")}</th><th>${t("type")}</th><th class="wide">${t("office")}</th><th class="wide">${t("timeout")}</th>
      <th><span class="unseen">${t("actions")}</span></th></tr></thead>
    <tbody>${items.map(
      (one) => html`<tr key=${one.template_id}><td><a href=${link("submit", { template: one.template_id })}>${one.name}</a>
      ${one.description && html`<br /><span class="dim">${one.description}</span>`}</td>
      <td>${one.jobs ? plural(one.jobs.length, "job") : one.job_type}</td><td class="wide">${one.office_id}</td>
      <td class="wide">${one.timeout_seconds ? duration(one.timeout_seconds) : "–"}</td>
      <td class="number">${can("operate") && html`<button onClick=${() => edit(one).then((done) => done && again())}>${t("change_more")}</button>
        <button class="danger" onClick=${() => drop(one)}>${t("archive_more")}</button>`}</td></tr>`,
    )}</tbody></table><//><//>`;
}

const shown = (value) => (value === null || value === undefined ? "" : JSON.stringify(value, null, 2));
const choices = (kind, values) => [["", t("as_its_jobs_need")], ...values.map((value) => [value, said(kind, value)])];

// What a template has, each with its label and how it is typed. `json` is typed as JSON, empty for nothing.
const JSON_FIELDS = {
  params: () => t("parameters_json"),
  retry_policy: () => t("retries_json"),
  resources: () => t("resources_json_empty_the_types"),
  limit_keys: () => t("limit_keys_json_empty_none"),
  webhook: () => t("webhook_json_empty_none"),
  jobs: () => t("a_group_of_jobs_json"),
};

// Sends what differs from the template before: of a new one, what was filled in.
function edit(one) {
  const before = one || { params: {}, priority: 0 };
  const isGroup = Boolean(one?.jobs);
  const areas = Object.entries(JSON_FIELDS).filter(([name]) => name !== "jobs" || !one || isGroup);
  const fields = [
    { name: "name", label: t("name"), value: one?.name || "", required: true },
    { name: "description", label: t("description"), value: one?.description || "" },
    !one && { name: "office_id", label: t("office"), value: me.office_id || "default" },
    !isGroup && { name: "job_type", label: one ? t("type") : t("job_type_empty_for_a_group"), value: one?.job_type || "", required: Boolean(one) },
    { name: "priority", label: t("priority"), kind: "number", value: before.priority },
    { name: "timeout_seconds", label: t("timeout_seconds"), kind: "number", min: 0, step: "any", value: one?.timeout_seconds ?? "" },
    { name: "affinity", label: t("affinity_empty_none"), value: one?.affinity || "" },
    ...areas.map(([name, label]) => ({ name, label: label(), kind: "area", value: shown(before[name]) })),
    ...(!one || isGroup
      ? [
          { name: "mode", label: t("how_its_jobs_run"), value: one?.mode || "", options: choices("mode", ["sequential", "parallel"]) },
          { name: "on_failure", label: t("after_a_failure"), value: one?.on_failure || "", options: choices("on_failure", ["stop", "continue", "skip"]) },
        ]
      : []),
  ].filter(Boolean);
  return ask({
    title: one ? t("change", one.name) : t("new_template"),
    fields,
    action: one ? t("change_it") : t("make_it"),
    work: (answer) => {
      const body = {};
      const set = (name, value) => {
        if (name in answer && JSON.stringify(value) !== JSON.stringify(before[name] ?? null)) body[name] = value;
      };
      for (const name of ["name", "description", "office_id", "job_type", "affinity", "mode", "on_failure"]) set(name, answer[name] || null);
      set("priority", Number(answer.priority));
      set("timeout_seconds", answer.timeout_seconds === "" ? null : Number(answer.timeout_seconds));
      for (const [name] of areas) set(name, answer[name].trim() ? parsed(answer[name], name) : null);
      return one ? patch(`api/job-templates/${one.template_id}`, body) : post("api/job-templates", body);
    },
    done: one ? t("changed") : t("made"),
  });
}

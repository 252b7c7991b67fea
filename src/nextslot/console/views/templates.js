// Templates: used, changed, archived.
import { t } from "../i18n.js";
import { parsed } from "../actions.js";
import { patch, remove } from "../api.js";
import { html } from "../lib.js";
import { ask, attempt, can, Scroll, Section } from "../parts.js";
import { link } from "../router.js";
import { duration, plural } from "../words.js";

export function Templates({ items, again }) {
  if (!items.length) return null;
  const drop = async (one) => {
    const sure = await ask({ title: t("archive_it", one.name), text: t("its_schedules_make_no_more_jobs"), action: t("archive"), danger: true });
    if (sure && (await attempt(() => remove(`api/job-templates/${one.template_id}`), t("archived")))) again();
  };
  return html`<${Section} title=${t("templates")}><${Scroll} label=${t("templates")}><table>
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

const NOTHING = "null";
const shown = (value) => (value === null ? "" : JSON.stringify(value, null, 2));

function edit(one) {
  const area = (name, label) => ({ name, label, kind: "area", value: shown(one[name]) });
  return ask({
    title: t("change", one.name),
    fields: [
      { name: "name", label: t("name"), value: one.name, required: true },
      { name: "description", label: t("description"), value: one.description || "" },
      { name: "priority", label: t("priority"), kind: "number", value: one.priority },
      { name: "timeout_seconds", label: t("timeout_seconds"), kind: "number", min: 0, step: "any", value: one.timeout_seconds ?? "" },
      area("params", t("parameters_json")),
      area("retry_policy", t("retries_json")),
      ...(one.jobs ? [area("jobs", t("jobs_json"))] : []),
    ],
    action: t("change_it"),
    work: (answer) => {
      const body = {};
      const put = (name, value) => JSON.stringify(value) !== JSON.stringify(one[name]) && (body[name] = value);
      put("name", answer.name);
      put("description", answer.description || null);
      put("priority", Number(answer.priority));
      put("timeout_seconds", answer.timeout_seconds === "" ? null : Number(answer.timeout_seconds));
      for (const name of ["params", "retry_policy", "jobs"]) if (name in answer) put(name, parsed(answer[name].trim() || NOTHING, name));
      return patch(`api/job-templates/${one.template_id}`, body);
    },
    done: t("changed"),
  });
}

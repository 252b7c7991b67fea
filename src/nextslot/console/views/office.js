// One office: how it does, what its limits are and how much of them is used, and its settings.
import { said, t } from "../i18n.js";
import { get, patch, post } from "../api.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../live.js";
import {
  ask,
  attempt,
  Bar,
  can,
  canWhole,
  Empty, Loading,
  Field,
  me,
  Scroll,
  Section,
  sentence,
  Status,
  toast,
  Trouble,
  useTitle,
  valuesOf,
} from "../parts.js";
import { changeQuotas, quotaName } from "../quotas.js";
import { link } from "../router.js";
import { count, duration, plural } from "../words.js";
import { Roles } from "./roles.js";

const NUMBERS = ["ready", "pending", "processing", "done", "failed", "cancelled"];

export default function Office({ place }) {
  const id = place.parts[0];
  const path = `api/offices/${encodeURIComponent(id)}`;
  const concerns = (event) => event.office_id === id || event.office_id === null;
  const one = useLoad((signal) => loaded(path, signal), [id], { concerns });
  useTitle(one.data?.office.name || id, t("offices"));
  if (!one.data) return one.error ? html`<${Trouble} error=${one.error} />` : html`<${Loading} />`;
  const { office, stats, config, limits, quotas } = one.data;
  const isPaused = office.status === "paused";
  const pause = () =>
    attempt(
      () => post(`api/queue/${isPaused ? "resume" : "pause"}`, { office_id: id }),
      isPaused ? t("it_goes_on") : t("paused"),
    ).then(one.again);
  const cancelAll = async () => {
    const open = stats.ready + stats.pending;
    const answer = await ask({
      title: t("cancel_everything_of", office.name || id),
      text: t("that_wait_and_that_run", plural(open, "job"), plural(stats.processing, "job")),
      fields: [
        { name: "include_running", label: t("also_what_runs"), kind: "checkbox", value: true },
        { name: "reason", label: t("reason_optional") },
      ],
      action: t("cancel_everything"),
      danger: true,
      work: ({ include_running, reason }) =>
        post(`${path}/jobs/cancel-all`, { include_running, ...(reason ? { reason } : {}) }),
      done: (done) =>
        t("cancelled_asked_to_stop", plural(done.cancelled, "job"), count(done.stopping + done.finishing)),
    });
    if (answer) one.again();
  };
  return html`<div class="head">
    <h1 class="grow">${office.name || id} <span class="dim">${office.name && office.name !== id ? id : ""}</span></h1>
    <${Status} status=${office.status} />
      <div class="actions">${
        can("operate") &&
        html`<button onClick=${pause}>${isPaused ? t("resume") : t("pause")}</button>
        <button class="danger" onClick=${cancelAll}>${t("cancel_everything_more")}</button>`
      }
        <a class="button" href=${link("now", { office: id })}>${t("now")}</a>
          <a class="button" href=${link("jobs", { office_id: id })}>${t("its_jobs")}</a></div></div>
    <${Trouble} error=${one.error} />
    <${Section} title=${t("numbers")}><div class="stats">${NUMBERS.map(
      (name) => html`<div key=${name}>
      <b>${count(stats[name])}</b><span>${said("office", name)}</span></div>`,
    )}
      <div><b>${stats.avg_completion_time === null ? "–" : duration(stats.avg_completion_time / 1000)}</b>
        <span>${t("mean_time")}</span></div></div><//>
    <div class="columns">
      <${Section} title=${t("limits_and_their_use")}>
        <${Limits}
          limits=${limits} />${me.office_id !== null && html`<${Empty}>${t("this_key_does_not_see_the")}<//>`}
        <//>
      <${Section} title=${t("quotas")} actions=${canWhole("admin") && html`<button
        onClick=${() => changeQuotas(id, quotas).then((done) => done && one.again())}>${t("change_more")}</button>`}>
        <${Quotas} quotas=${quotas} /><//>
      <${Settings} key=${id} path=${path} office=${office} config=${config} done=${one.again} />
    </div>
    <${Roles} key=${`roles ${id}`} path=${path} />`;
}

async function loaded(path, signal) {
  const [office, quotas, stats, config, status] = await Promise.all([
    get(path, {}, signal),
    get(path.replace("api/offices/", "api/quotas/"), {}, signal),
    get(`${path}/scheduler/stats`, {}, signal),
    get(`${path}/scheduler/config`, {}, signal),
    me.office_id === null ? get("api/status", {}, signal) : { limits: [] },
  ]);
  const own = status.limits.filter(
    (one) => !/^(office|role):/.test(one.limit) || one.limit.split(":")[1].split("/")[0] === office.office_id,
  );
  return { office, stats, config, limits: own, quotas };
}

export function Limits({ limits }) {
  if (!limits.length) return html`<${Empty}>${t("none_is_known")}<//>`;
  return html`<${Scroll} label=${t("limits")}><table><thead><tr><th>${t("limit")}</th><th>${t("use")}</th><th class="number">${t("used")}</th></tr>
    </thead>
    <tbody>${limits.map(
      (one) => html`<tr key=${one.limit}><td class="mono">${one.limit}</td>
      <td style=${{ width: "34%" }}>${one.capacity ? html`<${Bar} fraction=${one.used / one.capacity}
        label=${t("use_of", one.limit)} />` : html`<span class="dim">${t("no_limit")}</span>`}
        </td>
      <td class="number">${count(one.used)}${one.capacity ? ` / ${count(one.capacity)}` : ""}</td></tr>`,
    )}</tbody>
        </table><//>`;
}

// What admins have granted, and what is used of it.
function Quotas({ quotas }) {
  const { used, job_types: types, ...most } = quotas;
  return html`<${Scroll} label=${t("quotas")}><table><thead><tr><th>${t("quota")}</th><th class="number">${t("at_most_2")}</th>
    <th class="number">${t("used")}</th></tr></thead>
    <tbody>${Object.entries(most).map(
      ([name, value]) => html`<tr key=${name}><td>${quotaName(name)}</td>
      <td class="number">${typeof value === "boolean" ? t(value ? "yes" : "no") : value ? count(value) : "–"}</td>
      <td class="number">${typeof used[name] === "number" ? count(used[name]) : ""}</td></tr>`,
    )}<tr><td>${t("job_types")}</td><td class="number">${types.length ? types.join(", ") : t("all_2")}</td><td></td></tr>
    </tbody></table><//>`;
}

function Settings({ path, office, config, done }) {
  const [problems, setProblems] = useState({});
  const mayChange = can("operate");
  const submit = async (event) => {
    event.preventDefault();
    const values = valuesOf(event.target);
    try {
      const asked = {
        maxConcurrentJobs: Number(values.maxConcurrentJobs),
        maxRetries: Number(values.maxRetries),
        retryBackoff: values.retryBackoff,
        retryBaseDelay: Math.round(Number(values.retryBaseDelay) * 1000),
        defaultTimeout: values.defaultTimeout === "" ? null : Math.round(Number(values.defaultTimeout) * 60_000),
        maxConcurrentByRole: roles(values.roles),
        retryOn: values.retryOn.split(",").map((one) => one.trim()).filter(Boolean),
        priorityAging: values.priorityAging ? Math.round(Number(values.priorityAging) * 1000) : null,
      };
      const changed = Object.fromEntries(
        Object.entries(asked).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(config[name])),
      );
      // A role that is not named keeps its limit; one whose line was removed has none any more.
      const removed = Object.keys(config.maxConcurrentByRole).filter(
        (role) => !Object.hasOwn(asked.maxConcurrentByRole, role),
      );
      for (const role of removed) changed.maxConcurrentByRole[role] = null;
      if (Object.keys(changed).length) await patch(`${path}/scheduler/config`, changed);
      const rest = Object.fromEntries(
        ["cancel_mode", "on_dependency_failure", "name"]
          .filter((name) => values[name] && values[name] !== office[name])
          .map((name) => [name, values[name]]),
      );
      if (values.webhook && values.webhook !== office.webhook?.url) rest.webhook = { ...office.webhook, url: values.webhook };
      if (!values.webhook && office.webhook) rest.webhook = null;
      if (Object.keys(rest).length) await patch(path, rest);
      setProblems({});
      toast(t("saved"));
      done();
    } catch (error) {
      setProblems(Object.fromEntries((error.errors || []).map((one) => [one.field, one.problem])));
      toast(sentence(error), "bad");
    }
  };
  // What the configuration file sets, only the file changes.
  const shared = (name) => {
    const isLocked = office.set_by_file.includes(name);
    return { disabled: !mayChange || isLocked, help: isLocked ? t("the_file_wins") : "" };
  };
  const isArchived = office.status === "archived";
  const archive = async () => {
    const sure = isArchived || (await ask({ title: t("archive_it", office.name || office.office_id), text: t("it_takes_no_more_jobs"), action: t("archive"), danger: true }));
    if (sure && (await attempt(() => patch(path, { status: isArchived ? "active" : "archived" }), t("saved")))) done();
  };
  return html`<${Section} title=${t("configuration")}><form class="body" onSubmit=${submit}><div class="fieldgrid">
      <${Field} name="name" label=${t("name")} value=${office.name} ...${shared("name")} />
      <${Field} name="maxConcurrentJobs" label=${t("jobs_at_once_0_no_limit")} kind="number" min="0"
        value=${config.maxConcurrentJobs} problem=${problems.maxConcurrentJobs} ...${shared("max_concurrent_jobs")} />
      <${Field} name="defaultTimeout" label=${t("timeout_minutes_empty_none")} kind="number" min="0" step="any"
        value=${config.defaultTimeout === null ? "" : config.defaultTimeout / 60_000} problem=${problems.defaultTimeout}
        ...${shared("timeout_seconds")} />
      <${Field} name="maxRetries" label=${t("retries_at_most")} kind="number" min="0" value=${config.maxRetries}
        problem=${problems.maxRetries} ...${shared("retry_policy")} />
      <${Field} name="retryBackoff" label=${t("pauses_between_retries")} value=${config.retryBackoff}
        options=${["exponential", "linear"].map((one) => [one, said("backoff", one)])} ...${shared("retry_policy")} />
      <${Field} name="retryBaseDelay" label=${t("first_pause_seconds")} kind="number" min="0" step="any"
        value=${config.retryBaseDelay / 1000} problem=${problems.retryBaseDelay} ...${shared("retry_policy")} />
      <${Field} name="retryOn" label=${t("also_retried")} value=${config.retryOn.join(", ")} problem=${problems.retryOn} ...${shared("retry_policy")} />
      <${Field} name="priorityAging" label=${t("aging_seconds")} kind="number" min="0" step="any"
        value=${config.priorityAging === null ? "" : config.priorityAging / 1000} problem=${problems.priorityAging} ...${shared("priority_aging_seconds")} />
      <${Field} name="cancel_mode" label=${t("cancelled_while_it_runs")} value=${office.cancel_mode} options=${[
        ["finish", t("finishes_first")],
        ["interrupt", t("is_told_to_stop")],
      ]} ...${shared("cancel_mode")} />
      <${Field} name="on_dependency_failure" label=${t("what_it_waits_for_fails")} value=${office.on_dependency_failure}
        options=${[
        ["wait", t("waits_on")],
        ["cancel", t("is_cancelled")],
      ]} ...${shared("on_dependency_failure")} />
      <${Field} name="webhook" label=${t("webhook_of_the_office")} kind="url" value=${office.webhook?.url || ""} problem=${problems.webhook} ...${shared("webhook")} />
    </div>
    <${Field} name="roles" label=${t("at_once_by_role_one_a")} kind="area"
      value=${Object.entries(
      config.maxConcurrentByRole,
    )
      .map(([role, limit]) => `${role} ${limit}`)
      .join("\n")} problem=${problems.maxConcurrentByRole} ...${shared("role_limits")} />
    ${mayChange && html`<div class="actions"><button class="primary">${t("save")}</button>
      ${office.office_id !== "default" && html`<button type="button" class="danger" onClick=${archive}>${isArchived ? t("take_it_back") : t("archive_more")}</button>`}</div>`}</form><//>`;
}

function roles(text) {
  const found = {};
  for (const line of text
    .split("\n")
    .map((one) => one.trim())
    .filter(Boolean)) {
    const [, role, limit] = line.match(/^(.*\S)\s+(\d+)$/) || [];
    if (!role) throw new Error(t("is_not_a_role_and_a", line));
    found[role] = Number(limit);
  }
  return found;
}

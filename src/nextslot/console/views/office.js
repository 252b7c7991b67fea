// One office: how it does, what its limits are and how much of them is used, and its settings.
import { get, patch, post } from "../api.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../live.js";
import {
  ask,
  attempt,
  Bar,
  can,
  canWhole,
  Empty,
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
import { link } from "../router.js";
import { count, duration, plural } from "../words.js";

const NUMBERS = [
  ["ready", "ready"],
  ["pending", "waiting"],
  ["processing", "running"],
  ["done", "done"],
  ["failed", "failed"],
  ["cancelled", "cancelled"],
];

export default function Office({ place }) {
  const id = place.parts[0];
  const path = `api/offices/${encodeURIComponent(id)}`;
  const concerns = (event) => event.office_id === id || event.office_id === null;
  const one = useLoad((signal) => loaded(path, signal), [id], { concerns });
  useTitle(one.data?.office.name || id, "Offices");
  if (!one.data) return one.error ? html`<${Trouble} error=${one.error} />` : html`<${Empty}>Loading…<//>`;
  const { office, stats, config, limits, quotas } = one.data;
  const isPaused = office.status === "paused";
  const pause = () =>
    attempt(
      () => post(`api/queue/${isPaused ? "resume" : "pause"}`, { office_id: id }),
      isPaused ? "It goes on." : "Paused.",
    ).then(one.again);
  const cancelAll = async () => {
    const open = stats.ready + stats.pending;
    const answer = await ask({
      title: `Cancel everything of ${office.name || id}?`,
      text: `${plural(open, "job")} that wait, and ${plural(stats.processing, "job")} that run.`,
      fields: [
        { name: "include_running", label: "Also what runs", kind: "checkbox", value: true },
        { name: "reason", label: "Reason (optional)" },
      ],
      action: "Cancel everything",
      danger: true,
      work: ({ include_running, reason }) =>
        post(`${path}/jobs/cancel-all`, { include_running, ...(reason ? { reason } : {}) }),
      done: (done) =>
        `${plural(done.cancelled, "job")} cancelled, ${count(done.stopping + done.finishing)} asked to stop.`,
    });
    if (answer) one.again();
  };
  return html`<div class="head">
    <h1 class="grow">${office.name || id} <span class="dim">${office.name && office.name !== id ? id : ""}</span></h1>
    <${Status} status=${office.status} />
      <div class="actions">${
        can("operate") &&
        html`<button onClick=${pause}>${isPaused ? "Resume" : "Pause"}</button>
        <button class="danger" onClick=${cancelAll}>Cancel everything…</button>`
      }
        <a class="button" href=${link("now", { office: id })}>Now</a>
          <a class="button" href=${link("jobs", { office_id: id })}>Its jobs</a></div></div>
    <${Trouble} error=${one.error} />
    <${Section} title="Numbers"><div class="stats">${NUMBERS.map(
      ([name, word]) => html`<div key=${name}>
      <b>${count(stats[name])}</b><span>${word}</span></div>`,
    )}
      <div><b>${stats.avg_completion_time === null ? "–" : duration(stats.avg_completion_time / 1000)}</b>
        <span>mean time</span></div></div><//>
    <div class="columns">
      <${Section} title="Limits and their use">
        <${Limits}
          limits=${limits} />${me.office_id !== null && html`<${Empty}>This key does not see the limits of the whole scheduler.<//>`}
        <//>
      <${Section} title="Quotas">
        <${Quotas} quotas=${quotas} /><//>
      <${Settings} key=${id} path=${path} office=${office} config=${config} done=${one.again} />
    </div>`;
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
  if (!limits.length) return html`<${Empty}>None is known.<//>`;
  return html`<${Scroll} label="Limits"><table><thead><tr><th>Limit</th><th>Use</th><th class="number">Used</th></tr>
    </thead>
    <tbody>${limits.map(
      (one) => html`<tr key=${one.limit}><td class="mono">${one.limit}</td>
      <td style=${{ width: "34%" }}>${one.capacity ? html`<${Bar} fraction=${one.used / one.capacity}
        label=${`Use of ${one.limit}`} />` : html`<span class="dim">no limit</span>`}
        </td>
      <td class="number">${count(one.used)}${one.capacity ? ` of ${count(one.capacity)}` : ""}</td></tr>`,
    )}</tbody>
        </table><//>`;
}

// What admins have granted: `nextslot quota grant` changes it.
function Quotas({ quotas }) {
  const { used, job_types: types, ...most } = quotas;
  return html`<${Scroll} label="Quotas"><table><thead><tr><th>Quota</th><th class="number">At most</th>
    <th class="number">Used</th></tr></thead>
    <tbody>${Object.entries(most).map(
      ([name, value]) => html`<tr key=${name}><td class="mono">${name}</td>
      <td class="number">${value === true ? "yes" : value ? count(value) : "–"}</td>
      <td class="number">${typeof used[name] === "number" ? count(used[name]) : ""}</td></tr>`,
    )}<tr><td class="mono">job_types</td><td class="number" colspan="2">${types.length ? types.join(", ") : "all"}</td></tr>
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
      if (Object.keys(rest).length) await patch(path, rest);
      setProblems({});
      toast("Saved.");
      done();
    } catch (error) {
      setProblems(Object.fromEntries((error.errors || []).map((one) => [one.field, one.problem])));
      toast(sentence(error), "bad");
    }
  };
  const shared = { disabled: !mayChange };
  return html`<${Section} title="Configuration"><form class="body" onSubmit=${submit}><div class="fieldgrid">
      <${Field} name="name" label="Name" value=${office.name} ...${shared} />
      <${Field} name="maxConcurrentJobs" label="Jobs at once (0: no limit)" kind="number" min="0"
        value=${config.maxConcurrentJobs} problem=${problems.maxConcurrentJobs} ...${shared} />
      <${Field} name="defaultTimeout" label="Timeout, minutes (empty: none)" kind="number" min="0" step="any"
        value=${config.defaultTimeout === null ? "" : config.defaultTimeout / 60_000} problem=${problems.defaultTimeout}
        ...${shared} />
      <${Field} name="maxRetries" label="Retries at most" kind="number" min="0" value=${config.maxRetries}
        problem=${problems.maxRetries} ...${shared} />
      <${Field} name="retryBackoff" label="Pauses between retries" value=${config.retryBackoff}
        options=${[["exponential"], ["linear"]]} ...${shared} />
      <${Field} name="retryBaseDelay" label="First pause, seconds" kind="number" min="0" step="any"
        value=${config.retryBaseDelay / 1000} problem=${problems.retryBaseDelay} ...${shared} />
      <${Field} name="cancel_mode" label="Cancelled while it runs" value=${office.cancel_mode} options=${[
        ["finish", "finishes first"],
        ["interrupt", "is told to stop"],
      ]} ...${shared} />
      <${Field} name="on_dependency_failure" label="What it waits for fails" value=${office.on_dependency_failure}
        options=${[
        ["wait", "waits on"],
        ["cancel", "is cancelled"],
      ]} ...${shared} />
    </div>
    <${Field} name="roles" label="At once by role (one a line, such as FE 2; 0: no limit)" kind="area"
      value=${Object.entries(
      config.maxConcurrentByRole,
    )
      .map(([role, limit]) => `${role} ${limit}`)
      .join("\n")} problem=${problems.maxConcurrentByRole} ...${shared} />
    ${mayChange && html`<button class="primary">Save</button>`}</form><//>`;
}

function roles(text) {
  const found = {};
  for (const line of text
    .split("\n")
    .map((one) => one.trim())
    .filter(Boolean)) {
    const [, role, limit] = line.match(/^(.*\S)\s+(\d+)$/) || [];
    if (!role) throw new Error(`"${line}" is not a role and a number.`);
    found[role] = Number(limit);
  }
  return found;
}

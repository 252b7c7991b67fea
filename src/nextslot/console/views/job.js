// One job: what it is, where it stands, why it waits, what it says, what it made, and what can be done with it.
import { said, t } from "../i18n.js";
import { answerJob, cancelJob, moved, parsed, retryRun, runAgain, useGoing } from "../actions.js";
import { download, get, patch, post } from "../api.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../live.js";
import {
  ask,
  attempt,
  Bar,
  can,
  canWhole,
  Empty, Loading,
  Fields,
  hasOffices,
  Id,
  Json,
  Scroll,
  Section,
  Status,
  Trouble,
  useNow,
  useTitle,
  When,
} from "../parts.js";
import { link } from "../router.js";
import { between, duration, ENDED, named, plural, size } from "../words.js";
import { EventTable } from "./events.js";
import { Log } from "./log.js";
import { Deliveries } from "./deliveries.js";

export default function JobPage({ place }) {
  const id = place.parts[0];
  const job = useLoad((signal) => get(`api/jobs/${encodeURIComponent(id)}`, {}, signal), [id], {
    concerns: (event) =>
      event.job_id === id ||
      (job.data?.chain || []).some((one) => one.job_id === event.job_id) ||
      event.details?.retry === id,
  });
  const shown = job.data?.job_id === id ? job.data : null;
  useTitle(shown ? named(shown) : "", t("jobs"));
  if (!shown) return job.error ? html`<${Trouble} error=${job.error} />` : html`<${Loading} />`;
  const hasEnded = ENDED.includes(shown.status);
  return html`
    <div class="head stays">
      <h1 class="grow" title=${named(shown)}>${named(shown)} <span class="dim">${shown.title ? shown.job_type : ""}</span></h1>
      <${Status} status=${shown.status} />
      <${Actions} job=${shown} again=${job.again} />
    </div>
    <${Trouble} error=${job.error} />
    <div class="page">
      <div>
        <${Steps} job=${shown} />
        ${shown.awaiting && !hasEnded && html`<${Asked} job=${shown} again=${job.again} />`}
        ${!hasEnded && html`<${Why} job=${shown} />`}
        <${Ending} job=${shown} />
        ${shown.run && html`<${Log} key=${shown.run.run_id} job=${shown} lines=${place.lines} />`}
        <${Section} title=${t("parameters")}><${Json} value=${shown.params} label=${t("parameters")} /><//>
        ${canWhole("read") && shown.webhook_status !== "none" && html`<${Deliveries} query=${{ job_id: id }}
          title=${t("deliveries")} />`}
        <${Events} id=${id} />
      </div>
      <aside aria-label=${t("about_the_job")}>
        ${shown.run && html`<${RunFacts} job=${shown} />`}
        ${shown.chain.length > 1 && html`<${Chain} job=${shown} />`}
        ${shown.run && html`<${Artifacts} run=${shown.run} />`}
        <${About} job=${shown} />
        ${shown.checkpoint && html`<${Section} title=${t("checkpoint")} actions=${html`<span class="dim"><${When} at=${shown.checkpoint.stored_at} /></span>`}>
          <${Json} value=${shown.checkpoint.value} label=${t("checkpoint")} /><//>`}
      </aside>
    </div>`;
}

// What the run of this job is, or was: progress, times, where it ran.
function RunFacts({ job }) {
  const { run } = job;
  const isRunning = run.status === null;
  const live = useLiveRun(job);
  const progress = live?.progress;
  const placement = (live || run).placement;
  const now = useNow();
  const end = run.finished_at ? new Date(run.finished_at) : now;
  const devices = Object.entries(run.devices || {}).map(([name, ids]) => `${name}: ${[].concat(ids).join(", ")}`);
  return html`<${Section} title=${t("run_facts")}>
    ${
      progress &&
      (progress.fraction !== null || progress.text) &&
      html`<div class="body">${progress.fraction !== null && html`<${Bar} fraction=${progress.fraction} label=${t("progress")} />`}
      ${progress.fraction !== null ? `${Math.round(progress.fraction * 100)} %` : ""} ${progress.text}</div>`
    }
    <${Fields} of=${[
      [t("attempt"), `${job.attempt} / ${Math.max(job.chain.length, job.attempt)}`],
      [t("started"), html`<${When} at=${run.started_at} />`],
      [isRunning ? t("runs_for") : t("ran"), duration((end - new Date(run.started_at)) / 1000)],
      [t("times_out"), isRunning && run.timeout_at && html`<${When} at=${run.timeout_at} />`],
      [t("silent_since"), run.silent_since && html`<${When} at=${run.silent_since} />`],
      [t("exit_code"), run.exit_code],
      [t("engine"), placement?.engine],
      [t("where_it_is"), isRunning && placement && said("placement", placement.state)],
      [t("handle"), placement?.handle],
      [t("worker"), job.worker_id],
      [t("devices"), devices.join("; ")],
      [t("session"), run.session_id],
      [t("id"), html`<span class="mono">${run.run_id}</span>`],
    ]} /><//>`;
}

function Chain({ job }) {
  return html`<${Section} title=${t("chain", plural(job.chain.length, "attempt"))}><ol class="attempts">${job.chain.map(
    (one) => html`<li key=${one.job_id} aria-current=${one.job_id === job.job_id ? "true" : undefined}>
    <a href=${link(["jobs", one.job_id])}>${t("attempt_2", one.attempt)}</a> <${Status} status=${one.status} />
    <span class="dim">${one.started_at ? duration(between(one.started_at, one.finished_at || new Date().toISOString())) : html`<${When} at=${one.scheduled_for || one.created_at} />`}</span></li>`,
  )}</ol><//>`;
}

function Actions({ job, again }) {
  const hasEnded = ENDED.includes(job.status);
  const isQueued = job.status === "QUEUED" || job.status === "WAITING";
  const isGoing = useGoing()(job.job_id);
  const move = async (to) => {
    const why = await get(`api/jobs/${job.job_id}/why`, { wait_seconds: 0 }).catch(() => null);
    const done = await attempt(() => post(`api/jobs/${job.job_id}/move`, { to }), to === "front" ? t("it_is_first_now") : t("it_is_last_now"));
    if (done && why) moved(job, { place: why.ahead + 1 }, again);
    again();
  };
  return html`<div class="actions">
    ${
      can("operate") &&
      isQueued &&
      html`<button onClick=${() => move("front")}>${t("to_the_front")}</button>
      <button onClick=${() => move("back")}>${t("to_the_back")}</button>
      <button onClick=${() => edit(job).then((done) => done && again())}>${t("change_more")}</button>`
    }
    ${can("operate") && job.status === "FAILED" && isLast(job) && html`<button class="primary"
      onClick=${() => retryRun(job.run)}>${t("retry")}</button>`}
    ${can("operate") && job.status === "RUNNING" && job.run?.placement && html`<button
      onClick=${() => lose(job).then((done) => done && again())}>${t("it_is_lost_more")}</button>`}
    ${!isLast(job) && html`<a class="button" href=${link(["jobs", job.chain.at(-1).job_id])}>${t("last_attempt")}</a>`}
    ${can("submit") && hasEnded && html`<button onClick=${() => runAgain(job)}>${t("run_again_more")}</button>`}
    ${
      can("operate") &&
      !hasEnded &&
      html`<button class="danger" disabled=${Boolean(job.cancel_requested_at) || isGoing}
        onClick=${() => cancelJob(job).then((done) => done && again())}>
      ${job.cancel_requested_at ? t("told_to_stop") : t("cancel_more")}</button>`
    }
    ${(job.group_id || job.task_id || job.depends_on.length > 0) && html`<a class="button"
      href=${graphOf(job)}>${t("graph")}</a>`}
  </div>`;
}

// Takes an operator's word that the engine does not run it any more.
const lose = (job) =>
  ask({
    title: t("is_it_lost", named(job)),
    text: t("only_if_it_does_not_go_on"),
    action: t("it_is_lost"),
    danger: true,
    work: () => post(`api/jobs/${job.job_id}/lost`),
    done: t("it_ended_as_lost"),
  });

// The chain goes on with the attempts after this one.
const isLast = (job) => job.chain.at(-1)?.job_id === job.job_id;

function graphOf(job) {
  if (job.group_id) return link(["groups", job.group_id]);
  return job.task_id
    ? link("graph", { task_id: job.task_id, office_id: job.office_id })
    : link("graph", { job_id: job.job_id });
}

const URGENT = 1_000_000;

// As a field for a date and a time has it, which knows no other zone than the browser's.
const localTime = (at) => (at ? new Date(new Date(at) - new Date(at).getTimezoneOffset() * 60_000).toISOString().slice(0, 19) : "");

async function edit(job) {
  const changed = await ask({
    title: t("change", named(job)),
    text: t("while_it_is_queued"),
    fields: [
      { name: "title", label: t("title"), value: job.title || "", maxlength: 500 },
      { name: "priority", label: t("priority"), kind: "number", value: job.priority },
      { name: "urgent", label: t("urgent_before_everything_else"), kind: "checkbox", value: job.priority === URGENT },
      { name: "scheduled_for", label: t("not_before_empty_at_once"), kind: "datetime-local", step: 1, value: localTime(job.scheduled_for) },
      { name: "params", label: t("parameters_json"), kind: "area", value: JSON.stringify(job.params, null, 2) },
    ],
    action: t("change_it"),
    work: (answer) => {
      const body = { params: parsed(answer.params, "params") };
      if (answer.title && answer.title !== job.title) body.title = answer.title;
      if (answer.urgent !== (job.priority === URGENT)) body.urgent = answer.urgent;
      else if (Number(answer.priority) !== job.priority) body.priority = Number(answer.priority);
      if (answer.scheduled_for !== localTime(job.scheduled_for))
        body.scheduled_for = answer.scheduled_for ? new Date(answer.scheduled_for).toISOString() : null;
      return patch(`api/jobs/${job.job_id}`, body);
    },
    done: t("changed"),
  });
  return Boolean(changed);
}

// The way so far, and what is still to come.
function Steps({ job }) {
  const now = useNow();
  const end = job.finished_at || job.cancelled_at;
  const waited = between(job.created_at, job.started_at || end || new Date(now).toISOString());
  const ran = job.started_at ? between(job.started_at, end || new Date(now).toISOString()) : null;
  const steps = [
    [t("created"), job.created_at, job.created_by ? t("by_2", job.created_by) : ""],
    job.scheduled_for && [t("not_before"), job.scheduled_for, job.retry_of ? t("a_retry") : ""],
    [t("started"), job.started_at, job.started_at || !end ? t("waited_2", duration(waited)) : t("never")],
    job.cancel_requested_at && [t("cancel_asked"), job.cancel_requested_at, job.cancel_reason || ""],
    [
      end ? said("status", job.status) : t("ended"),
      end,
      ran === null ? "" : t("ran_2", duration(ran)),
    ],
  ].filter(Boolean);
  return html`<section class="section" aria-label=${t("timeline_of_statuses")}>
    <ol class="steps">${steps.map(
      ([name, at, note]) => html`<li key=${name} class=${at && new Date(at) <= now ? "done" : ""}>
    ${name}<br /><${When} at=${at} /><small>${note}</small></li>`,
    )}</ol></section>`;
}

// The signal that it waits for, and its two answers.
function Asked({ job, again }) {
  const { name, question, answered_by, on_deadline, asked_at, answer_by } = job.awaiting;
  const answer = (word) => answerJob(job, word).then((done) => done && again());
  const actions =
    can("operate") &&
    html`<button class="primary" onClick=${() => answer("approve")}>${t("approve")}</button>
    <button class="danger" onClick=${() => answer("reject")}>${t("reject")}</button>`;
  return html`<${Section} title=${t("it_waits_for_an_answer")} actions=${actions}><${Fields} of=${[
    [t("the_question"), question || name],
    [t("who_may_answer"), answered_by.length ? answered_by.join(", ") : t("those_who_operate")],
    [t("since"), asked_at && html`<${When} at=${asked_at} />`],
    [t("without_an_answer"), answer_by && html`${said("answer", on_deadline)}, <${When} at=${answer_by} />`],
  ]} /><//>`;
}

function Why({ job }) {
  const concerns = (event) => event.office_id === job.office_id || event.office_id === null;
  const [isAwaited, setAwaited] = useState(false);
  // The reasons are there at once; from then on the forecast is waited for.
  const load = async (signal) => {
    const found = await get(`api/jobs/${job.job_id}/why`, { wait_seconds: isAwaited ? 30 : 0 }, signal);
    setAwaited(true);
    return { ...found, isForeseen: isAwaited || found.forecast_at !== null };
  };
  const why = useLoad(load, [job.job_id, job.status, isAwaited], {
    concerns,
    every: 10_000,
  });
  const found = why.data;
  const none = found?.isForeseen ? t("no_estimate") : "…";
  return html`<${Section} title=${job.status === "RUNNING" ? t("it_runs") : t("why_is_it_not_running_and")}>
    <${Trouble} error=${why.error} />
    ${
      found &&
      html`<ul class="reasons">${found.reasons.map(
        (reason, index) => html`<li key=${index}>
      <${Said} reason=${reason} /></li>`,
      )}</ul>
      <${Fields} of=${[
        [t("ahead_of_it"), job.status === "RUNNING" ? null : plural(found.ahead, "job")],
        [t("expected_start"), job.status !== "RUNNING" && html`<${When} at=${found.expected_start} none=${none} />`],
        [t("expected_end"), html`<${When} at=${found.expected_end} none=${none} />`],
        [t("confidence"), found.isForeseen ? said("confidence", found.confidence) : "…"],
      ]} />`
    }
  <//>`;
}

// What no event says of a run: its progress, and how it is on its engine.
function useLiveRun(job) {
  const isRunning = job.status === "RUNNING";
  const run = useLoad(
    (signal) => (isRunning ? get(`api/job-runs/${job.run.run_id}`, {}, signal) : null),
    [job.status, job.run.run_id],
    { every: isRunning ? 1000 : 0 },
  );
  return isRunning ? run.data : null;
}

// A reason's sentence, with its ids as links and its instants as times of day.
function Said({ reason }) {
  const direct = new Set([
    ...(reason.data.held_by || []).filter((one) => one.kind === "direct").map((one) => one.id),
    ...(reason.data.direct_ids || []),
  ]);
  const parts = reason.text.split(
    /([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)/,
  );
  return parts.map((part, index) => {
    if (index % 2 === 0) return part;
    return part.endsWith("Z")
      ? html`<${When} key=${index} at=${part} absolute />`
      : html`<${Id} key=${index} id=${part} to=${direct.has(part) ? "direct" : "jobs"} />`;
  });
}

function Ending({ job }) {
  const run = job.run;
  if (!run || run.status === null) {
    return job.status === "CANCELLED"
      ? html`<${Section} title=${t("cancelled_2")}>
      <${Fields} of=${[[t("reason"), job.cancel_reason || t("none_was_given")]]} /><//>`
      : null;
  }
  const rows = [
    [t("failure"), run.failure_kind && said("failure", run.failure_kind)],
    [t("reason"), run.reason],
    [t("cancelled_because"), job.cancel_reason],
    [t("retries"), job.permanently_failed ? t("retries_exhausted") : null],
  ];
  const hasRows = rows.some((row) => row[1] !== null && row[1] !== undefined);
  if (!run.error && run.result === null && !hasRows) return null;
  return html`<${Section} title=${t("how_it_ended")}>
    ${hasRows && html`<${Fields} of=${rows} />`}
    ${run.error && html`<pre class="json problem" tabindex="0" aria-label=${t("error")}>${run.error}</pre>`}
    ${run.result !== null && html`<${Json} value=${run.result} label=${t("result")} />`}<//>`;
}

function About({ job }) {
  const policy = job.retry_policy;
  const resources = Object.entries(job.resources)
    .map(([name, units]) => `${name}: ${units}`)
    .join(", ");
  return html`<${Section} title=${t("settings")}><${Fields} of=${[
    [t("id"), html`<span class="mono">${job.job_id}</span>`],
    [t("office"), hasOffices() ? html`<a href=${link(["offices", job.office_id])}>${job.office_id}</a>` : job.office_id],
    [t("priority"), job.priority === 1_000_000 ? t("urgent") : job.priority],
    [t("aged_by"), job.aged_steps || null],
    [
      t("attempt"),
      `${job.attempt} (${policy.max_attempts ? t("at_most_from_s", plural(policy.max_attempts, "retry"), said("backoff", policy.backoff), policy.base_delay_seconds) : t("no_retries")})`,
    ],
    [t("retry_of"), job.retry_of && html`<${Id} id=${job.retry_of} to="jobs" />`],
    [
      t("depends_on"),
      job.depends_on.length ? job.depends_on.map((id) => html`<${Id} key=${id} id=${id} to="jobs" /> `) : null,
    ],
    [t("group"), job.group_id && html`<${Id} id=${job.group_id} to="groups" /> ${t("place", job.sequence + 1)}`],
    [t("schedule"), job.schedule_id && html`<${Id} id=${job.schedule_id} to="schedules" />`],
    [t("role"), job.role],
    [
      t("task_2"),
      job.task_id &&
        html`<a href=${link("jobs", { task_id: job.task_id })}>${job.task_id}
      </a>`,
    ],
    [t("resources"), resources],
    [t("unique_key"), job.unique_key],
    [t("timeout"), job.timeout_seconds && duration(job.timeout_seconds)],
    [t("stall_timeout"), job.stall_timeout_seconds && duration(job.stall_timeout_seconds)],
    [t("expires"), job.expires_at && html`<${When} at=${job.expires_at} />`],
    [t("webhook"), job.webhook && `${job.webhook.url} (${said("status", job.webhook_status.toUpperCase())})`],
    [t("affinity"), job.affinity],
  ]} /><//>`;
}

function Artifacts({ run }) {
  if (!run.artifacts.length) return null;
  const path = (name) => `api/job-runs/${run.run_id}/artifacts/${name.split("/").map(encodeURIComponent).join("/")}`;
  return html`<${Section} title=${plural(run.artifacts.length, "artifact")}><${Scroll} label=${t("artifacts")}><table>
    <thead><tr><th>${t("name")}</th><th class="number">${t("size")}</th><th><span class="unseen">${t("actions")}</span></th></tr></thead>
    <tbody>${run.artifacts.map(
      (one) => html`<tr key=${one.name}><td>${one.name}</td>
      <td class="number">${size(one.size)}</td>
      <td class="number">
        <button onClick=${() => attempt(() => download(path(one.name), one.name.split("/").pop()))}>${t("save")}</button></td>
        </tr>`,
    )}</tbody></table><//><//>`;
}

function Events({ id }) {
  const [limit, setLimit] = useState(100);
  const events = useLoad((signal) => get("api/events", { job_id: id, limit }, signal), [id, limit], {
    concerns: (event) => event.job_id === id,
  });
  return html`<${Section} title=${t("events")}><${EventTable} events=${events.data?.items || []} />
    ${
      events.data?.next_cursor &&
      limit < 500 &&
      html`<p class="more">
      <button onClick=${() => setLimit(500)}>${t("more")}</button></p>`
    }<//>`;
}

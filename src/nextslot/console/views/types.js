// Job types: a list of them, and a page for each: how much it does, how long that takes, and what goes wrong.
import { said, t } from "../i18n.js";
import { get } from "../api.js";
import { Chart } from "../charts.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../live.js";
import { Empty, Fields, Section, Trouble, useTitle, When } from "../parts.js";
import { change, link } from "../router.js";
import { count, duration, plural, span } from "../words.js";
import { Sparkline } from "./failures.js";
import { Table } from "./jobs.js";

const RANGES = [
  [21_600, 300],
  [86_400, 900],
  [604_800, 3600],
  [2_592_000, 86_400],
];
const DAY = 86_400;

export default function Types({ place }) {
  return place.parts.length ? html`<${Type} name=${place.parts[0]} place=${place} />` : html`<${All} />`;
}

function All() {
  const list = useLoad((signal) => get("api/job-types", {}, signal), []);
  const items = list.data?.items || [];
  return html`<div class="head"><h1 class="grow">${t("job_types")}</h1></div>
    <${Trouble} error=${list.error} />
    <${Section} title=${plural(items.length, "job type")}>${
      items.length
        ? html`<ul class="rows">${items.map(
            (one) => html`<li key=${one.job_type}><a href=${link(["types", one.job_type])}>${one.job_type}</a>
            <span class="dim clip">${one.description || ""}</span></li>`,
          )}</ul>`
        : html`<${Empty} isLoading=${list.isLoading}>${t("none")}<//>`
    }<//>`;
}

function Type({ name, place }) {
  useTitle(name, t("job_types"));
  const seconds = Number(place.query.range) || DAY;
  const [, step] = RANGES.find(([one]) => one === seconds) || RANGES[1];
  const since = () => new Date(Date.now() - seconds * 1000).toISOString();
  const series = useLoad((signal) => get("api/stats/series", { job_type: name, step, from: since() }, signal), [name, seconds], { every: 30_000 });
  const failures = useLoad((signal) => get("api/failures", { job_type: name, since: since(), limit: 5 }, signal), [name, seconds], { every: 30_000 });
  const jobs = useLoad((signal) => get("api/jobs", { job_type: name, limit: 10 }, signal), [name], { concerns: (event) => event.type.startsWith("job_"), every: 30_000 });
  return html`<div><div class="head"><h1 class="grow">${name}</h1>
      <a class="button" href=${link("jobs", { job_type: name })}>${t("jobs")}</a>
      <div class="actions" role="group" aria-label=${t("range")}>${RANGES.map(
        ([value]) => html`<button key=${value} aria-pressed=${String(value === seconds)}
        onClick=${() => change(["types", name], { range: value === DAY ? "" : value })}>${value > DAY ? t("unit_d", value / DAY) : span(value)}</button>`,
      )}</div></div>
    <${Trouble} error=${series.error || failures.error || jobs.error} />
    <${History} series=${series.data} />
    <${Section} title=${t("last_errors")} actions=${html`<a class="button" href=${link("failures", { job_type: name })}>${t("failures")}</a>`}>
      ${
        failures.data?.items.length
          ? html`<ul class="failures">${failures.data.items.map(
              (one) => html`<li key=${one.fingerprint}><div class="what">
              <a class="message" href=${link("failures", { fingerprint: one.fingerprint, range: seconds })}>${one.message || t("no_message")}</a>
              <p class="dim"><span>${said("failure", one.failure_kind)}</span><span>${t("last_seen")} <${When} at=${one.last_seen} /></span></p></div>
              <div class="counts"><strong>${count(one.count)}</strong><${Sparkline} values=${one.buckets} since=${failures.data.since}
                seconds=${failures.data.bucket_seconds} label=${t("failures_over_time", plural(one.count, "failure"))} /></div></li>`,
            )}</ul>`
          : html`<${Empty} isLoading=${failures.isLoading}>${t("nothing_has_failed")}<//>`
      }<//>
    <${Section} title=${t("newest_jobs")}>${
      jobs.data?.items.length ? html`<${Table} jobs=${jobs.data.items} />` : html`<${Empty} isLoading=${jobs.isLoading}>${t("none")}<//>`
    }<//></div>`;
}

function History({ series }) {
  const [mark, setMark] = useState({ at: null, from: null });
  const points = series?.points || [];
  // Of the whole range, not of its last step.
  const total = series?.total || { completed: 0, failed: 0 };
  const { completed, failed } = total;
  const time = (name) => (total[name] === null || total[name] === undefined ? null : duration(total[name]));
  const shared = { points, step: series?.step || 900, mark, setMark, choose: () => setMark({ at: null, from: null }) };
  const outcome = (status, look) => ({ name: status.toLowerCase(), label: said("status", status), look });
  const quantiles = (name) => [
    { name: `${name}_p50_seconds`, label: "p50", look: "is-running" },
    { name: `${name}_p95_seconds`, label: "p95", look: "is-queued" },
  ];
  return html`<${Section} title=${t("history")}>
    <div class="body"><${Fields} of=${[
      [said("status", "COMPLETED"), count(completed)],
      [said("status", "FAILED"), count(failed)],
      [t("failure_rate"), completed + failed ? `${((100 * failed) / (completed + failed)).toFixed(1)} %` : null],
      [t("run_time_p50"), time("duration_p50_seconds")],
      [t("run_time_p95"), time("duration_p95_seconds")],
      [t("wait_p95"), time("wait_p95_seconds")],
    ]} /></div>
    <div class="charts">
      <${Chart} ...${shared} title=${t("ended_by_outcome")} isStacked format=${(number) => count(Math.round(number))} series=${[
        outcome("COMPLETED", "is-completed"),
        outcome("FAILED", "is-failed"),
        outcome("SKIPPED", "is-skipped"),
        outcome("CANCELLED", "is-cancelled"),
      ]} />
      <${Chart} ...${shared} title=${t("run_time")} isTime format=${duration} series=${quantiles("duration")} />
    </div><//>`;
}

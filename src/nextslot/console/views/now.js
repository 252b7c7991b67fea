// Now: what holds the slots, who waits on the line, the queue in its order, and past and future in one picture.
import { said, t } from "../i18n.js";
import { answerJob, cancelDirect, cancelJob } from "../actions.js";
import { get, post } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { live, useLoad } from "../live.js";
import { attempt, Bar, can, canWhole, Empty, Loading, JobLink, Scroll, Section, Status, someOffices, Trouble, useNow, useTitle, When } from "../parts.js";
import { change, link, useKept } from "../router.js";
import { between, clock, count, duration, named, plural } from "../words.js";
import { Queue } from "./queue.js";
import { Timeline } from "./timeline.js";

const PAGE = 40;
// Progress makes no events: it is looked at this often, of as many as can be seen at once.
const LOOK_MS = 2000;
const LOOKED_AT = 12;

export default function Now({ place }) {
  const offices = useLoad((signal) => someOffices(200, signal), []);
  const known = offices.data?.items || [];
  const officeId =
    place.query.office ||
    (known.some((one) => one.office_id === "default") || !known.length ? "default" : known[0].office_id);
  const hours = Number(place.query.hours) || 1;
  const concerns = (event) => event.office_id === null || event.office_id === officeId;
  const [size, setSize] = useKept("queue", PAGE);
  const queue = useLoad((signal) => shown(officeId, size, signal), [officeId, size], { concerns, every: 15_000 });
  useTitle(place.query.office, t("now"));
  const office = known.find((one) => one.office_id === officeId);
  const progress = useProgress(queue.data?.running || []);
  const expected = useForecast(officeId, size, queue.data);
  if (!queue.data) return queue.error ? html`<${Trouble} error=${queue.error} />` : html`<${Loading} />`;
  const { direct, paused_by } = queue.data;
  const [running, waiting] = [queue.data.running.map(expected), queue.data.queue.map(expected)];
  const set = (query) =>
    change("now", { office: officeId === "default" ? "" : officeId, hours: hours === 1 ? "" : hours, ...query });
  const more = queue.data.next_cursor !== null;
  return html`
    <div class="head">
      <h1>${t("now")}</h1>
      ${
        known.length > 1 &&
        html`<label class="unseen" for="office">${t("office")}</label>
        <select id="office" style=${{ width: "auto", maxWidth: "220px" }}
          onChange=${(event) => set({ office: event.target.value })}>
          ${known.map(
            (
              one,
            ) => html`<option key=${one.office_id} value=${one.office_id}
              selected=${one.office_id === officeId}>${one.name || one.office_id}
            </option>`,
          )}</select>`
      }
      <span class="grow dim">${[
        t("running", count(running.length)),
        direct.length && plural(direct.length, "direct caller"),
        t("in_the_queue", count(waiting.length), more ? "+" : ""),
      ]
        .filter(Boolean)
        .join(", ")}</span>
      <${Pause} pausedBy=${paused_by} officeId=${officeId} again=${queue.again} />
    </div>
    <${Trouble} error=${queue.error} />
    <${Asking} />
    <${Slots} running=${running} direct=${direct} progress=${progress} capacity=${office?.max_concurrent_jobs}
      again=${queue.again} />
    <${Timeline} officeId=${officeId} hours=${hours} queue=${{ ...queue.data, running, queue: waiting }}
      setHours=${(value) => set({ hours: value === 1 ? "" : value })} />
    <${Queue} officeId=${officeId} items=${waiting} asOf=${queue.asOf} hasMore=${more}
      more=${() => setSize(size + 400)} again=${queue.again} />`;
}

async function shown(officeId, size, signal) {
  const [queue, direct] = await Promise.all([
    get("api/queue", { office_id: officeId, limit: Math.min(size, 500), wait_seconds: 0 }, signal),
    get("api/direct", { office_id: officeId, status: "WAITING,RUNNING", limit: 50 }, signal),
  ]);
  while (queue.next_cursor && queue.queue.length < size) {
    const next = await get("api/queue", { office_id: officeId, limit: 500, cursor: queue.next_cursor, wait_seconds: 0 }, signal);
    queue.queue.push(...next.queue);
    queue.next_cursor = next.next_cursor;
  }
  return { ...queue, direct: direct.items.reverse() };
}

// Adds expected times to a job. The queue is shown without them; a second request waits for the forecast. Until it is
// there, the times of the forecast before it stay.
function useForecast(officeId, size, queue) {
  const [known, set] = useState({ officeId, jobs: {} });
  const isMissing = queue?.office_id === officeId && queue.forecast_at === null;
  useEffect(() => {
    if (!isMissing) return undefined;
    const abort = new AbortController();
    const query = { office_id: officeId, limit: Math.min(size, 500), wait_seconds: 30 };
    get("api/queue", query, abort.signal).then(
      ({ running, queue: waiting }) =>
        set({ officeId, jobs: Object.fromEntries([...running, ...waiting].map((job) => [job.job_id, job])) }),
      () => {}, // The queue itself is loaded again soon, and says what is wrong.
    );
    return () => abort.abort();
  }, [officeId, size, isMissing]);
  return (job) => {
    if (!isMissing) return job;
    const foreseen = known.officeId === officeId && known.jobs[job.job_id];
    if (!foreseen) return { ...job, isForeseen: false };
    return { ...job, expected_start: foreseen.expected_start, expected_end: foreseen.expected_end };
  };
}

// The progress of what runs, by job. The run of a job is asked for once.
function useProgress(running) {
  const [progress, set] = useState({});
  const ids = running
    .slice(0, LOOKED_AT)
    .map((job) => job.job_id)
    .join(" ");
  useEffect(() => {
    if (!ids) return undefined;
    let isGone = false;
    const runs = {};
    const look = async () => {
      if (document.visibilityState !== "visible" || live.state === "lost") return;
      const found = {};
      await Promise.all(
        ids.split(" ").map(async (id) => {
          try {
            runs[id] ||= (await get(`api/jobs/${id}`)).run?.run_id;
            if (runs[id]) found[id] = (await get(`api/job-runs/${runs[id]}`)).progress;
          } catch {
            /* It may have ended; the next load knows. */
          }
        }),
      );
      if (!isGone) set(found);
    };
    look();
    const timer = setInterval(look, LOOK_MS);
    return () => {
      isGone = true;
      clearInterval(timer);
    };
  }, [ids]);
  return progress;
}

// The button names what is paused and resumes that: a pause of the whole scheduler first.
function Pause({ pausedBy, officeId, again }) {
  const isWhole = pausedBy.includes("scheduler");
  const isPaused = pausedBy.length > 0;
  const resume = async () => {
    const goesOn = isWhole && pausedBy.includes("office") ? t("this_office_is_still_paused") : t("the_queue_goes_on");
    await attempt(() => post("api/queue/resume", isWhole ? {} : { office_id: officeId }), goesOn);
    again();
  };
  const pause = async () => {
    const words = t("paused_nothing_more_starts_in_this");
    await attempt(() => post("api/queue/pause", { office_id: officeId }), words);
    again();
  };
  const mayResume = isWhole ? canWhole("operate") : can("operate");
  return html`<div class="actions">
    ${isPaused && html`<${Status} status="paused" />`}
    ${isWhole && html`<span class="dim">${mayResume ? "" : t("the_whole_scheduler_is_paused")}</span>`}
    ${
      isPaused
        ? mayResume &&
          html`<button class="primary" onClick=${resume}>${isWhole ? t("resume_everything") : t("resume")}
          </button>`
        : can("operate") && html`<button onClick=${pause}>${t("pause")}</button>`
    }
    ${can("submit") && html`<a class="button"
      href=${link("submit", { office: officeId === "default" ? "" : officeId })}>${t("submit_a_job")}</a>`}
  </div>`;
}

// The jobs of every office that wait for an answer, whatever else waits. Nothing is shown while none does.
const ASKED_AT_MOST = 20;

function Asking() {
  const load = (signal) => get("api/jobs", { awaiting_signal: true, limit: ASKED_AT_MOST }, signal);
  const concerns = (event) => event.type === "job_awaiting_signal" || known.has(event.job_id);
  const found = useLoad(load, [], { concerns, every: 30_000 });
  const items = found.data?.items || [];
  const known = new Set(items.map((job) => job.job_id));
  if (!items.length) return html`<${Trouble} error=${found.error} />`;
  const more = found.data.next_cursor !== null;
  const answer = (job, word) => answerJob(job, word).then((done) => done && found.again());
  return html`<${Section} title=${t("waiting_for_an_answer", `${count(items.length)}${more ? "+" : ""}`)}
    actions=${more && html`<a class="button" href=${link("jobs", { q: "is:awaiting" })}>${t("all_of_them")}</a>`}>
    <${Scroll} label=${t("jobs_that_wait_for_an_answer")}><table class="asking"><thead><tr><th>${t("job")}</th><th>${t("the_question")}</th>
      <th class="wide">${t("office")}</th><th class="wide">${t("since")}</th><th class="wide">${t("without_an_answer")}</th>
      <th><span class="unseen">${t("actions")}</span></th></tr></thead><tbody>${items.map(
        (job) => html`<tr key=${job.job_id} data-job=${job.job_id}>
      <td><${JobLink} job=${job} /></td>
      <td>${job.awaiting.question || job.awaiting.name}${job.awaiting.answered_by.length > 0 && html`<br /><span
        class="dim">${t("who_may_answer")}: ${job.awaiting.answered_by.join(", ")}</span>`}</td>
      <td class="wide">${job.office_id}</td>
      <td class="wide"><${When} at=${job.awaiting.asked_at} /></td>
      <td class="wide">${job.awaiting.answer_by && html`${said("answer", job.awaiting.on_deadline)}, <${When} at=${job.awaiting.answer_by} />`}</td>
      <td class="number">${can("operate") && html`<button class="primary"
        onClick=${() => answer(job, "approve")}>${t("approve")}</button> <button class="danger"
        onClick=${() => answer(job, "reject")}>${t("reject")}</button>`}</td></tr>`,
      )}</tbody></table><//><//>`;
}

function Slots({ running, direct, progress, capacity, again }) {
  const holders = direct.filter((one) => one.status === "RUNNING");
  const callers = direct.filter((one) => one.status === "WAITING");
  const free = capacity ? Math.max(0, Math.min(capacity, 8) - running.length - holders.length) : 0;
  const use = running.length + holders.length;
  return html`<${Section}
    title=${capacity ? t("slots_of_in_use", count(use), count(capacity)) : t("slots_in_use_no_limit", count(use))}>
    <div class="slots">
      ${holders.map((one) => html`<${Caller} key=${one.run_id} direct=${one} again=${again} />`)}
      ${running.map((job) => html`<${Held} key=${job.job_id} job=${job} progress=${progress[job.job_id]}
        again=${again} />`)}
      ${Array.from({ length: free }, (_, index) => html`<div class="slot free" key=${`free ${index}`}>${t("free")}</div>`)}
      ${callers.map((one, index) => html`<${Caller} key=${one.run_id} direct=${one} ahead=${index}
        again=${again} />`)}
    </div>
  <//>`;
}

function Held({ job, progress: reported, again }) {
  const now = useNow();
  const progress = reported && (reported.fraction !== null || reported.text) ? reported : null;
  const elapsed = (now - new Date(job.started_at)) / 1000;
  const expected = job.expected_end ? between(job.started_at, job.expected_end) : null;
  const fraction = progress?.fraction ?? null;
  const isLate = expected !== null && elapsed > expected;
  const end = isLate ? t("expected_any_moment") : expected ? t("until_about", clock(job.expected_end)) : job.job_type;
  const noted = [
    fraction !== null && `${Math.round(fraction * 100)} %`,
    progress ? progress.text : !job.cancel_requested_at && end,
    job.cancel_requested_at && t("asked_to_stop"),
    job.attempt > 1 && t("attempt_2", job.attempt),
    (job.worker_id || "").split("/").pop(),
  ];
  return html`<div class="slot" data-job=${job.job_id}>
    <strong><${JobLink} job=${job} /></strong>
    <span class="number">${duration(elapsed)}${
      expected && fraction === null
        ? html`<span class="dim"> / ${duration(Math.max(expected, elapsed))}
      </span>`
        : ""
    }</span>
    ${
      fraction !== null
        ? html`<${Bar} fraction=${fraction} label=${t("progress_of", named(job))} />`
        : html`<${Bar} fraction=${expected ? Math.min(0.97, elapsed / expected) : 0} expected
          label=${t("expected_progress_of", named(job))} />`
    }
    <span class="note">${noted.filter(Boolean).join(" · ")}
      ${can("operate") && !job.cancel_requested_at && html`<button class="quiet"
        onClick=${() => cancelJob(job).then((done) => done && again())}>${t("cancel_3")}</button>`}
        </span>
  </div>`;
}

function Caller({ direct, ahead = null, again }) {
  const cancel = () => cancelDirect(direct).then((done) => done && again());
  return html`<div class="slot direct">
    <strong><a href=${link(["direct", direct.run_id])}>${t("direct", direct.job_type)}</a></strong>
    <span class="number"><${When} at=${direct.started_at || direct.created_at} /></span>
    <span class="note">${ahead === null ? t("runs_for_a_waiting_caller") : ahead === 0 ? t("holds_the_next_slot") : t("ahead", plural(ahead, "caller"))}
      ${direct.created_by ? ` · ${direct.created_by}` : ""}
      ${can("operate") && html`<button class="quiet" onClick=${cancel}>${t("cancel_3")}</button>`}</span>
  </div>`;
}

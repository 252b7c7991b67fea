// What several views can do to a job: each asks first where it cannot be taken back.
import { said, t } from "./i18n.js";
import { post } from "./api.js";
import { useEffect, useState } from "./lib.js";
import { ask, attempt, toast } from "./parts.js";
import { go } from "./router.js";
import { named } from "./words.js";

// How long what was done can be taken back.
const UNDO_MS = 6000;
// What is to be sent when its time is over, or when the page is left: a closed tab cancels what it said it would cancel.
const pending = new Map();
addEventListener("pagehide", () => pending.forEach((one) => one.send(true)));

// A job that waits is cancelled when nobody has taken it back for six seconds. Until then the server knows nothing of it,
// since a cancelled job never comes back; if it starts in between, it is stopped as its office's cancel mode says.
function cancelLater(job, reason = null) {
  if (pending.has(job.job_id)) return Promise.resolve(false);
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      pending.delete(job.job_id);
      close();
      goingChanged();
    };
    const send = async (isLeaving = false) => {
      end();
      const work = () => post(`api/jobs/${job.job_id}/cancel`, { reason }, { keepalive: isLeaving });
      resolve(Boolean(await attempt(work, isLeaving ? null : t("cancelled"))));
    };
    const timer = setTimeout(send, UNDO_MS, false);
    const undo = { word: t("undo"), milliseconds: UNDO_MS, act: () => (end(), toast(t("it_stays")), resolve(false)) };
    const close = toast(t("is_cancelled_in", named(job), UNDO_MS / 1000), "good", undo);
    pending.set(job.job_id, { send });
    goingChanged();
  });
}

// Whether a job is about to be cancelled, for its row.
const watchers = new Set();
const goingChanged = () => watchers.forEach((call) => call((old) => old + 1));
export function useGoing() {
  const [, draw] = useState(0);
  useEffect(() => (watchers.add(draw), () => watchers.delete(draw)), []);
  return (id) => pending.has(id);
}

// A move that was made can be made back: `back` is the place it had.
export const moved = (job, back, again) =>
  toast(t("was_moved", named(job)), "good", {
    word: t("undo"),
    milliseconds: UNDO_MS,
    act: () => attempt(() => post(`api/jobs/${job.job_id}/move`, back), t("moved_back")).then(again),
  });

// In a list there is no question for a job that waits: it can be undone. Its page asks for the reason.
export async function cancelJob(job, isAsked = true) {
  const isRunning = job.status === "RUNNING";
  if (!isRunning && !isAsked) return cancelLater(job);
  const answer = await ask({
    title: t("cancel", named(job)),
    text: isRunning ? t("it_runs_it_can_be_stopped") : t("it_will_not_run"),
    fields: [
      { name: "reason", label: t("reason_optional"), maxlength: 500 },
      ...(isRunning ? [{ name: "interrupt", label: t("stop_it_now"), kind: "checkbox", value: true }] : []),
    ],
    action: t("cancel_the_job"),
    no: t("keep_job"),
    danger: true,
    work: ({ reason, interrupt }) =>
      isRunning ? post(`api/jobs/${job.job_id}/cancel`, { reason: reason || null, interrupt }) : { reason: reason || null },
    done: isRunning ? t("it_was_asked_to_stop") : null,
  });
  if (answer && !isRunning) return cancelLater(job, answer.reason);
  return Boolean(answer);
}

// Says yes or no to a job that waits for a person. A form says what the work gets with it.
export async function answerJob(job, word) {
  const { name, question } = job.awaiting;
  const answered = await ask({
    title: t(word === "approve" ? "approve_it" : "reject_it", named(job)),
    text: `${question || name} ${t("an_answer_stays")}`,
    fields: [{ name: "payload", label: t("payload_json_optional"), kind: "area", value: "" }],
    action: word === "approve" ? t("approve") : t("reject"),
    danger: word === "reject",
    work: ({ payload }) =>
      post(`api/jobs/${job.job_id}/signals/${encodeURIComponent(name)}`, {
        answer: word,
        payload: payload.trim() ? parsed(payload, "payload") : null,
      }),
    done: (signal) => t("answered_by_now", said("answer", signal.answer)),
  });
  return Boolean(answered);
}

// Somebody waits for the answer of a direct request.
export async function cancelDirect(direct) {
  return ask({
    title: t("cancel_the_direct_request", direct.job_type),
    text: t("somebody_waits_for_its_answer_and"),
    action: t("cancel_the_request"),
    danger: true,
    work: () => post(`api/direct/${encodeURIComponent(direct.run_id || direct.direct_id)}/cancel`),
    done: t("it_was_asked_to_stop"),
  });
}

// A new job like an ended one, perhaps with other parameters.
export async function runAgain(job) {
  const made = await ask({
    title: t("run_again", named(job)),
    text: t("a_new_job_with_the_same"),
    fields: [
      { name: "params", label: t("parameters_json"), kind: "area", value: JSON.stringify(job.params, null, 2) },
      {
        name: "priority",
        label: t("priority"),
        kind: "number",
        value: job.priority === 1_000_000 ? "" : job.priority,
        min: -999_999,
        max: 999_999,
      },
    ],
    action: t("run_it_again"),
    work: (answer) => {
      const body = { params: parsed(answer.params, "params") };
      if (answer.priority !== "") body.priority = Number(answer.priority);
      return post(`api/jobs/${job.job_id}/rerun`, body);
    },
    done: t("a_new_job_is_in_the"),
  });
  if (made) go(["jobs", made.job_id]);
}

export async function retryRun(run) {
  const made = await attempt(() => post(`api/job-runs/${run.run_id}/retry`), t("it_is_in_the_queue_again"));
  if (made) go(["jobs", made.job_id]);
}

export function parsed(text, field = "") {
  try {
    return JSON.parse(text);
  } catch (error) {
    const problem = t("this_is_not_json", error.message);
    throw Object.assign(new Error(problem), { errors: field ? [{ field, problem }] : [] });
  }
}

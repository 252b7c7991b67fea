// What several views can do to a job: each asks first where it cannot be taken back.
import { said, t } from "./i18n.js";
import { post } from "./api.js";
import { ask, attempt } from "./parts.js";
import { go } from "./router.js";
import { named } from "./words.js";

export async function cancelJob(job) {
  const isRunning = job.status === "RUNNING";
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
      post(`api/jobs/${job.job_id}/cancel`, { reason: reason || null, ...(isRunning ? { interrupt } : {}) }),
    done: isRunning ? t("it_was_asked_to_stop") : t("cancelled"),
  });
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

// What several views can do to a job: each asks first where it cannot be taken back.
import { post } from "./api.js";
import { ask, attempt } from "./parts.js";
import { go } from "./router.js";
import { named } from "./words.js";

export async function cancelJob(job) {
  const isRunning = job.status === "RUNNING";
  const answer = await ask({
    title: `Cancel ${named(job)}?`,
    text: isRunning ? "It runs. It can be stopped now, or finish first; it is not retried." : "It will not run.",
    fields: [
      { name: "reason", label: "Reason (optional)", maxlength: 500 },
      ...(isRunning ? [{ name: "interrupt", label: "Stop it now", kind: "checkbox", value: true }] : []),
    ],
    action: "Cancel the job",
    danger: true,
    work: ({ reason, interrupt }) =>
      post(`api/jobs/${job.job_id}/cancel`, { reason: reason || null, ...(isRunning ? { interrupt } : {}) }),
    done: isRunning ? "It was asked to stop." : "Cancelled.",
  });
  return Boolean(answer);
}

// Somebody waits for the answer of a direct request.
export async function cancelDirect(direct) {
  return ask({
    title: `Cancel the direct request ${direct.job_type}?`,
    text: "Somebody waits for its answer and gets an error instead.",
    action: "Cancel the request",
    danger: true,
    work: () => post(`api/direct/${encodeURIComponent(direct.run_id || direct.direct_id)}/cancel`),
    done: "It was asked to stop.",
  });
}

// A new job like an ended one, perhaps with other parameters.
export async function runAgain(job) {
  const made = await ask({
    title: `Run ${named(job)} again?`,
    text: "A new job with the same settings. Parameters can be changed first.",
    fields: [
      { name: "params", label: "Parameters (JSON)", kind: "area", value: JSON.stringify(job.params, null, 2) },
      {
        name: "priority",
        label: "Priority",
        kind: "number",
        value: job.priority === 1_000_000 ? "" : job.priority,
        min: -999_999,
        max: 999_999,
      },
    ],
    action: "Run it again",
    work: (answer) => {
      const body = { params: parsed(answer.params, "params") };
      if (answer.priority !== "") body.priority = Number(answer.priority);
      return post(`api/jobs/${job.job_id}/rerun`, body);
    },
    done: "A new job is in the queue.",
  });
  if (made) go(["jobs", made.job_id]);
}

export async function retryRun(run) {
  const made = await attempt(() => post(`api/job-runs/${run.run_id}/retry`), "It is in the queue again.");
  if (made) go(["jobs", made.job_id]);
}

export function parsed(text, field = "") {
  try {
    return JSON.parse(text);
  } catch (error) {
    const problem = `This is not JSON: ${error.message}`;
    throw Object.assign(new Error(problem), { errors: field ? [{ field, problem }] : [] });
  }
}

// Times, durations, sizes and names, in words.
export const ENDED = ["COMPLETED", "FAILED", "SKIPPED", "CANCELLED"];
export const STATUSES = ["WAITING", "QUEUED", "RUNNING", ...ENDED];

// The end of an id: its beginning is a time, and the same for all that came at once.
export const short = (id) => (id && id.length === 36 ? id.slice(-8) : String(id ?? ""));

export const named = (job) => job.title || job.job_type;

const two = (number) => String(number).padStart(2, "0");

export function day(time) {
  const at = new Date(time);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

export function clock(time) {
  const at = new Date(time);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export const moment = (time) => `${day(time)} ${clock(time)}`;

export function duration(seconds) {
  const whole = Math.max(0, seconds);
  if (whole < 1) return `${Math.round(whole * 1000)} ms`;
  if (whole < 10) return `${whole.toFixed(1)} s`;
  if (whole < 60) return `${Math.floor(whole)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(Math.floor(whole % 60))} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function distance(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${two(Math.floor((seconds % 3600) / 60))}`;
  return `${Math.round(seconds / 86400)} d`;
}

export function relative(time, now) {
  const seconds = (new Date(time) - now) / 1000;
  if (Math.abs(seconds) < 2) return "now";
  return seconds < 0 ? `${distance(-seconds)} ago` : `in ${distance(seconds)}`;
}

export const between = (from, to) => (new Date(to) - new Date(from)) / 1000;

export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)} kB`;
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

export const count = (number) => Number(number).toLocaleString("en");

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export const pretty = (value) => JSON.stringify(value, null, 2);

// What happened, for people. The type stays visible beside it.
export const EVENTS = {
  job_queued: "came into the queue",
  job_ready: "is free to go",
  job_moved: "was moved",
  job_started: "started",
  job_completed: "completed",
  job_skipped: "was skipped",
  job_failed: "failed",
  job_stalled: "has been silent for long",
  job_timeout: "ran out of time",
  job_retrying: "will be retried",
  job_failed_permanently: "failed for good",
  job_cancel_requested: "was asked to stop",
  job_cancelled: "was cancelled",
  group_finished: "A group finished",
  queue_paused: "The queue was paused",
  queue_resumed: "The queue goes on",
  resource_held: "A resource does not answer, or its quota is used up",
  resource_released: "A resource can be used again",
  node_joined: "A node joined",
  node_left: "A node left",
  node_lost: "A node was lost",
  node_drained: "A node is being drained",
  node_resumed: "A node works again",
  node_forgotten: "A node was forgotten",
  reservation_made: "A direct caller holds the next slot",
  reservation_released: "A direct caller is done",
  reservation_expired: "A direct caller's hold ran out",
  schedule_fired: "A schedule made a job",
  schedule_skipped: "An occurrence was skipped",
  recovered: "The scheduler started",
};

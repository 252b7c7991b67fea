// Times, durations, sizes and names, in words.
import { language, t } from "./i18n.js";

export { plural } from "./i18n.js";

export const ENDED = ["COMPLETED", "FAILED", "SKIPPED", "CANCELLED"];
export const STATUSES = ["WAITING", "QUEUED", "RUNNING", ...ENDED];

// The end of an id: its beginning is a time, and the same for all that came at once.
export const short = (id) => (id && id.length === 36 ? id.slice(-8) : String(id ?? ""));

export const named = (job) => job.title || job.job_type;

const two = (number) => String(number).padStart(2, "0");

// The zone of the times that are shown: the browser's, UTC, or that of a schedule while its page says so.
const ZONE = "nextslot-zone";
const OWN_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
export const storedZone = () => (localStorage.getItem(ZONE) === "UTC" ? "UTC" : OWN_ZONE);
let zone = storedZone();
const formats = new Map();
const watchers = new Set();

export const zoneName = () => zone;
export const hasTwoZones = OWN_ZONE !== "UTC";

export function setZone(name, isKept = true) {
  zone = name || OWN_ZONE;
  if (isKept && zone === "UTC" && OWN_ZONE !== "UTC") localStorage.setItem(ZONE, zone);
  else if (isKept) localStorage.removeItem(ZONE);
  for (const call of watchers) call(zone);
}

export function watchZone(call) {
  watchers.add(call);
  return () => watchers.delete(call);
}

// Year, month, day, hour, minute and second of an instant in the zone.
function partsOf(time) {
  const at = new Date(time);
  if (zone === OWN_ZONE) return [at.getFullYear(), at.getMonth() + 1, at.getDate(), at.getHours(), at.getMinutes(), at.getSeconds()];
  if (!formats.has(zone)) {
    const two = "2-digit";
    const wanted = { timeZone: zone, hourCycle: "h23", year: "numeric", month: two, day: two, hour: two, minute: two, second: two };
    formats.set(zone, new Intl.DateTimeFormat("en-CA", wanted));
  }
  return formats.get(zone).formatToParts(at).filter((one) => one.type !== "literal").map((one) => Number(one.value));
}

export function day(time) {
  const [year, month, date] = partsOf(time);
  return `${year}-${two(month)}-${two(date)}`;
}

export function clock(time) {
  const [, , , hour, minute, second] = partsOf(time);
  return `${two(hour)}:${two(minute)}:${two(second)}`;
}

export const moment = (time) => `${day(time)} ${clock(time)}`;

export function duration(seconds) {
  const whole = Math.max(0, seconds);
  if (whole < 1) return t("unit_ms", Math.round(whole * 1000));
  if (whole < 10) return t("unit_s", whole.toFixed(1));
  if (whole < 60) return t("unit_s", Math.floor(whole));
  if (whole < 3600) return t("unit_min_s", Math.floor(whole / 60), two(Math.floor(whole % 60)));
  if (whole < 86400) return t("unit_h_min", Math.floor(whole / 3600), two(Math.floor((whole % 3600) / 60)));
  return t("unit_d_h", Math.floor(whole / 86400), Math.floor((whole % 86400) / 3600));
}

// A round length of time, such as 15 minutes.
export const span = (seconds) =>
  seconds < 60 ? t("unit_s", seconds) : seconds < 3600 ? t("unit_min", seconds / 60) : t("unit_h", seconds / 3600);

function distance(seconds) {
  if (seconds < 60) return t("unit_s", Math.round(seconds));
  if (seconds < 3600) return t("unit_min", Math.round(seconds / 60));
  if (seconds < 86400) return t("unit_h_min", Math.floor(seconds / 3600), two(Math.floor((seconds % 3600) / 60)));
  return t("unit_d", Math.round(seconds / 86400));
}

export function relative(time, now) {
  const seconds = (new Date(time) - now) / 1000;
  if (Math.abs(seconds) < 2) return t("now_word");
  return seconds < 0 ? t("ago", distance(-seconds)) : t("in_time", distance(seconds));
}

export const between = (from, to) => (new Date(to) - new Date(from)) / 1000;

export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)} kB`;
  if (bytes < 1e9) return `${(bytes / 1e6).toFixed(1)} MB`;
  return `${(bytes / 1e9).toFixed(1)} GB`;
}

export const count = (number) => Number(number).toLocaleString(language);

export const pretty = (value) => JSON.stringify(value, null, 2);

// Saves the jobs that a filter finds as CSV or JSON: read page by page, and at most so many.
import { t } from "./i18n.js";
import { get } from "./api.js";

export const MOST = 10_000;
const COLUMNS = [
  "job_id", "status", "job_type", "title", "office_id", "priority", "attempt", "created_at", "started_at", "finished_at",
  "error_line", "fingerprint", "schedule_id", "template_id", "group_id", "role", "task_id", "retry_of", "created_by", "params",
];

// A spreadsheet takes a text that begins so for a formula: an apostrophe makes it a text.
export function cell(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  const safe = typeof value !== "number" && /^[\s]*[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

const line = (job) => `${COLUMNS.map((name) => cell(job[name])).join(",")}\r\n`;

// Calls `progress` with how many there are so far. Returns how many were saved, and whether there are more.
export async function exportJobs(query, format, progress) {
  const isCsv = format === "csv";
  // A spreadsheet knows UTF-8 by the first character.
  const parts = [isCsv ? `\ufeff${COLUMNS.join(",")}\r\n` : "[\n"];
  let saved = 0;
  let cursor = null;
  do {
    const page = await get("api/jobs", { ...query, cursor, limit: 500 });
    for (const job of page.items.slice(0, MOST - saved)) {
      parts.push(isCsv ? line(job) : `${saved ? ",\n" : ""}${JSON.stringify(job)}`);
      saved += 1;
    }
    cursor = page.next_cursor;
    progress(saved);
  } while (cursor && saved < MOST);
  if (!isCsv) parts.push("\n]\n");
  save(new Blob(parts, { type: isCsv ? "text/csv" : "application/json" }), `${t("jobs").toLowerCase()}.${format}`);
  return { saved, isCut: Boolean(cursor) };
}

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

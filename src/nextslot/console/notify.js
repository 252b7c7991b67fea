// Desktop notifications, if the user wants them: of what needs a person while the page is not in sight.
import { said, t } from "./i18n.js";
import { get } from "./api.js";
import { html, useEffect, useState } from "./lib.js";
import { live, rest } from "./live.js";
import { toast } from "./parts.js";
import { link } from "./router.js";
import { named } from "./words.js";

const STORED = "nextslot-notify";
const EVENTS = ["job_failed_permanently", "job_stalled", "job_awaiting_signal", "resource_held", "queue_paused", "node_lost"];
// A flood of failures is one thing to know.
const PAUSE_MS = 10_000;

export function Bell() {
  const [isOn, setOn] = useState(() => localStorage.getItem(STORED) === "yes" && globalThis.Notification?.permission === "granted");
  useEffect(() => (isOn ? watch() : undefined), [isOn]);
  if (!globalThis.Notification) return null;
  const flip = async () => {
    if (!isOn && (await Notification.requestPermission()) !== "granted") return toast(t("notifications_are_blocked"), "bad");
    localStorage.setItem(STORED, isOn ? "no" : "yes");
    setOn(!isOn);
    return toast(isOn ? t("notifications_are_off") : t("notifications_are_on"));
  };
  return html`<button class="quiet" aria-pressed=${String(isOn)} aria-label=${t("desktop_notifications")} title=${t("desktop_notifications")} onClick=${flip}>
    <svg class="bell" viewBox="0 0 16 16" width="15" height="15" aria-hidden="true"><path
      d="M8 1.2a4.3 4.3 0 0 0-4.3 4.3v3L2.300 11.200v.9h11.400v-.9L12.300 8.500v-3A4.300 4.300 0 0 0 8 1.200ZM6.400 13.200a1.700 1.700 0 0 0 3.200 0Z" /></svg></button>`;
}

// Of all pages of this console one notifies, and that one follows the events while it is out of sight.
function watch() {
  const over = new AbortController();
  const until = new Promise((resolve) => over.signal.addEventListener("abort", resolve));
  const work = async () => {
    rest.need(1);
    const forget = notify();
    await until;
    forget();
    rest.need(-1);
  };
  navigator.locks?.request(`nextslot-notify ${new URL("./", import.meta.url).pathname}`, { signal: over.signal }, work).catch(() => {});
  return () => over.abort();
}

function notify() {
  let last = 0;
  return live.listen(async (event) => {
    if (!EVENTS.includes(event.type) || document.visibilityState === "visible" || Date.now() - last < PAUSE_MS) return;
    last = Date.now();
    const job = event.job_id ? await get(`api/jobs/${event.job_id}`).catch(() => null) : null;
    const title = [job ? named(job) : event.details?.resource, said("event", event.type)].filter(Boolean).join(": ");
    const shown = new Notification(title, { body: job?.run?.error?.slice(0, 200) || "", tag: event.job_id || event.type, icon: "icon.svg" });
    shown.onclick = () => {
      focus();
      if (event.job_id) location.hash = link(["jobs", event.job_id]).slice(1);
      shown.close();
    };
  });
}

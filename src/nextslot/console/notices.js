// One banner below the top for what holds work back: pauses, held resources, drains, full quotas, disabled webhooks, each
// with the button that ends it. Loaded after the first view, which it need not delay.
import { plural, t } from "./i18n.js";
import { get, shared } from "./api.js";
import { html, useState } from "./lib.js";
import { useLoad } from "./live.js";
import { canWhole, me, useNow } from "./parts.js";
import { enable, grant, release, Remedy, resume, undrain } from "./remedies.js";
import { link } from "./router.js";
import { count, duration } from "./words.js";

const SHOWN = 2;
// Quotas are asked for of so many offices, those with the most in the queue.
const OFFICES = 3;
const NEARLY = 0.95;

export function Notices() {
  const found = useLoad(noticesOf, [], {
    concerns: (event) => /^(queue_|resource_|node_)/.test(event.type),
    // Events say what changes; quotas and webhooks have none. The status counts what is queued, which has a cost.
    every: 300_000,
  });
  const [isOpen, setOpen] = useState(false);
  const now = useNow(5000);
  const items = found.data || [];
  if (!items.length) return null;
  const shown = isOpen ? items : items.slice(0, SHOWN);
  const words = (one) => (one.since ? t("held_for", one.resource, duration((now - new Date(one.since)) / 1000)) : one.text);
  return html`<div class="notices" role="region" aria-label=${t("what_holds_work_back")}><ul>${shown.map(
    (one) => html`<li key=${one.key}><a href=${one.to}>${words(one)}</a> <${Remedy} of=${one.remedy} about=${one.text || one.resource} again=${found.again} /></li>`,
  )}</ul>${
    items.length > SHOWN &&
    html`<button class="quiet" aria-expanded=${String(isOpen)} onClick=${() => setOpen(!isOpen)}>${isOpen ? t("less") : t("and_more_of_them", count(items.length - SHOWN))}</button>`
  }</div>`;
}

// Each part by itself: one that this key may not see does not hide the others.
async function noticesOf(signal) {
  const quiet = (work) => work.catch((error) => (error.name === "AbortError" ? Promise.reject(error) : null));
  const whole = canWhole("read");
  const [status, nodes, webhooks, own] = await Promise.all([
    whole ? quiet(shared("api/status")) : null,
    whole ? quiet(shared("api/nodes")) : null,
    quiet(shared("api/webhooks?limit=500")),
    whole ? null : quiet(get("api/queue", { office_id: me.office_id, limit: 1, wait_seconds: 0 }, signal)),
  ]);
  return [
    ...pausesOf(status, own),
    ...(status?.held || []).map((one) => ({ key: `held ${one.resource}`, ...one, to: link("system"), remedy: release(one.resource) })),
    ...(nodes?.items || []).filter((one) => one.status === "draining").map((one) => ({ key: `node ${one.node_id}`, text: t("node_is_drained", one.node_id), to: link("system"), remedy: undrain(one.node_id) })),
    ...(await fullQuotas(status)),
    ...(webhooks?.items || []).filter((one) => one.disabled_reason).map((one) => ({ key: one.webhook_id, text: t("webhook_is_disabled", one.url), to: link("webhooks"), remedy: enable(one) })),
  ];
}

// Of the offices with the most in the queue, or of the key's office, the quotas that are nearly used up.
export async function fullQuotas(status) {
  const queued = (status?.offices || []).filter((one) => one.queued).sort((one, other) => other.queued - one.queued);
  const offices = canWhole("read") ? queued.slice(0, OFFICES).map((one) => one.office_id) : [me.office_id];
  const found = await Promise.all(offices.map((id) => shared(`api/quotas/${encodeURIComponent(id)}`).catch(() => null)));
  return found.flatMap((one, index) => fullOf(offices[index], one));
}

function pausesOf(status, own) {
  const paused = status?.paused || { scheduler: own?.paused_by.includes("scheduler"), offices: own?.paused_by.includes("office") ? [me.office_id] : [], job_types: [], resources: [] };
  const found = paused.scheduler ? [{ key: "scheduler", text: t("the_whole_scheduler_is_paused"), to: link("system"), remedy: resume() }] : [];
  for (const one of paused.offices) found.push({ key: `office ${one}`, text: t("office_is_paused", one), to: link("now", { office: one }), remedy: resume({ office_id: one }) });
  for (const one of paused.job_types) found.push({ key: `type ${one}`, text: t("type_is_paused", one), to: link("system"), remedy: resume({ job_type: one }) });
  for (const one of paused.resources) found.push({ key: `resource ${one}`, text: t("resource_is_paused", one), to: link("system"), remedy: resume({ resource: one }) });
  return found;
}

function fullOf(office, quotas) {
  if (!quotas) return [];
  return ["queued_jobs", "stored_bytes"]
    .filter((name) => quotas[name] > 0 && quotas.used[name] >= NEARLY * quotas[name])
    .map((name) => ({
      key: `quota ${office} ${name}`,
      text: t("quota_is_nearly_used_up", office, name === "queued_jobs" ? plural(quotas[name], "job") : t("stored_files")),
      to: link(["offices", office]),
      remedy: grant(office, quotas),
    }));
}

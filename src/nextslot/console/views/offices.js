// Offices: their numbers in a row each.
import { t } from "../i18n.js";
import { get, pages, post } from "../api.js";
import { html } from "../lib.js";
import { useLoad } from "../live.js";
import { ask, canWhole, Empty, Loading, me, Scroll, Section, Status, Trouble, When } from "../parts.js";
import { go, link } from "../router.js";
import { count, plural } from "../words.js";

export default function Offices() {
  const list = useLoad(loaded, [], {
    concerns: (event) => event.type.startsWith("job_") || event.type.startsWith("queue_"),
    every: 15_000,
  });
  const add = async () => {
    const made = await ask({
      title: t("new_office"),
      fields: [
        {
          name: "office_id",
          label: t("id_letters_digits"),
          pattern: "[A-Za-z0-9][A-Za-z0-9_.\\-]{0,99}",
          required: true,
        },
        { name: "name", label: t("name") },
      ],
      action: t("make_it"),
      work: (answer) => post("api/offices", { office_id: answer.office_id, ...(answer.name ? { name: answer.name } : {}) }),
      done: t("made"),
    });
    if (made) go(["offices", made.office_id]);
  };
  const items = list.data || [];
  return html`<div class="head">
    <h1 class="grow">${t("offices")}</h1>${canWhole("operate") && html`<button class="primary"
      onClick=${add}>${t("new_office")}</button>`}
    </div>
    <${Trouble} error=${list.error} />
    <${Section} title=${plural(items.length, "office")}>
      ${
        items.length
          ? html`<${Scroll} label=${t("offices")}><table>
        <thead><tr><th>${t("office")}</th><th>${t("status")}</th><th class="number">${t("running_2")}</th><th class="number">${t("queued")}</th>
          <th class="number wide">${t("waiting")}</th><th class="number wide">${t("on_the_line")}</th>
          <th class="number wide">${t("at_most_2")}</th><th class="wide">${t("oldest_queued")}</th></tr></thead>
        <tbody>${items.map(
          (one) => html`<tr key=${one.office_id}><td class="name">
          <a href=${link(["offices", one.office_id])}>${one.name || one.office_id}</a></td><td class="tight">
          <${Status} status=${one.status} /></td>
          <td class="number">${number(one.now?.running)}</td><td class="number">${number(one.now?.queued)}</td>
            <td class="number wide">${number(one.now?.waiting)}</td>
          <td class="number wide">${number(one.now && one.now.direct_waiting + one.now.direct_running)}</td>
            <td class="number wide">${one.max_concurrent_jobs || t("no_limit")}</td>
          <td class="wide tight"><${When} at=${one.now?.oldest_queued_at} /></td></tr>`,
        )}</tbody></table>
            <//>`
          : html`<${Loading} />`
      }
    <//>`;
}

async function loaded(signal) {
  const [offices, status] = await Promise.all([
    pages("api/offices", { limit: 500 }, { enough: 2000, signal }),
    me.office_id === null ? get("api/status", {}, signal) : { offices: [await own(me.office_id, signal)] },
  ]);
  const now = new Map(status.offices.map((one) => [one.office_id, one]));
  return offices.items.map((one) => ({ ...one, now: now.get(one.office_id) }));
}

// A key of one office does not see the status of the scheduler, but the numbers of its office.
export async function own(office_id, signal) {
  const path = `api/offices/${encodeURIComponent(office_id)}/scheduler/stats`;
  const [stats, direct, queued] = await Promise.all([
    get(path, {}, signal),
    get("api/direct", { office_id, status: "WAITING,RUNNING", limit: 500 }, signal),
    get("api/queue", { office_id, limit: 500, wait_seconds: 0 }, signal),
  ]);
  const waits = (status) => direct.items.filter((one) => one.status === status).length;
  const free = queued.queue.filter((job) => job.status === "QUEUED").map((job) => job.created_at);
  return {
    office_id,
    paused: queued.paused_by.includes("office"),
    running: stats.processing,
    queued: stats.ready,
    waiting: stats.pending,
    direct_waiting: waits("WAITING"),
    direct_running: waits("RUNNING"),
    oldest_queued_at: free.length ? free.reduce((one, other) => (one < other ? one : other)) : null,
  };
}

const number = (value) => (value === undefined || value === null ? "–" : count(value));

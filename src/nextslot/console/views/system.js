// System: whether it is well, what is used of what, who may do what, who did what.
import { said, t } from "../i18n.js";
import { get, pages, post, remove, send } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { live, useLoad } from "../live.js";
import { ask, attempt, canWhole, Empty, Loading, Fields, me, Scroll, Section, Status, Trouble, useNow, When } from "../parts.js";
import { listed } from "../quotas.js";
import { release, Remedy, resume } from "../remedies.js";
import { useKept } from "../router.js";
import { count, duration, moment, plural, size } from "../words.js";
import { EventTable } from "./events.js";
import { Limits } from "./office.js";
import { showSecret } from "./webhooks.js";

export default function System() {
  const status = useLoad(async (signal) => (canWhole("read") ? get("api/status", {}, signal) : null), [], {
    concerns: () => true,
    every: 5000,
  });
  // All sections are shown when each has its data, so that none moves the others.
  const [missing, setMissing] = useState(() => (canWhole("read") ? ["metrics", "engines", "nodes"] : []).concat(canWhole("admin") ? ["keys", "audit"] : []));
  const settled = (name) => setMissing((old) => old.filter((one) => one !== name));
  const shown = status.data;
  const isLoading = (!shown && !status.error && canWhole("read")) || missing.length > 0;
  return html`<div class="head">
    <h1 class="grow">${t("system")}</h1>${shown && html`<${Status} status=${shown.ready ? "ready" : "FAILED"} />`}
      ${shown && canWhole("operate") && html`<${PauseAll} isPaused=${shown.paused.scheduler} again=${status.again} />`}
      ${canWhole("admin") && html`<button onClick=${reload}>${t("read_the_configuration_again")}</button>`}</div>
    <${Trouble} error=${status.error} />
    ${isLoading && html`<${Loading} />`}
    <div hidden=${isLoading}>
    ${shown?.not_ready_because && html`<p class="trouble" role="status">${t("not_ready", shown.not_ready_because)}</p>`}
    ${me.office_id !== null && html`<${Empty}>${t("this_key_is_for_the_office", me.office_id)}<//>`}
    ${shown && html`<${Numbers} status=${shown} />`}
    ${shown && canWhole("operate") && html`<${Pauses} status=${shown} again=${status.again} />`}
    ${
      canWhole("read") &&
      html`<div class="columns"><div>
        ${
          shown &&
          html`<${Section} title=${t("limits_and_their_use")}><${Limits} limits=${shown.limits} /><//>
        <${Held} held=${shown.held} again=${status.again} />`
        }</div><div><${Metrics} settled=${settled} /></div></div><${Engines} settled=${settled} /><${Nodes} settled=${settled} />`
    }
    ${canWhole("admin") && html`<${Keys} settled=${settled} /><${Audit} settled=${settled} />`}
    <${Happening} />
    </div>`;
}

function useSettled(load, name, settled) {
  const isThere = Boolean(load.data || load.error);
  useEffect(() => isThere && void settled(name), [isThere]);
}

function Numbers({ status }) {
  const sum = (name) => status.offices.reduce((total, one) => total + one[name], 0);
  const paused = [
    status.paused.scheduler && t("the_whole_scheduler"),
    ...status.paused.offices.map((one) => t("office_2", one)),
    ...status.paused.job_types.map((one) => t("type_2", one)),
    ...status.paused.resources.map((one) => t("resource", one)),
  ].filter(Boolean);
  return html`<${Section} title=${t("status")}><div class="stats">
      ${[
        ["running", said("status", "RUNNING")],
        ["queued", said("status", "QUEUED")],
        ["waiting", said("status", "WAITING")],
        ["direct_waiting", t("waiting_callers")],
      ].map(
        ([name, word]) => html`<div key=${name}>
        <b>${count(sum(name))}</b><span>${word}</span></div>`,
      )}
      <div><b>${count(status.last_event)}</b><span>${t("events_2")}</span></div></div>
    <${Fields} of=${[
      [t("version"), status.version],
      [t("node"), status.node],
      [t("paused_2"), paused.join(", ") || t("nothing")],
      [t("you_are"), `${me.name} (${said("scope", me.scopes.at(-1))})`],
      [t("offices"), count(status.offices.length)],
    ]} />
      <//>`;
}

// Pauses of types and resources; those of offices are on their own pages.
function Pauses({ status, again }) {
  const types = useLoad((signal) => get("api/job-types", {}, signal), []);
  const kinds = {
    job_type: (types.data?.items || []).map((one) => one.job_type).filter((one) => !status.paused.job_types.includes(one)),
    resource: status.limits.filter((one) => one.limit.startsWith("resource:")).map((one) => one.limit.slice(9)).filter((one) => !status.paused.resources.includes(one)),
  };
  const pause = (event) => {
    const [kind, name] = event.target.value.split(/ (.*)/);
    event.target.value = "";
    if (name) attempt(() => post("api/queue/pause", { [kind]: name }), t("paused")).then(again);
  };
  const paused = [
    ...status.paused.job_types.map((one) => [t("type_2", one), resume({ job_type: one })]),
    ...status.paused.resources.map((one) => [t("resource", one), resume({ resource: one })]),
  ];
  return html`<${Section} title=${t("pauses")} actions=${html`<label class="unseen" for="pause">${t("pause_a_type_or_resource")}</label>
    <select id="pause" class="narrowed" onChange=${pause}><option value="">${t("pause_a_type_or_resource")}</option>${Object.entries(kinds).flatMap(([kind, names]) =>
      names.map((one) => html`<option key=${kind + one} value=${`${kind} ${one}`}>${kind === "job_type" ? t("type_2", one) : t("resource", one)}</option>`),
    )}</select>`}>
    ${paused.length ? html`<ul class="rows">${paused.map(([name, remedy]) => html`<li key=${name}>${name} <${Remedy} of=${remedy} about=${name} again=${again} /></li>`)}</ul>` : html`<${Empty}>${t("no_type_or_resource_is_paused")}<//>`}<//>`;
}

function PauseAll({ isPaused, again }) {
  const act = async () => {
    if (
      !isPaused &&
      !(await ask({
        title: t("pause_the_whole_scheduler"),
        text: t("nothing_more_starts_anywhere_what_runs"),
        action: t("pause_it"),
      }))
    )
      return;
    await attempt(() => post(`api/queue/${isPaused ? "resume" : "pause"}`), isPaused ? t("it_goes_on") : t("paused"));
    again();
  };
  return html`<button onClick=${act}>${isPaused ? t("resume_everything") : t("pause_everything_more")}</button>`;
}

const reload = () =>
  attempt(
    () => post("api/config/reload"),
    (done) =>
      t("applied", plural(done.applied.length, "change"), done.needs_restart.length ? t("need_a_restart", count(done.needs_restart.length)) : ""),
  );

function Held({ held, again }) {
  const now = useNow();
  if (!held.length) return null;
  return html`<${Section} title=${t("resources_that_do_not_answer")}><table><thead><tr><th>${t("resource_2")}</th><th>${t("since")}</th>
    <th>${t("next_try")}</th><th class="number">${t("failures")}</th><th><span class="unseen">${t("actions")}</span></th></tr></thead>
    <tbody>${held.map(
      (one) => html`<tr key=${one.resource}><td>${one.resource}</td><td><${When} at=${one.since} /></td>
      <td>${one.next_probe_at && new Date(one.next_probe_at) < now ? t("with_its_next_job") : html`<${When} at=${one.next_probe_at} />`}</td><td class="number">${count(one.failures)}</td>
      <td class="number"><${Remedy} of=${release(one.resource)} about=${one.resource} again=${again} /></td></tr>`,
    )}</tbody></table>
      <//>`;
}

// Of /metrics, what a person asks first.
function Metrics({ settled }) {
  const metrics = useLoad(
    async (signal) =>
      parsedMetrics(await (await send("GET", "metrics", { signal, headers: { Accept: "text/plain" } })).text()),
    [],
    { every: 5000 },
  );
  useSettled(metrics, "metrics", settled);
  if (!metrics.data) return null;
  const rows = metrics.data;
  if (!rows.length) return null;
  return html`<${Section} title=${t("metrics")}><${Scroll} label=${t("metrics")}><table><thead><tr><th>${t("metric")}</th>
    <th class="number">${t("value")}</th></tr></thead>
    <tbody>${rows.map(
      ([name, help, value]) => html`<tr key=${name}>
      <td title=${name}>${(help || name).replace(/\.$/, "")} <span class="dim mono wide">${name}</span></td>
      <td class="number">${value}</td></tr>`,
    )}</tbody></table><//><//>`;
}

// Counters and gauges are summed over their labels; of histograms the mean is shown.
export function parsedMetrics(text) {
  const [kinds, helps, sums] = [new Map(), new Map(), new Map()];
  for (const line of text.split("\n")) {
    const note = line.match(/^# (TYPE|HELP) (\S+) (.*)$/);
    if (note) (note[1] === "TYPE" ? kinds : helps).set(note[2], note[3]);
    const value = line.match(/^([a-zA-Z_:][\w:]*)(?:\{.*\})? ([^ ]+)/);
    if (value && !line.startsWith("#")) sums.set(value[1], (sums.get(value[1]) || 0) + Number(value[2]));
  }
  const rows = [];
  for (const [name, kind] of kinds) {
    if (!/^(nextslot|process)_/.test(name) || name.endsWith("_created") || name.endsWith("_info")) continue;
    if (kind === "histogram") {
      const number = sums.get(`${name}_count`) || 0;
      if (number)
        rows.push([name, helps.get(name), `${shownValue(name, (sums.get(`${name}_sum`) || 0) / number)} × ${count(number)}`]);
    } else {
      const value = sums.get(name) ?? sums.get(`${name}_total`);
      if (value !== undefined && !Number.isNaN(value)) rows.push([name, helps.get(name), shownValue(name, value)]);
    }
  }
  return rows;
}

function shownValue(name, value) {
  if (/_bytes$/.test(name)) return size(value);
  if (/_seconds(_total)?$/.test(name))
    return /start_time|timestamp/.test(name)
      ? moment(value * 1000)
      : duration(value);
  return Number.isInteger(value) ? count(value) : value.toPrecision(4);
}

function Keys({ settled }) {
  const list = useLoad((signal) => pages("api/keys", { limit: 500 }, { enough: 1000, signal }), []);
  useSettled(list, "keys", settled);
  const items = list.data?.items || [];
  const add = async () => {
    const made = await ask({
      title: t("new_key"),
      text: items.length
        ? ""
        : t("the_first_key_must_be_an"),
      fields: [
        { name: "name", label: t("name"), required: true },
        {
          name: "scope",
          label: t("it_may"),
          value: items.length ? "read" : "admin",
          options: [
            ["read", said("scope", "read")],
            ["submit", said("scope", "submit")],
            ["operate", said("scope", "operate")],
            ["admin", said("scope", "admin")],
          ],
        },
        { name: "office_id", label: t("only_for_the_office_empty_all") },
        { name: "expires_at", label: t("expires_empty_never"), kind: "datetime-local", step: 1 },
        { name: "allowed_addresses", label: t("from_addresses_empty_anywhere") },
        { name: "job_types", label: t("only_job_types_empty_all") },
      ],
      action: t("make_it"),
      work: (answer) =>
        post("api/keys", {
          name: answer.name,
          scopes: [answer.scope],
          ...(answer.office_id ? { office_id: answer.office_id } : {}),
          ...(answer.expires_at ? { expires_at: new Date(answer.expires_at).toISOString() } : {}),
          allowed_addresses: listed(answer.allowed_addresses),
          job_types: listed(answer.job_types),
        }),
    });
    if (made) await showSecret(made.key, t("the_key_of", made.name));
    list.again();
  };
  const rotate = async (one) => {
    const made = await ask({
      title: t("new_text_of", one.name),
      text: t("who_holds_it_needs_the_new_text"),
      fields: [{ name: "overlap_seconds", label: t("old_text_stays_for_minutes"), kind: "number", min: 0, step: "any", value: 60 }],
      action: t("make_it"),
      work: (answer) => post(`api/keys/${one.key_id}/rotate`, { overlap_seconds: Number(answer.overlap_seconds) * 60 }),
    });
    if (made) await showSecret(made.key, t("the_key_of", made.name));
  };
  const drop = async (one) => {
    if (
      await ask({
        title: t("delete_the_key", one.name),
        text: t("from_then_on_it_opens_nothing"),
        action: t("delete_it"),
        danger: true,
      })
    )
      attempt(() => remove(`api/keys/${one.key_id}`), t("deleted")).then(list.again);
  };
  return html`<${Section} title=${plural(items.length, "key")} actions=${html`<button onClick=${add}>${t("new_key")}</button>`}>
    <${Trouble} error=${list.error} />
    ${
      items.length
        ? html`<${Scroll} label=${t("keys")}><table><thead><tr><th>${t("name")}</th><th>${t("may")}</th><th>${t("office")}</th>
      <th class="wide">${t("only_for")}</th><th class="wide">${t("expires")}</th><th class="wide">${t("made_by")}</th><th>${t("made_2")}</th><th><span class="unseen">${t("actions")}</span></th></tr></thead>
    <tbody>${items.map(
      (one) => html`<tr key=${one.key_id}><td>${one.name}</td><td>${said("scope", one.scopes.at(-1))}</td>
      <td>${one.office_id || t("all_2")}</td><td class="wide">${bounds(one) || "–"}</td>
      <td class="wide tight"><${When} at=${one.expires_at} none=${t("never")} /></td>
      <td class="wide">${one.created_by || "–"}</td><td class="tight">
      <${When} at=${one.created_at} /></td>
      <td class="number"><button onClick=${() => rotate(one)}>${t("new_text_more")}</button>
        <button class="danger" onClick=${() => drop(one)}>${t("delete_more")}</button></td></tr>`,
    )}</tbody></table>
        <//>`
        : html`<${Empty}>${t("no_keys_whoever_reaches_this_server")}<//>`
    }<//>`;
}

// From where a key may be used, and which types of jobs it may create.
const bounds = (key) =>
  [...key.job_types, key.allowed_addresses.length && t("from_addresses", key.allowed_addresses.join(", "))].filter(Boolean).join(", ");

// Where runs go that leave this machine; most servers have none.
function Engines({ settled }) {
  const list = useLoad((signal) => get("api/engines", {}, signal), [], {
    concerns: (one) => /^job_(started|completed|failed|cancelled)$/.test(one.type),
    every: 10_000,
  });
  useSettled(list, "engines", settled);
  const items = list.data?.items || [];
  if (!items.length) return html`<${Trouble} error=${list.error} />`;
  const states = ["submitting", "queued", "running", "unknown"];
  return html`<${Section} title=${t("engines")}><${Scroll} label=${t("engines")}><table><thead><tr><th>${t("name")}</th><th>${t("kind")}</th>
    <th class="number">${t("slots")}</th>${states.map((one) => html`<th key=${one} class="number">${said("placement", one)}</th>`)}</tr></thead>
    <tbody>${items.map(
      (one) => html`<tr key=${one.name}><td>${one.name}${one.problem && html`<br /><span class="problem">${t("it_does_not_answer", one.problem)}</span>`}</td>
      <td>${said("engine_kind", one.kind)}</td><td class="number">${count(one.slots)}</td>
      ${states.map((state) => html`<td key=${state} class="number">${count(one[state])}</td>`)}</tr>`,
    )}</tbody></table><//><//>`;
}

// The machines that share the database; with SQLite it is one, and it leads.
function Nodes({ settled }) {
  const list = useLoad((signal) => get("api/nodes", {}, signal), [], {
    concerns: (one) => one.type.startsWith("node_"),
    every: 5000,
  });
  useSettled(list, "nodes", settled);
  const items = list.data?.items || [];
  const isAlone = items.filter((one) => !one.ended_at).length < 2;
  if (!items.length) return html`<${Trouble} error=${list.error} />`;
  return html`<${Section} title=${plural(items.length, "node")}><${Scroll} label=${t("nodes")}><table><thead><tr><th>${t("node")}</th>
    <th>${t("status")}</th><th class="number">${t("running_2")}</th><th class="wide">${t("resources")}</th><th class="wide">${t("seen")}</th>
    <th class="wide">${t("machine")}</th>
    <th><span class="unseen">${t("actions")}</span></th></tr></thead>
    <tbody>${items.map(
      (one) => html`<tr key=${one.node_id}><td class="tight">${one.node_id}${one.is_leader && html` <b>${t("leads")}</b>`}</td>
      <td><${Status} status=${one.status} /></td>
      <td class="number">${count(one.running)}${one.max_running > 0 && ` / ${count(one.max_running)}`}</td>
      <td class="wide">${unitsOf(one.resources) || "–"}</td>
      <td class="tight wide"><${When} at=${one.ended_at || one.last_seen_at} /></td>
      <td class="wide">${one.host}, ${one.version}</td>
      <td class="tight">${
        one.ended_at
          ? html`<${Forget} node=${one} again=${list.again} />`
          : html`<${Drain} node=${one} isAlone=${isAlone} again=${list.again} />`
      }</td></tr>`,
    )}</tbody></table><//><//>`;
}

const unitsOf = (resources) =>
  Object.entries(resources)
    .map(([name, units]) => `${name} ${count(units)}`)
    .join(", ");

// One that is gone for good: what it had is counted until then.
function Forget({ node, again }) {
  if (!canWhole("operate")) return null;
  const act = async () => {
    const isSure = await ask({
      title: t("forget_the_node", node.node_id),
      text: t("it_is_not_listed_any_more"),
      action: t("forget_it"),
    });
    if (!isSure) return;
    await attempt(() => remove(`api/nodes/${encodeURIComponent(node.node_id)}`), t("it_is_forgotten"));
    again();
  };
  return html`<button onClick=${act}>${t("forget_more")}</button>`;
}

// Where nobody else takes the work, a pause is what is meant.
function Drain({ node, isAlone, again }) {
  const isDraining = node.status === "draining";
  if (!canWhole("operate") || (isAlone && !isDraining)) return null;
  const act = async () => {
    if (
      !isDraining &&
      !(await ask({
        title: t("drain_the_node", node.node_id),
        text: t("it_starts_nothing_more_and_takes"),
        action: t("drain_it"),
      }))
    )
      return;
    const path = `api/nodes/${encodeURIComponent(node.node_id)}/drain`;
    await attempt(() => post(path, { undo: isDraining }), isDraining ? t("it_works_again") : t("it_starts_nothing_more"));
    again();
  };
  return html`<button onClick=${act}>${isDraining ? t("let_it_work") : t("drain_more")}</button>`;
}

function Audit({ settled }) {
  const [size, setSize] = useKept("audit", 25);
  const list = useLoad(
    (signal) => pages("api/audit", { limit: Math.min(500, size) }, { enough: size, signal }),
    [size],
    { concerns: () => true, every: 10_000 },
  );
  useSettled(list, "audit", settled);
  const items = list.data?.items || [];
  return html`<${Section} title=${t("audit")}><${Trouble} error=${list.error} />
    ${
      items.length
        ? html`<${Scroll} label=${t("audit")}><table><thead><tr><th>${t("when")}</th><th>${t("who")}</th><th>${t("what")}</th>
      <th class="wide">${t("where")}</th><th class="wide">${t("before_and_after")}</th></tr></thead>
      <tbody>${items.map(
        (one) => html`<tr key=${one.audit_id}><td class="tight"><${When} at=${one.timestamp} /></td>
        <td>${one.actor}</td><td>${one.action}</td><td class="wide mono">
        <span class="clip" title=${one.target}>${one.target}</span></td>
        <td class="wide mono">${one.details ? JSON.stringify(one.details) : ""}</td></tr>`,
      )}</tbody></table>
          <//>`
        : html`<${Empty}>${t("nothing_was_changed_through_the_api")}<//>`
    }
    ${list.data?.cursor && html`<p class="more"><button onClick=${() => setSize(size + 100)}>${t("more")}</button></p>`}<//>`;
}

// What happens, as it happens: the newest first.
function Happening() {
  const [events, set] = useState([]);
  useEffect(() => {
    let waiting = [];
    let timer = null;
    const show = () => {
      const fresh = waiting.reverse();
      waiting = [];
      timer = null;
      set((old) => [...fresh, ...old].slice(0, 100));
    };
    const before = Math.max(0, live.seen - 30);
    get("api/events", { after: before, limit: 30 }).then(
      (page) =>
        set((old) => [...old, ...page.items.reverse().filter((one) => !old.some((other) => other.seq === one.seq))]),
      () => {},
    );
    const forget = live.listen((event) => {
      waiting.push(event);
      timer ??= setTimeout(show, 200);
    });
    return () => (clearTimeout(timer), forget());
  }, []);
  return html`<${Section} title=${t("what_happens")}><${EventTable} events=${events} hasJob /><//>`;
}

// System: whether it is well, what is used of what, who may do what, who did what.
import { get, pages, post, remove, send } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { live, useLoad } from "../live.js";
import { ask, attempt, canWhole, Empty, Fields, me, Scroll, Section, Status, Trouble, When } from "../parts.js";
import { useKept } from "../router.js";
import { count, duration, moment, plural, size } from "../words.js";
import { EventTable } from "./job.js";
import { Limits } from "./office.js";
import { showSecret } from "./webhooks.js";

export default function System() {
  const status = useLoad(async (signal) => (canWhole("read") ? get("api/status", {}, signal) : null), [], {
    concerns: () => true,
    every: 5000,
  });
  // All sections are shown when each has its data, so that none moves the others.
  const [missing, setMissing] = useState(() => (canWhole("read") ? ["metrics", "nodes"] : []).concat(canWhole("admin") ? ["keys", "audit"] : []));
  const settled = (name) => setMissing((old) => old.filter((one) => one !== name));
  const shown = status.data;
  const isLoading = (!shown && !status.error && canWhole("read")) || missing.length > 0;
  return html`<div class="head">
    <h1 class="grow">System</h1>${shown && html`<${Status} status=${shown.ready ? "ready" : "FAILED"} />`}
      ${shown && canWhole("operate") && html`<${PauseAll} isPaused=${shown.paused.scheduler} again=${status.again} />`}
      ${canWhole("admin") && html`<button onClick=${reload}>Read the configuration again</button>`}</div>
    <${Trouble} error=${status.error} />
    ${isLoading && html`<${Empty}>Loading…<//>`}
    <div hidden=${isLoading}>
    ${shown?.not_ready_because && html`<p class="trouble" role="status">Not ready: ${shown.not_ready_because}</p>`}
    ${me.office_id !== null && html`<${Empty}>This key is for the office ${me.office_id}: it does not see the whole scheduler.<//>`}
    ${shown && html`<${Numbers} status=${shown} />`}
    ${
      canWhole("read") &&
      html`<div class="columns"><div>
        ${
          shown &&
          html`<${Section} title="Limits and their use"><${Limits} limits=${shown.limits} /><//>
        <${Held} held=${shown.held} />`
        }</div><div><${Metrics} settled=${settled} /></div></div><${Nodes} settled=${settled} />`
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
    status.paused.scheduler && "the whole scheduler",
    ...status.paused.offices.map((one) => `office ${one}`),
    ...status.paused.job_types.map((one) => `type ${one}`),
    ...status.paused.resources.map((one) => `resource ${one}`),
  ].filter(Boolean);
  return html`<${Section} title="Status"><div class="stats">
      ${[
        ["running", "running"],
        ["queued", "queued"],
        ["waiting", "waiting"],
        ["direct_waiting", "on the line"],
      ].map(
        ([name, word]) => html`<div key=${name}>
        <b>${count(sum(name))}</b><span>${word}</span></div>`,
      )}
      <div><b>${count(status.last_event)}</b><span>events</span></div></div>
    <${Fields} of=${[
      ["Version", status.version],
      ["Node", status.node],
      ["Paused", paused.join(", ") || "nothing"],
      ["You are", `${me.name} (${me.scopes.at(-1)})`],
      ["Offices", count(status.offices.length)],
    ]} />
      <//>`;
}

function PauseAll({ isPaused, again }) {
  const act = async () => {
    if (
      !isPaused &&
      !(await ask({
        title: "Pause the whole scheduler?",
        text: "Nothing more starts anywhere; what runs and direct requests go on.",
        action: "Pause it",
      }))
    )
      return;
    await attempt(() => post(`api/queue/${isPaused ? "resume" : "pause"}`), isPaused ? "It goes on." : "Paused.");
    again();
  };
  return html`<button onClick=${act}>${isPaused ? "Resume everything" : "Pause everything…"}</button>`;
}

const reload = () =>
  attempt(
    () => post("api/config/reload"),
    (done) =>
      `${plural(done.applied.length, "change")} applied${done.needs_restart.length ? `, ${count(done.needs_restart.length)} need a restart` : ""}.`,
  );

function Held({ held }) {
  if (!held.length) return null;
  return html`<${Section} title="Resources that do not answer"><table><thead><tr><th>Resource</th><th>Since</th>
    <th>Next try</th><th class="number">Failures</th></tr></thead>
    <tbody>${held.map(
      (one) => html`<tr key=${one.resource}><td>${one.resource}</td><td><${When} at=${one.since} /></td>
      <td><${When} at=${one.next_probe_at} /></td><td class="number">${count(one.failures)}</td></tr>`,
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
  return html`<${Section} title="Metrics"><${Scroll} label="Metrics"><table><thead><tr><th>Metric</th>
    <th class="number">Value</th></tr></thead>
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
    const said = line.match(/^# (TYPE|HELP) (\S+) (.*)$/);
    if (said) (said[1] === "TYPE" ? kinds : helps).set(said[2], said[3]);
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
      title: "New key",
      text: items.length
        ? ""
        : "The first key must be an admin's. From then on everybody needs a key, this console too.",
      fields: [
        { name: "name", label: "Name", required: true },
        {
          name: "scope",
          label: "It may",
          value: items.length ? "read" : "admin",
          options: [
            ["read", "read"],
            ["submit", "read and submit"],
            ["operate", "read, submit and operate"],
            ["admin", "everything"],
          ],
        },
        { name: "office_id", label: "Only for the office (empty: all)" },
      ],
      action: "Make it",
      work: (answer) =>
        post("api/keys", {
          name: answer.name,
          scopes: [answer.scope],
          ...(answer.office_id ? { office_id: answer.office_id } : {}),
        }),
    });
    if (made) await showSecret(made.key, `The key of ${made.name}`);
    list.again();
  };
  const drop = async (one) => {
    if (
      await ask({
        title: `Delete the key ${one.name}?`,
        text: "From then on it opens nothing.",
        action: "Delete it",
        danger: true,
      })
    )
      attempt(() => remove(`api/keys/${one.key_id}`), "Deleted.").then(list.again);
  };
  return html`<${Section} title=${plural(items.length, "key")} actions=${html`<button onClick=${add}>New key</button>`}>
    <${Trouble} error=${list.error} />
    ${
      items.length
        ? html`<${Scroll} label="Keys"><table><thead><tr><th>Name</th><th>May</th><th>Office</th>
      <th class="wide">Made by</th><th>Made</th><th><span class="unseen">Actions</span></th></tr></thead>
    <tbody>${items.map(
      (one) => html`<tr key=${one.key_id}><td>${one.name}</td><td>${one.scopes.at(-1)}</td>
      <td>${one.office_id || "all"}</td><td class="wide">${one.created_by || "–"}</td><td class="tight">
      <${When} at=${one.created_at} /></td>
      <td class="number"><button class="danger" onClick=${() => drop(one)}>Delete…</button></td></tr>`,
    )}</tbody></table>
        <//>`
        : html`<${Empty}>No keys: whoever reaches this server may do everything.<//>`
    }<//>`;
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
  return html`<${Section} title=${plural(items.length, "node")}><${Scroll} label="Nodes"><table><thead><tr><th>Node</th>
    <th>Status</th><th class="number">Running</th><th class="wide">Resources</th><th class="wide">Seen</th>
    <th class="wide">Machine</th>
    <th><span class="unseen">Actions</span></th></tr></thead>
    <tbody>${items.map(
      (one) => html`<tr key=${one.node_id}><td class="tight">${one.node_id}${one.is_leader && html` <b>leads</b>`}</td>
      <td><${Status} status=${one.status} /></td>
      <td class="number">${count(one.running)}${one.max_running > 0 && ` of ${count(one.max_running)}`}</td>
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
      title: `Forget the node ${node.node_id}?`,
      text: "It is not listed any more, and the resources that it had are not counted. If it comes back, it is known again.",
      action: "Forget it",
    });
    if (!isSure) return;
    await attempt(() => remove(`api/nodes/${encodeURIComponent(node.node_id)}`), "It is forgotten.");
    again();
  };
  return html`<button onClick=${act}>Forget…</button>`;
}

// Where nobody else takes the work, a pause is what is meant.
function Drain({ node, isAlone, again }) {
  const isDraining = node.status === "draining";
  if (!canWhole("operate") || (isAlone && !isDraining)) return null;
  const act = async () => {
    if (
      !isDraining &&
      !(await ask({
        title: `Drain the node ${node.node_id}?`,
        text: "It starts nothing more and takes no direct requests; what runs there finishes.",
        action: "Drain it",
      }))
    )
      return;
    const path = `api/nodes/${encodeURIComponent(node.node_id)}/drain`;
    await attempt(() => post(path, { undo: isDraining }), isDraining ? "It works again." : "It starts nothing more.");
    again();
  };
  return html`<button onClick=${act}>${isDraining ? "Let it work" : "Drain…"}</button>`;
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
  return html`<${Section} title="Audit"><${Trouble} error=${list.error} />
    ${
      items.length
        ? html`<${Scroll} label="Audit"><table><thead><tr><th>When</th><th>Who</th><th>What</th>
      <th class="wide">Where</th><th class="wide">Before and after</th></tr></thead>
      <tbody>${items.map(
        (one) => html`<tr key=${one.audit_id}><td class="tight"><${When} at=${one.timestamp} /></td>
        <td>${one.actor}</td><td>${one.action}</td><td class="wide mono">
        <span class="clip" title=${one.target}>${one.target}</span></td>
        <td class="wide mono">${one.details ? JSON.stringify(one.details) : ""}</td></tr>`,
      )}</tbody></table>
          <//>`
        : html`<${Empty}>Nothing was changed through the API yet.<//>`
    }
    ${list.data?.cursor && html`<p class="more"><button onClick=${() => setSize(size + 100)}>More</button></p>`}<//>`;
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
  return html`<${Section} title="What happens"><${EventTable} events=${events} hasJob /><//>`;
}

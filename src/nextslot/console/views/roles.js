// The roles of an office: the command of their sessions, and what the office says over the configuration.
import { t } from "../i18n.js";
import { get, put, remove } from "../api.js";
import { html } from "../lib.js";
import { useLoad } from "../live.js";
import { ask, attempt, canWhole, Empty, Loading, Scroll, Section, Trouble } from "../parts.js";
import { count, duration } from "../words.js";

export function Roles({ path }) {
  const list = useLoad((signal) => get(`${path}/roles`, {}, signal), [path]);
  const items = list.data?.items || [];
  const mayChange = canWhole("admin");
  const change = (one) => changeRole(path, one).then((done) => done && list.again());
  const reset = async (one) => {
    const done = await ask({
      title: t("back_to_the_configuration_of", one.role),
      text: t("its_next_sessions_use_the_configuration"),
      action: t("remove_them"),
      danger: true,
      work: () => remove(roleAt(path, one.role)),
      done: t("removed"),
    });
    if (done) list.again();
  };
  return html`<${Section} title=${t("roles")} actions=${mayChange && html`<button onClick=${() => change(null)}>${t("new_role")}</button>`}>
    <${Trouble} error=${list.error} />
    ${
      items.length
        ? html`<${Scroll} label=${t("roles")}><table><thead><tr><th>${t("role")}</th><th>${t("command")}</th><th class="number">${t("timeout")}</th>
      <th class="number">${t("at_once")}</th><th class="wide">${t("set_by")}</th><th><span class="unseen">${t("actions")}</span></th></tr></thead>
    <tbody>${items.map(
      (one) => html`<tr key=${one.role}><td>${one.role}</td>
      <td class="mono">${one.command ? one.command.join(" ") : html`<span class="dim">–</span>`}</td>
      <td class="number">${one.timeout_ms === null ? "–" : duration(one.timeout_ms / 1000)}</td>
      <td class="number">${one.max_concurrent === null ? t("no_limit") : count(one.max_concurrent)}</td>
      <td class="wide">${one.is_own ? t("set_by_the_office") : t("set_by_the_configuration")}</td>
      <td class="number">${mayChange && html`<button onClick=${() => change(one)}>${t("change_more")}</button>`}
        ${mayChange && one.is_own && html` <button class="danger" onClick=${() => reset(one)}>${t("back_to_the_configuration")}</button>`}</td></tr>`,
    )}</tbody></table><//>`
        : list.isLoading
          ? html`<${Loading} />`
          : html`<${Empty}>${t("no_role_is_known")}<//>`
    }<//>`;
}

const roleAt = (path, role) => `${path}/roles/${role.split("/").map(encodeURIComponent).join("/")}`;

// A request says all of a role: what it leaves out is as the configuration says.
function changeRole(path, one) {
  return ask({
    title: one ? t("role_of", one.role) : t("new_role"),
    text: t("what_is_filled_in_goes_first"),
    fields: [
      ...(one ? [] : [{ name: "role", label: t("name"), required: true }]),
      { name: "command", label: t("command_one_argument_a_line"), kind: "area", value: one?.is_own && one.command ? one.command.join("\n") : "" },
      { name: "cwd", label: t("directory_empty_the_configurations"), value: (one?.is_own && one.cwd) || "" },
      {
        name: "env",
        label: t("variables_a_line_each"),
        kind: "area",
        help: one?.env.length ? t("variables_are_replaced", one.env.join(", ")) : "",
      },
      {
        name: "timeout_ms",
        label: t("timeout_minutes_empty_the_configurations"),
        kind: "number",
        min: 0,
        step: "any",
        value: one?.is_own && one.timeout_ms !== null ? one.timeout_ms / 60_000 : "",
      },
      { name: "resume_args", label: t("resume_arguments_one_a_line"), kind: "area", value: one?.is_own ? one.resume_args.join("\n") : "" },
      { name: "resume_on", label: t("resume_after_failure_kinds"), value: one?.is_own ? one.resume_on.join(", ") : "" },
      { name: "session_id_pattern", label: t("session_id_pattern"), value: (one?.is_own && one.session_id_pattern) || "" },
    ],
    action: one ? t("change_it") : t("make_it"),
    work: (answer) => {
      const body = {};
      const command = answer.command.split("\n").filter((line) => line !== "");
      const resumeArgs = answer.resume_args.split("\n").filter((line) => line !== "");
      const resumeOn = answer.resume_on.split(/[\s,]+/).filter((kind) => kind !== "");
      if (command.length) body.command = command;
      if (resumeArgs.length) body.resume_args = resumeArgs;
      if (resumeOn.length) body.resume_on = resumeOn;
      if (answer.session_id_pattern) body.session_id_pattern = answer.session_id_pattern;
      if (answer.cwd) body.cwd = answer.cwd;
      if (answer.env.trim()) body.env = variables(answer.env);
      if (answer.timeout_ms !== "") body.timeout_ms = Math.round(Number(answer.timeout_ms) * 60_000);
      return put(roleAt(path, one ? one.role : answer.role), body);
    },
    done: t("changed"),
  });
}

function variables(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  for (const line of lines)
    if (!/^[^=]+=/.test(line)) {
      const problem = t("is_not_a_variable", line);
      throw Object.assign(new Error(problem), { errors: [{ field: "env", problem }] });
    }
  return Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1)]));
}

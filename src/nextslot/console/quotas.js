// The quotas of an office in words, and the dialog in which an admin grants more or less.
import { said, t } from "./i18n.js";
import { patch } from "./api.js";
import { ask } from "./parts.js";

export const quotaName = (name) => said("quota", name);

// What an answer says of the quotas, without what is used of them.
export function granted(quotas) {
  const { used, ...most } = quotas;
  return most;
}

export function changeQuotas(office, quotas) {
  const before = Object.entries(granted(quotas));
  return ask({
    title: t("change_quotas_of", office),
    text: t("empty_restores_the_default"),
    fields: before.map(([name, value]) => fieldOf(name, value)),
    action: t("grant_it"),
    work: (answer) => {
      const changed = before
        .map(([name, value]) => [name, valueOf(value, answer[name]), value])
        .filter(([, now, old]) => JSON.stringify(now) !== JSON.stringify(old));
      return patch(`api/quotas/${encodeURIComponent(office)}`, Object.fromEntries(changed.map(([name, now]) => [name, now])));
    },
    done: t("changed"),
  });
}

function fieldOf(name, value) {
  const shared = { name, label: quotaName(name) };
  if (typeof value === "boolean") return { ...shared, kind: "checkbox", value };
  if (Array.isArray(value)) return { ...shared, value: value.join(", ") };
  return { ...shared, kind: "number", min: 0, step: 1, value };
}

function valueOf(before, given) {
  if (typeof before === "boolean") return given;
  if (Array.isArray(before)) return listed(given);
  return given === "" ? null : Number(given);
}

// What was typed with commas between, as a list.
export const listed = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);

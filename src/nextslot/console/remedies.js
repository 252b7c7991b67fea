// What ends a pause, a hold and the like: a word and a request each. And the button that does it.
import { t } from "./i18n.js";
import { patch, post } from "./api.js";
import { html } from "./lib.js";
import { attempt, can, canWhole, me } from "./parts.js";

// An office's key resumes its own office only.
export const resume = (scope = {}) => ({
  word: t("resume"),
  may: scope.office_id ? can("operate") && (me.office_id ?? scope.office_id) === scope.office_id : canWhole("operate"),
  work: () => post("api/queue/resume", scope),
  done: t("it_goes_on"),
});

export const release = (resource) => ({
  word: t("release"),
  may: canWhole("operate"),
  work: () => post("api/queue/release", { resource }),
  done: t("released"),
});

export const undrain = (node) => ({
  word: t("let_it_work"),
  may: canWhole("operate"),
  work: () => post(`api/nodes/${encodeURIComponent(node)}/drain`, { undo: true }),
  done: t("it_works_again"),
});

export const enable = (webhook) => ({
  word: t("enable"),
  may: can("operate"),
  work: () => patch(`api/webhooks/${webhook.webhook_id}`, { enabled: true }),
  done: t("enabled"),
});

// Only an admin grants more. The dialog says itself that it is done.
export const grant = (office, quotas) => ({
  word: t("grant_more"),
  may: canWhole("admin"),
  work: async () => (await import("./quotas.js")).changeQuotas(office, quotas),
});

export function Remedy({ of: remedy, about, again }) {
  if (!remedy?.may) return null;
  const act = () => attempt(remedy.work, remedy.done).then(again);
  return html`<button class="small" aria-label=${`${remedy.word}: ${about}`} onClick=${act}>${remedy.word}</button>`;
}

// The queue of an office: its order changes by dragging, or by Alt and the arrow keys.
import { said, t } from "../i18n.js";
import { cancelJob, moved, useGoing } from "../actions.js";
import { post } from "../api.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import { attempt, can, Empty, JobLink, Section, Status, When } from "../parts.js";
import { plural } from "../words.js";

export function Queue({ officeId, items, asOf, hasMore, more, again }) {
  // Ours until the server has answered, so that a move shows at once: what was asked before then is of no use.
  const [order, setOrder] = useState(null);
  const [dragged, setDragged] = useState(null);
  const [over, setOver] = useState(null);
  const [spoken, say] = useState("");
  const focused = useRef(null);
  const pending = useRef(Promise.resolve());
  const moves = useRef(0);
  const answered = useRef(0);
  useEffect(() => {
    if (moves.current === 0 && asOf >= answered.current) setOrder(null);
  }, [asOf]);
  useEffect(() => {
    // Who leaves with a move that the server has not got yet is asked first.
    const leaving = (event) => moves.current > 0 && event.preventDefault();
    addEventListener("beforeunload", leaving);
    return () => removeEventListener("beforeunload", leaving);
  }, []);
  useLayoutEffect(() => {
    // A row that was moved in the document has lost the focus.
    if (!focused.current) return;
    const button = document.getElementById(`handle-${focused.current}`);
    if (
      button &&
      document.activeElement !== button &&
      (document.activeElement === document.body || !document.activeElement)
    )
      button.focus();
  });
  const byId = new Map(items.map((job) => [job.job_id, job]));
  const known = order
    ? [...order.filter((id) => byId.has(id)), ...items.map((job) => job.job_id).filter((id) => !order.includes(id))]
    : null;
  const jobs = known ? known.map((id) => byId.get(id)) : items;

  const move = (job, to) => {
    const from = jobs.findIndex((one) => one.job_id === job.job_id);
    const place = Math.max(0, Math.min(jobs.length - 1, to));
    if (from < 0 || place === from) return;
    const ids = jobs.map((one) => one.job_id);
    const before = ids[from - 1];
    ids.splice(from, 1);
    ids.splice(place, 0, job.job_id);
    setOrder(ids);
    say(t("place_of", place + 1, jobs.length));
    const body = place === 0 ? { to: "front" } : { after: ids[place - 1] };
    moves.current += 1;
    pending.current = pending.current.then(async () => {
      const done = await attempt(() => post(`api/jobs/${job.job_id}/move`, body));
      moves.current -= 1;
      answered.current = performance.now();
      if (done !== null) moved(job, before ? { after: before } : { to: "front" }, again);
      if (moves.current === 0) {
        if (done === null) setOrder(null);
        again();
      }
    });
  };

  const pressed = (event, job, index) => {
    const to = { ArrowUp: index - 1, ArrowDown: index + 1, Home: 0, End: jobs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    if (event.altKey) {
      focused.current = job.job_id;
      move(job, to);
    } else {
      const next = jobs[Math.max(0, Math.min(jobs.length - 1, to))];
      focused.current = next.job_id;
      document.getElementById(`handle-${next.job_id}`)?.focus();
    }
  };

  const drop = (event, index) => {
    event.preventDefault();
    const from = jobs.findIndex((one) => one.job_id === dragged);
    const target = index + (over?.isBelow ? 1 : 0) - (from < index + (over?.isBelow ? 1 : 0) ? 1 : 0);
    if (from >= 0) move(jobs[from], target);
    setDragged(null);
    setOver(null);
  };

  const mayMove = can("operate");
  const isGoing = useGoing();
  const row = (job, index) => {
    const isOver = over?.id === job.job_id && dragged && dragged !== job.job_id;
    return html`<li key=${job.job_id} data-job=${job.job_id} draggable=${mayMove}
      class="${isOver ? `over ${over.isBelow ? "below" : ""}` : ""} ${dragged === job.job_id ? "dragged" : ""} ${isGoing(job.job_id) ? "going" : ""}"
      onDragStart=${(event) => (event.dataTransfer.setData("text/plain", job.job_id), (event.dataTransfer.effectAllowed = "move"), setDragged(job.job_id))}
      onDragOver=${(event) => dragged && (event.preventDefault(), setOver({ id: job.job_id, isBelow: isBelowMiddle(event) }))}
      onDragEnd=${() => (setDragged(null), setOver(null))} onDrop=${(event) => drop(event, index)}>
      ${
        mayMove
          ? html`<button class="handle" id=${`handle-${job.job_id}`}
            aria-label=${t("move_place", job.title || job.job_type, index + 1)}
        title=${t("drag_or_alt_and_the_arrow")} onFocus=${() => (focused.current = job.job_id)}
          onBlur=${() => (focused.current = document.hasFocus() && moves.current === 0 ? null : focused.current)}
        onKeyDown=${(event) => pressed(event, job, index)}>⠿</button>`
          : html`<span></span>`
      }
      <span class="number dim">${index + 1}</span>
      <span class="what"><${JobLink} job=${job} />${
        job.title &&
        html`<span class="type wide">${job.job_type}
        </span>`
      }${job.attempt > 1 && html`<span class="type wide">${t("attempt_2", job.attempt)}</span>`}
        <span class="type narrow"><${When} at=${job.expected_start} none=${said("status", job.status)} /></span></span>
      <span class="wide" title=${t("expected_start")}><${When} at=${job.expected_start} none=${job.isForeseen === false ? "…" : t("no_estimate")} /></span>
      <span class="wide"><${Status} status=${job.status} /></span>
      <span class="wide dim number">${job.priority || job.aged_steps ? priority(job.priority) : ""}${job.aged_steps ? ` + ${job.aged_steps}` : ""}</span>
      <span class="buttons">${
        mayMove &&
        html`<button class="quiet narrow" aria-label=${t("move_up", job.title || job.job_type)}
          onClick=${() => move(job, index - 1)} disabled=${index === 0}>↑</button>
        <button class="quiet" title=${t("to_the_front")} aria-label=${t("move_to_the_front", job.title || job.job_type)}
          onClick=${() => move(job, 0)} disabled=${index === 0}>⤒</button>
        <button class="quiet" disabled=${isGoing(job.job_id)} onClick=${() => cancelJob(job, false).then((done) => done && again())}>${t("cancel_3")}</button>`
      }</span>
    </li>`;
  };
  return html`<${Section} title=${hasMore ? t("queue_the_first", plural(jobs.length, "job")) : t("queue", plural(jobs.length, "job"))}
      actions=${
        mayMove &&
        jobs.length > 1 &&
        html`<span class="dim wide">${t("drag_or")} <kbd>${t("alt")}</kbd> <kbd>↑</kbd> <kbd>↓</kbd>
        </span>`
      }>
    ${
      jobs.length
        ? html`<ol class="queue" data-office=${officeId} aria-busy=${order !== null}>${jobs.map(row)}
      </ol>`
        : html`<${Empty}>${t("nothing_waits")}<//>`
    }
    ${hasMore && html`<p class="more"><button onClick=${more}>${t("show_more")}</button></p>`}
    <div class="unseen" role="status">${spoken}</div>
  <//>`;
}

const priority = (value) => (value === 1_000_000 ? t("urgent") : t("priority_2", value));

function isBelowMiddle(event) {
  const box = event.currentTarget.getBoundingClientRect();
  return event.clientY > box.top + box.height / 2;
}

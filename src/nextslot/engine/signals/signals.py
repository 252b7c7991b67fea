"""Signals: stores answers to jobs that wait for a person or a program, and gives the default answer at a deadline.

Each wait gets one answer. An answer that arrives before its job waits is kept. The same answer sent again returns the
stored one; a different answer, or one after the end, is refused. The answer and everything that follows from it are
stored in one transaction.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nextslot.domain import Answer, Job, Json, Signal, Stage
from nextslot.domain.bounds import MAX_PAYLOAD_BYTES, text_problem
from nextslot.domain.request_checks import json_problems
from nextslot.domain.signals import BY_DEADLINE, MOST_KEPT
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.finish.job_finisher import JobFinisher
from nextslot.errors import Conflict, Forbidden, Invalid, NotFound, Problem
from nextslot.store.contract import Tx
from nextslot.store.tables import column_codec, jobs, runs, signals
from nextslot.system.instant import Instant


class Sent(NamedTuple):
    """The stored answer, and whether this request has stored it."""

    signal: Signal
    is_new: bool


class Signals:
    def __init__(self, engine: EngineContext, finisher: JobFinisher) -> None:
        self._engine = engine
        self._finisher = finisher

    def send(
        self,
        tx: Tx,
        job_id: str,
        name: str,
        answer: Answer,
        payload: Json,
        sent_by: str,
        now: Instant,
        *,
        signal_id: str | None = None,
        callers: Sequence[str] | None = None,
    ) -> Sent:
        """Answers the wait of a chain for this name, or keeps the answer for a later wait. `callers` are the names by
        which the sender may answer; None allows any name."""
        job = jobs.get(tx, job_id)
        if job is None:
            raise NotFound("job", job_id)
        # The request may repeat the answer to an earlier wait for this name.
        known = None if signal_id is None else signals.sent(tx, job.chain_id, name, signal_id)
        if known is not None:
            return Sent(known, is_new=False)
        last, before = jobs.chain(tx, job.chain_id)[-1], signals.last(tx, job.chain_id, name)
        is_open = last.stage is Stage.QUEUED and last.is_awaiting and _name(last) == name
        if is_open:
            _refuse_foreign(last, callers)
            if last.answer_by is not None and last.answer_by <= now and sent_by != BY_DEADLINE:
                # An answer that arrives after the deadline is late, even if the timer has not applied the deadline yet.
                return Sent(_same(self._by_deadline(tx, last, now), answer, payload), is_new=False)
        elif before is not None:
            return Sent(_same(before, answer, payload), is_new=False)
        elif last.has_ended:
            raise Conflict(f"the chain of job {job_id} has ended, as {last.status}: it waits for no signal any more")
        elif signals.kept(tx, job.chain_id) >= MOST_KEPT:
            raise Conflict(f"the chain of job {job_id} keeps {MOST_KEPT} answers that it has not waited for: no more")
        signal = Signal(
            chain_id=job.chain_id,
            name=name,
            number=1 if before is None else before.number + 1,
            job_id=last.job_id if is_open else None,
            signal_id=signal_id,
            answer=answer,
            payload=payload,
            sent_by=sent_by,
            sent_at=now,
        )
        signals.insert(tx, signal)
        details = {"name": name, "answer": answer, "sent_by": sent_by, "is_kept": not is_open}
        self._engine.events.note(tx, "job_signalled", now, job.office_id, last.job_id, details=details)
        if is_open:
            self._apply(tx, last, signal, now)
        return Sent(signal, is_new=True)

    def park(self, tx: Tx, run_id: str, wait: Mapping[str, Json]) -> None:
        """Stores that the session of a run waits for a signal once the run has ended. A later call replaces it."""
        run = runs.get(tx, run_id)
        if run is None:
            raise NotFound("run", run_id)
        if run.status is not None or not runs.park(tx, run_id, wait):
            raise Conflict(f"run {run_id} has ended, as {run.status}: only a running one can be parked")

    def do_due(self, tx: Tx, now: Instant, limit: int) -> int:
        """Gives the default answer to waits whose deadline has passed. Returns the number of these waits.

        Leaves out a job whose `expires_at` came before the deadline: the caller expires it in the same transaction.
        """
        late = jobs.unanswered(tx, now, limit)
        for one in late:
            # Each job is read again: an answer may have ended other jobs of this list.
            job = jobs.get(tx, one.job_id)
            if job is not None and job.stage is Stage.QUEUED and job.is_awaiting and not _expires_first(job):
                self._by_deadline(tx, job, now)
        return len(late)

    def _by_deadline(self, tx: Tx, job: Job, now: Instant) -> Signal:
        """Answers a wait whose deadline has passed with its default answer. Returns the stored answer."""
        assert job.await_signal is not None
        answer = Answer(job.await_signal["on_deadline"])
        return self.send(tx, job.job_id, _name(job), answer, None, BY_DEADLINE, now).signal

    def _apply(self, tx: Tx, job: Job, signal: Signal, now: Instant) -> None:
        """Lets the job start, or ends it. A parked session goes on even after a rejection, and reads the answer."""
        who = "nobody answered in time" if signal.sent_by == BY_DEADLINE else f"by {signal.sent_by}"
        if signal.answer is Answer.FAIL:
            self._finisher.fail_queued(tx, job, f"no answer to the signal {signal.name!r} by {job.answer_by}", now)
        elif signal.answer is Answer.REJECT and not self._is_parked(tx, job):
            self._finisher.reject(tx, job, f"rejected ({signal.name}): {who}", now)
        else:
            freed = jobs.answered(tx, job.job_id)
            if freed is not None:
                self._engine.note_freed(tx, freed, now)

    def _is_parked(self, tx: Tx, job: Job) -> bool:
        """Returns whether a parked session waits. If not, a job that ends while it waits has not run."""
        before = [one for one in jobs.chain(tx, job.chain_id) if one.job_id != job.job_id and not one.is_awaiting]
        run = runs.of_job(tx, before[-1].job_id) if before else None
        return run is not None and run.park is not None


def _expires_first(job: Job) -> bool:
    return job.expires_at is not None and job.answer_by is not None and job.expires_at <= job.answer_by


def refuse_signal(name: str, payload: Json, signal_id: str | None) -> None:
    """Raises Invalid if the answer cannot be stored."""
    texts = {"name": name, **({} if signal_id is None else {"signal_id": signal_id})}
    found = [Problem(field, one) for field, text in texts.items() if (one := text_problem(text)) is not None]
    found += json_problems("payload", {"": payload})
    if not found and (size := column_codec.size(payload)) > MAX_PAYLOAD_BYTES:
        found.append(Problem("payload", f"has {size:,} bytes of JSON; at most {MAX_PAYLOAD_BYTES:,} are stored"))
    if found:
        raise Invalid(found)


def _name(job: Job) -> str:
    return "" if job.await_signal is None else str(job.await_signal["name"])


def _refuse_foreign(job: Job, callers: Sequence[str] | None) -> None:
    allowed = [] if job.await_signal is None else job.await_signal["answered_by"]
    if callers is not None and allowed and not set(callers) & set(allowed):
        raise Forbidden(f"the signal {_name(job)!r} of job {job.job_id} can be answered only by {', '.join(allowed)}")


def _same(before: Signal, answer: Answer, payload: Json) -> Signal:
    """Returns the stored answer if the new one is the same; raises Conflict if it differs."""
    if (before.answer, before.payload) == (answer, payload):
        return before
    what = "another payload" if before.answer is answer else f"{before.answer.value!r}"
    raise Conflict(
        f"the signal {before.name!r} was answered with {what} by {before.sent_by} at {before.sent_at}: "
        "an answer does not change"
    )

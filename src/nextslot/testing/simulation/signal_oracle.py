"""Laws of signals, parked sessions and checkpoints, read by statements of their own; `world` calls this."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from nextslot.executors.run_context import RunContext
from nextslot.store.contract import Tx

from . import check_reads
from .broken import Broken
from .check_reads import JobFacts, StoredSignal

TOLERANCE = 1_000_000


class Answers:
    """The answers that were seen: none of them changes, and none is lost."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], StoredSignal] = {}

    def look(self, tx: Tx, has_purged: bool) -> Iterator[Broken]:
        stored = {(one.chain_id, one.name, one.number): one for one in check_reads.signals(tx)}
        for key, before in self._seen.items():
            now = stored.get(key)
            if now is None:
                if not has_purged:
                    yield Broken("an answer is never lost", str(before))
            elif now != before and now._replace(job_id=None) != before:
                yield Broken("an answer does not change", f"{before} is {now}")
        self._seen = stored
        yield from answered_wrongly(tx, stored)


def answered_wrongly(tx: Tx, stored: Mapping[tuple[str, str, int], StoredSignal]) -> Iterator[Broken]:
    """Finds waits that were answered twice, or too early or late, and work that started without its answer."""
    facts = check_reads.jobs(tx)
    answers: dict[str | None, list[StoredSignal]] = {}
    for one in stored.values():
        answers.setdefault(one.job_id, []).append(one)
    for job in facts.values():
        given = answers.get(job.job_id, [])
        if len(given) > 1:
            yield Broken("a wait is answered once", f"{job.job_id}: {given}")
        yield from _started_without(facts, job, given)
        if (job.cancel_reason or "").startswith("rejected (") and _is_session(facts, job):
            yield Broken("a parked session goes on after a rejection", f"{job.job_id}: {job.cancel_reason}")
        for one in given:
            yield from _out_of_time(job, one)
        is_free = job.stage == "QUEUED" and job.is_awaiting and job.unmet == 1 and job.is_due and job.is_turn
        if is_free and job.asked_at is None:
            yield Broken("a job asks when nothing else holds it back", job.job_id)


def _started_without(facts: Mapping[str, JobFacts], job: JobFacts, given: list[StoredSignal]) -> Iterator[Broken]:
    law = "what waits for an answer starts only with it"
    if job.worker_id is None or job.await_signal is None:
        return
    wait = json.loads(job.await_signal)
    before = facts.get(job.retry_of or "")
    began_to_wait = before is None or before.failure_kind == "parked" or before.is_awaiting
    if job.is_awaiting:
        yield Broken(law, f"{job.job_id} runs and waits")
    if not began_to_wait:
        return
    if [one.name for one in given] != [wait["name"]]:
        yield Broken(law, f"{job.job_id} has started, and has the answers {given}")
    elif given[0].answer == "fail" or (given[0].answer == "reject" and not _is_session(facts, job)):
        yield Broken(law, f"{job.job_id} has started, and was answered {given[0].answer}")
    elif wait["answered_by"] and given[0].sent_by not in (*wait["answered_by"], "deadline"):
        yield Broken("only those who are named answer", f"{job.job_id}: {given[0].sent_by}")


def _is_session(facts: Mapping[str, JobFacts], job: JobFacts) -> bool:
    before = facts.get(job.retry_of or "")
    while before is not None and before.is_awaiting:
        before = facts.get(before.retry_of or "")
    return before is not None and before.failure_kind == "parked"


def _out_of_time(job: JobFacts, one: StoredSignal) -> Iterator[Broken]:
    if job.answer_by is None:
        return
    if one.sent_by == "deadline" and one.sent_at < job.answer_by:
        yield Broken("a default comes at its deadline", f"{one}, before {job.answer_by}")
    if one.sent_by != "deadline" and one.sent_at >= job.answer_by:
        yield Broken("an answer after the deadline is late", f"{one}, after {job.answer_by}")


def unanswered(tx: Tx, now: int) -> Iterator[Broken]:
    """Finds waits whose deadline has passed. Only for times in which nothing may be late because of a fault."""
    for job in check_reads.jobs(tx).values():
        if job.stage == "QUEUED" and job.is_awaiting and (job.answer_by or now) < now - TOLERANCE:
            yield Broken("a wait without an answer gets its default in time", f"{job.job_id} by {job.answer_by}")


def not_parked(tx: Tx) -> Iterator[Broken]:
    """Finds runs that were to be parked and ended otherwise, without a cancel."""
    facts = check_reads.jobs(tx).values()
    followers = Counter(job.retry_of for job in facts)
    for job in facts:
        if job.park is None or job.finished_at is None or job.cancel_mode is not None:
            continue
        if job.failure_kind != "parked" or followers[job.job_id] != 1:
            yield Broken("a run that was asked to park is parked", f"{job.job_id}: {job.outcome} {job.failure_kind}")


class Sessions:
    """What the sessions have left and asked, as they remember it; a crash of the scheduler does not make them forget.

    The checkpoints of a chain count up, so a lost or a torn one is noticed.
    """

    def __init__(self) -> None:
        # By chain: the last checkpoint that was acknowledged, and the highest that was ever left.
        self.kept: dict[str, int] = {}
        self.left: Counter[str] = Counter()
        # By chain: the session that was acknowledged last.
        self.names: dict[str, str] = {}
        self.broken: list[str] = []

    def begins(self, run: RunContext, tx: Tx) -> str:
        """Compares what an attempt is given with what is stored and with what was acknowledged; returns its chain."""
        facts = check_reads.jobs(tx)
        job = facts[run.job_id]
        chain_id, stored = job.chain_id, check_reads.checkpoint(tx, job.chain_id)
        if run.last_checkpoint != stored:
            self.broken.append(f"{run.run_id} was given {run.last_checkpoint}, and {stored} is stored")
        number = 0 if stored is None else int(stored["number"])
        if stored is not None and stored != content(number):
            self.broken.append(f"the checkpoint of {chain_id} is torn: {stored}")
        if not self.kept.get(chain_id, 0) <= number <= self.left[chain_id]:
            self.broken.append(f"{chain_id} has checkpoint {number}, and {self.kept.get(chain_id)} was acknowledged")
        known = self.names.get(chain_id)
        if known is not None and (run.earlier_session or ("", ""))[0] != known:
            self.broken.append(f"{run.run_id} follows {run.earlier_session}, and the last session was {known}")
        before = facts.get(job.retry_of or "")
        if before is not None and before.park is not None and before.failure_kind == "parked":
            name = json.loads(before.park)["name"]
            if name not in run.signals:
                self.broken.append(f"{run.run_id} goes on without the answer {name}: {sorted(run.signals)}")
        return chain_id


def content(number: int) -> dict[str, Any]:
    """A checkpoint of several pages, which a torn write would leave in pieces."""
    return {"number": number, "pad": str(number) * 2_000}

"""Small bugs in every part of the package, one at a time; `planted_source` plants them."""

from tests.simulation.planted_bug import NODES, Bug

PARTS = (
    Bug(
        "a job may depend on a job of another office",
        "engine/submit/intake.py",
        "if office_of.get(other) != office_id:",
        "if other not in office_of:",
        "tests/engine/test_08_dependencies.py",
    ),
    Bug(
        "a member of a sequential group gets the turn at once if it is urgent",
        "engine/submit/intake.py",
        "is_turn=group.mode is GroupMode.PARALLEL or index == 0)",
        "is_turn=group.mode is GroupMode.PARALLEL or index == 0 or new.urgent)",
    ),
    Bug(
        "a job that is put off does not set the timer",
        "engine/submit/queue_order.py",
        "        if not changed.is_due:\n            self._timer.note(tx, scheduled_for)\n",
        "",
    ),
    Bug(
        "a job moved to the back stays before lower priorities",
        "engine/submit/queue_order.py",
        "(last.priority, self.back(tx, job.office_id, last.priority)) if last",
        "(job.priority, self.back(tx, job.office_id, job.priority)) if last",
    ),
    Bug(
        "reordered jobs get places in the order of their ids",
        "engine/submit/queue_order.py",
        "places = sorted(jobs.place_of(job) for job in found.values())",
        "places = [jobs.place_of(job) for job in found.values()]",
    ),
    Bug(
        "a resume wakes nobody",
        "engine/submit/queue_order.py",
        '            self._lanes.counters(tx).is_freed = True\n            self._events.note(tx, "queue_resumed"',
        '            self._events.note(tx, "queue_resumed"',
    ),
    Bug(
        "a move to a place counts the job that moves",
        "engine/submit/queue_order.py",
        "0 if place is None else place - 1, but=job_id)",
        "0 if place is None else place, but=job_id)",
    ),
    Bug(
        "keys are forgotten at once",
        "engine/submit/idempotency.py",
        "since = now.after(-KEPT_SECONDS)",
        "since = now.after(KEPT_SECONDS)",
    ),
    Bug(
        "a skipped member sends no message",
        "engine/finish/job_finisher.py",
        "        self._tell(tx, job, run_events(RunStatus.SKIPPED, False, is_last=True), now)\n        return _ended",
        "        return _ended",
    ),
    Bug(
        "who waits for a member of a group hears nothing",
        "engine/finish/job_finisher.py",
        "            tx.cause(ChainEnded(chain.chain_id))",
        "            if chain.group_id is None:\n                tx.cause(ChainEnded(chain.chain_id))",
    ),
    Bug(
        "a cancelled chain is counted as failed",
        "engine/finish/job_finisher.py",
        "        tally.cancelled += 1",
        "        tally.failed += 1",
    ),
    Bug(
        "a retry that is brought forward is not counted as ready",
        "engine/finish/retries.py",
        "            self._engine.note_freed(tx, job, now)\n        return job if priority",
        "        return job if priority",
    ),
    Bug(
        "a retry by hand takes the run's job for the last of its chain",
        "engine/finish/retries.py",
        "        last = jobs.chain(tx, job.chain_id)[-1]\n",
        "        last = job\n",
    ),
    Bug(
        "a job is ready when its first prerequisite has ended",
        "engine/finish/dependents.py",
        "                self._engine.note_freed(tx, freed, now)",
        "                self._engine.note_ready(tx, freed, now)",
    ),
    Bug(
        "a skipped prerequisite does not count as met",
        "domain/job_lifecycle.py",
        "    if outcome.status is not RunStatus.FAILED:\n"
        "        return _ends(outcome, Stage.RUNNING, None, ChainEnd.SUCCEEDED)",
        "    if outcome.status is not RunStatus.FAILED:\n"
        "        end = ChainEnd.FAILED if outcome.status is RunStatus.SKIPPED else ChainEnd.SUCCEEDED\n"
        "        return _ends(outcome, Stage.RUNNING, None, end)",
    ),
    Bug(
        "a retry too few",
        "domain/retry.py",
        "    if counted > policy.max_attempts:",
        "    if counted >= policy.max_attempts:",
    ),
    Bug(
        "the exponential delay begins with its double",
        "domain/retry.py",
        "2.0 ** min(number - 1, 60)",
        "2.0 ** min(number, 60)",
    ),
    Bug(
        "a group whose last member is skipped is partial",
        "domain/group_failure.py",
        "    if group.succeeded == group.members:",
        "    if group.succeeded > group.members:",
    ),
    Bug(
        "the wait of a direct caller has no timer",
        "engine/direct/direct_requests.py",
        "        self._timer.note_here(tx, caller.wait_until)\n",
        "",
    ),
    Bug(
        "the timer forgets the next occurrence",
        "engine/execution/timeouts.py",
        "                next_probe,\n                next_occurrence,\n",
        "                next_probe,\n",
    ),
    Bug(
        "the timer forgets the next timeout",
        "engine/execution/timeouts.py",
        "upcoming=_first(runs.next_timeout(tx, now), next_direct)",
        "upcoming=next_direct",
    ),
    Bug(
        "a job of a lane that is not read yet goes behind all others",
        "engine/dispatch/fairness.py",
        "if (first is None or front.place[:2] <= first[1].place.bound) and",
        "if first is None and",
        "tests/engine/test_04_many_lanes.py",
    ),
    Bug(
        "an office that was served keeps its turn",
        "engine/dispatch/dispatch_round.py",
        "        self.turn = office.turn = max(self.turn + 1, self.now)\n",
        "        self.turn = max(self.turn + 1, self.now)\n",
    ),
    Bug(
        "deliveries that are due later are forgotten",
        "engine/webhooks/delivery_worker.py",
        "        endpoint.due_by(upcoming)\n        self._pump(endpoint)",
        "        self._pump(endpoint)",
    ),
    Bug(
        "a message has the number of the event before",
        "engine/webhooks/webhook_outbox.py",
        "_numbered(one, before + one.events)",
        "_numbered(one, before + one.events - 1)",
    ),
    Bug(
        "a message says one attempt too few",
        "engine/webhooks/webhook_outbox.py",
        "1 + len(jobs.failures_before(tx, job.chain_id, job.job_id))",
        "len(jobs.failures_before(tx, job.chain_id, job.job_id))",
    ),
    Bug(
        "a webhook of one office hears of all groups",
        "engine/webhooks/webhook_outbox.py",
        "self._listeners.offices.get(office_id), self._listeners.of(office_id)",
        "self._listeners.offices.get(office_id), self._listeners.subscriptions",
    ),
    Bug(
        "why names the holders of another limit",
        "engine/forecast/why.py",
        "            if key in lane.needs:\n                yield _holder",
        "            if lane.needs:\n                yield _holder",
    ),
    Bug(
        "why does not say that an office is paused",
        "engine/forecast/why.py",
        "        if view.counters.office(job.office_id).is_paused:\n",
        "        if False:\n",
    ),
    Bug(
        "a changed limit of an office does not count until the next start",
        "engine/settings/office_settings.py",
        "        self._begin_aging(tx, office, changed)\n        self._resize(tx, changed)",
        "        self._begin_aging(tx, office, changed)",
    ),
    Bug(
        "a work that is refused takes the next one with it",
        "store/group_commit.py",
        "                alone.append(together.pop(failed.index))",
        "                alone.append(together.pop(failed.index))\n"
        "                together = together[: failed.index] + together[failed.index + 1 :]",
    ),
    Bug(
        "full nodes wake each other without end",
        "engine/cluster/cluster.py",
        "        counters.is_freed = counters.is_announced = True\n",
        "        counters.is_freed = True\n",
        NODES,
    ),
)

"""Small bugs in the text of the package, one at a time, as a tired programmer writes them: each has to be found.

`python -m tests.simulation.planted_source NAME…` plants bugs into copies of the package, and says what finds each: the
simulation, or the named tests. `test_planted_source.py` does the same and fails if a bug escapes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.simulation.planted_bug import HTTP, NODES, SIMULATION, Bug
from tests.simulation.planted_limits import LIMITS
from tests.simulation.planted_parts import PARTS
from tests.simulation.planted_rules import RULES
from tests.support import environment_of_copy

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "nextslot"
# Histories of this length, and how many of them, a planted bug may take.
LENGTH, SEEDS = 24, 200
NODE_SEEDS = HTTP_SEEDS = 40
SIMULATED = {SIMULATION: SEEDS, NODES: NODE_SEEDS, HTTP: HTTP_SEEDS}
# Each plugin that is loaded by itself costs a second of every process; the tests need these.
PLUGINS = ("pytest_cov.plugin", "pytest_timeout")


BUGS = (
    *PARTS,
    *RULES,
    *LIMITS,
    # A batch that handles only its first rows.
    Bug(
        "recovery ends only its first batch",
        "engine/cluster/recovery.py",
        "            if sum(found) == 0:\n                break",
        "            break",
        "tests/engine/test_15_recovery.py::test_recovery_may_be_killed_at_any_point_and_is_then_finished",
    ),
    Bug(
        "recovery decides only its first batch",
        "engine/cluster/recovery.py",
        "        while batch := await store.write(self._decide, rows=BATCH):",
        "        if batch := await store.write(self._decide, rows=BATCH):",
        "tests/engine/test_15_recovery.py",
    ),
    Bug(
        "a timeout stops only the first runs",
        "engine/execution/timeouts.py",
        "runs.overdue(tx, now, ALL)",
        "runs.overdue(tx, now, 1)",
        "tests/simulation/test_found.py",
    ),
    Bug(
        "a clock that is set back plans only the first page of schedules",
        "engine/schedules/schedule_trigger.py",
        "        while after is not None:\n            after = self._replan(tx, after)",
        "        self._replan(tx, after)",
        "tests/simulation/test_small_pages.py",
    ),
    Bug(
        "a purge ends after its first page of chains",
        "engine/retention.py",
        "if len(roots) == UNITS else None",
        "if len(roots) > UNITS else None",
        "tests/engine/test_19_retention.py",
    ),
    Bug(
        "a purge deletes only its first batch of small rows",
        "engine/retention.py",
        "    while count := await store.write(drop_some, rows=ROWS):",
        "    if count := await store.write(drop_some, rows=ROWS):",
        "tests/engine/test_19_retention.py",
    ),
    Bug(
        "a bulk action ends after its first page",
        "services/bulk.py",
        "            after = part.after",
        "            after = None",
        "tests/engine/test_07_bulk.py",
    ),
    Bug(
        "due deliveries behind the first page are forgotten",
        "engine/webhooks/delivery_worker.py",
        "return found, now if len(found) == limit else deliveries.next_due(tx, origin, now)",
        "return found, deliveries.next_due(tx, origin, now)",
    ),
    # A forgotten part of a purge.
    Bug(
        "a purge keeps the statistics",
        "engine/retention.py",
        "            lanes.tally(tx, lane_id, tally)",
        "            pass",
        "tests/engine/test_19_retention.py",
    ),
    Bug(
        "a purge leaves the artifacts on the disk",
        "executors/run_files.py",
        "                shutil.rmtree(root, ignore_errors=True)",
        "                pass",
        "tests/engine/test_19_retention.py",
    ),
    Bug(
        "a purge takes what a waiting job depends on",
        "engine/retention.py",
        "return not old_history.is_referred(tx, [job.job_id for job in jobs])",
        "return True",
        "tests/engine/test_19_retention.py",
    ),
    Bug(
        "a purge takes groups that go on",
        "engine/retention.py",
        'job.finished_at is None or job.finished_at >= before or job.decision == "undecided"',
        "job.finished_at is not None and job.finished_at >= before",
        "tests/engine/test_19_retention.py",
    ),
    Bug(
        "a purge leaves a gap in the events",
        "engine/retention.py",
        "until = min(kept, first + ROWS)",
        "until = min(kept, first + ROWS) + 1",
        "tests/engine/test_19_retention.py",
    ),
    # Names that are prefixes of each other.
    Bug(
        "a role limit is changed in offices whose names begin alike",
        "engine/settings/office_settings.py",
        'role_prefix = f"role:{office.office_id}/"',
        'role_prefix = f"role:{office.office_id}"',
        "tests/engine/test_offices.py::test_a_changed_limit_of_a_role_changes_no_office_whose_name_begins_alike",
    ),
    Bug(
        "a subscription gets the events of offices whose names begin alike",
        "engine/webhooks/webhook_outbox.py",
        "one.office_id is None or one.office_id == office_id]",
        'one.office_id is None or (office_id or "").startswith(one.office_id)]',
        "tests/engine/test_12_webhooks.py::test_a_subscription_hears_of_one_office_or_of_all",
    ),
    Bug(
        "a key opens offices whose names begin alike",
        "server/auth.py",
        "if self.office_id is not None and office_id != self.office_id:",
        'if self.office_id is not None and not (office_id or "").startswith(self.office_id):',
        "tests/server/test_names_alike.py",
    ),
    Bug(
        "a node takes the slots of nodes whose names begin alike",
        "engine/dispatch/limits_and_slots.py",
        "if node != self.node:",
        "if not node.startswith(self.node):",
        "tests/simulation/test_small_pages.py",
    ),
    Bug(
        "an idempotency key counts in every office",
        "engine/submit/idempotency.py",
        'office_id, now = once.office_id or "", clock.now()',
        'office_id, now = "", clock.now()',
        "tests/server/test_names_alike.py",
    ),
    # Memory that does not follow the store.
    Bug(
        "a deleted subscription still gets messages",
        "engine/webhooks/webhook_outbox.py",
        "        webhooks.delete(tx, webhook_id)\n        self._reload_listeners(tx)",
        "        webhooks.delete(tx, webhook_id)",
        "tests/engine/test_12_webhooks.py",
    ),
    Bug(
        "a rotated secret does not sign",
        "engine/webhooks/webhook_outbox.py",
        "webhook_signature.ROTATION_SECONDS))\n        self._reload_listeners(tx)",
        "webhook_signature.ROTATION_SECONDS))",
        "tests/engine/test_12_webhooks.py",
    ),
    Bug(
        "an old secret signs for ever",
        "engine/webhooks/webhook_outbox.py",
        "own.old_until is not None and now < own.old_until",
        "own.old_until is not None",
        "tests/engine/test_12_webhooks.py",
    ),
    Bug(
        "a new webhook of an office gets nothing",
        "engine/webhooks/webhook_outbox.py",
        "if tx.local(offices.Touched).is_touched:",
        "if False:",
        "tests/engine/test_12_webhooks.py",
    ),
    Bug(
        "lanes of several roles are taken for one",
        "engine/dispatch/limits_and_slots.py",
        "wanted = (office.office_id, role, job_type, needs)",
        "wanted = (office.office_id, None, job_type, needs)",
    ),
    Bug(
        "slots stay taken in memory",
        "engine/dispatch/limits_and_slots.py",
        "        self._taken -= freed\n",
        "",
    ),
    # Streams and files over HTTP.
    Bug(
        "a stream shows the events of every office",
        "server/routes/events.py",
        "for one in found if wanted.takes(one)",
        "for one in found",
        HTTP,
    ),
    Bug(
        "a stream gets what another one with other rights may see",
        "server/routes/events.py",
        "some.form(wanted, lambda found:",
        'some.form("shown", lambda found:',
        HTTP,
    ),
    Bug(
        "a stream that goes on sends the last event again",
        "server/routes/events.py",
        "    return int(given)",
        "    return max(0, int(given) - 1)",
        HTTP,
    ),
    Bug(
        "a stream outlives its key",
        "server/responses.py",
        "            return not await self._keys.opens(self._text)",
        "            return False",
        HTTP,
    ),
    Bug(
        "the log of a run opens to the keys of every office",
        "server/routes/runs.py",
        "@needs(Scope.READ, of_run, is_long=wants_stream)",
        "@needs(Scope.READ, is_long=wants_stream)",
        HTTP,
    ),
    Bug(
        "an artifact opens to the keys of every office",
        "server/routes/runs.py",
        "@needs(Scope.READ, of_run)\nasync def get_artifact",
        "@needs(Scope.READ)\nasync def get_artifact",
        HTTP,
    ),
    # Followers.
    Bug(
        "a follower skips an event at a page boundary",
        "engine/events/event_feed.py",
        "[one for one in self.events if one.seq > seq]",
        "[one for one in self.events if one.seq > seq + 1]",
    ),
    Bug(
        "a list leaves out the first row of each page",
        "store/tables/keyset_pagination.py",
        "found[limit - 1][: len(listing.key)]",
        "found[limit][: len(listing.key)]",
        "tests/engine/test_lists.py",
    ),
    # Catch-up.
    Bug(
        "catch-up takes the oldest instead of the latest",
        "domain/catch_up.py",
        "return Account(due[left_out:], [*skipped, *_rows(due[:left_out], reason)], upcoming)",
        "return Account(due[: len(due) - left_out], [*skipped, *_rows(due[len(due) - left_out :], reason)], upcoming)",
        "tests/domain/test_catch_up.py",
    ),
    Bug(
        "catch-up fires what is outside its window",
        "domain/catch_up.py",
        "window = min(now.after(-schedule.catch_up_window_seconds), on_time)",
        "window = schedule.accounted_until",
        "tests/domain/test_catch_up.py",
    ),
    Bug(
        "catch-up none fires what was missed",
        "domain/catch_up.py",
        "left_out, reason = sum(at < on_time for at in due), SkipReason.MISSED",
        "left_out, reason = max(0, sum(at < on_time for at in due) - 1), SkipReason.MISSED",
        "tests/domain/test_catch_up.py",
    ),
    Bug(
        "a deleted schedule fires",
        "engine/schedules/schedule_settings.py",
        "replace(settled, enabled=False, next_trigger_at=None, deleted_at=now)",
        "replace(settled, deleted_at=now)",
        "tests/engine/test_10_schedules.py::test_a_deleted_schedule_fires_no_more_and_its_ledger_stays",
    ),
    Bug(
        "a changed schedule forgets its time zone",
        "engine/schedules/schedule_settings.py",
        "plan = cron.parse(schedule.cron_expression, schedule.timezone)",
        "plan = cron.parse(schedule.cron_expression)",
        "tests/engine/test_10_schedules.py",
    ),
    Bug(
        "overlap is not seen within a batch",
        "engine/schedules/schedule_trigger.py",
        "            at_work.add(schedule.schedule_id)\n",
        "",
        "tests/engine/test_10_schedules.py",
    ),
    Bug(
        "an archived office takes jobs",
        "engine/submit/intake.py",
        'if office.status != "active":',
        'if office.status == "":',
        "tests/engine/test_offices.py",
    ),
    # Dependencies, groups, retries.
    Bug(
        "a new dependent of a failed chain waits for ever",
        "engine/finish/dependents.py",
        "dead = dependencies.dead(tx, chains) if chains else set()",
        "dead: set[str] = set()",
        "tests/engine/test_08_dependencies.py",
    ),
    Bug(
        "a new dependent of a chain that succeeded waits for ever",
        "engine/finish/dependents.py",
        "chains.get(other) in met, names",
        "False, names",
    ),
    Bug(
        "the turn stops at a member that was cancelled before its turn",
        "engine/finish/group_progress.py",
        "while following is not None and following.has_ended and not following.is_turn:",
        "while False:",
        "tests/engine/test_09_groups.py",
    ),
    Bug(
        "a member that was cancelled by request counts as failed",
        "engine/finish/group_progress.py",
        "step * (end is ChainEnd.CANCELLED and by_request)",
        "0",
    ),
    Bug(
        "a retry keeps the expiry of its job",
        "engine/finish/retries.py",
        "            expires_at=None,\n",
        "",
        "tests/simulation/test_found.py",
    ),
    Bug(
        "the consequences of the first of several cancelled jobs are drawn",
        "engine/finish/job_finisher.py",
        "        self._conclude(tx, ended, now)\n        changed =",
        "        self._conclude(tx, ended[:1], now)\n        changed =",
    ),
    Bug(
        "a cancel that lets a run finish is retried",
        "domain/job_lifecycle.py",
        "cancel_mode is not None",
        "cancel_mode is CancelMode.INTERRUPT",
        "tests/domain/test_lifecycle.py",
    ),
    # Limits.
    Bug(
        "nobody starves any more",
        "engine/dispatch/starvation.py",
        "        if round_.fits(lane):\n            round_.start(lane, head)\n        elif",
        "        if round_.fits(lane):\n            pass\n        elif False and",
    ),
    Bug(
        "a node runs one more than it may",
        "engine/dispatch/limits_and_slots.py",
        "| change.taken) >= self.most:",
        "| change.taken) > self.most:",
    ),
    Bug(
        "a paused type starts if it needs a resource",
        "engine/dispatch/dispatch_round.py",
        '            ("type", lane.job_type) in self.paused\n            or any',
        '            ("type", lane.job_type) in self.paused and not lane.resources\n            or any',
    ),
    # Time.
    Bug(
        "a start does not set the timer for its timeout",
        "engine/dispatch/dispatch_round.py",
        "        if spec.timeout_seconds is not None:\n",
        "        if spec.timeout_seconds is None:\n            now = now\n        elif False:\n",
    ),
    # Group commit and disk.
    Bug(
        "a file is renamed before it is synced",
        "store/maintenance/backup_sqlite.py",
        '    with part.open("rb") as file:\n        os.fsync(file.fileno())\n    part.replace(target)',
        "    part.replace(target)",
        "tests/simulation/test_forgetful_files.py",
    ),
    Bug(
        "a rename is not synced",
        "store/maintenance/backup_sqlite.py",
        "        os.fsync(directory)",
        "        pass",
        "tests/simulation/test_forgetful_files.py",
    ),
    Bug(
        "the record of a restored file is written after the file",
        "store/maintenance/backup_sqlite.py",
        "            acknowledged_commits.reset(path, number)\n            put(part, path)",
        "            put(part, path)\n            acknowledged_commits.reset(path, number)",
        "tests/simulation/test_forgetful_files.py",
    ),
)


@contextmanager
def planted(bug: Bug) -> Iterator[Path]:
    """Makes a directory with a copy of the package that has the bug."""
    with tempfile.TemporaryDirectory(prefix="nextslot-planted-") as place:
        copy = Path(place) / "nextslot"
        # With the compiled modules: all but the changed one are still right.
        shutil.copytree(PACKAGE, copy)
        file = copy / bug.file
        text = file.read_text(encoding="utf-8")
        if text.count(bug.old) != 1:
            raise LookupError(f"{bug.name}: its text occurs {text.count(bug.old)} times in {bug.file}; change the bug")
        file.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
        yield Path(place)


def finds(bug: Bug, found_by: str | None = None) -> str | None:
    """Plants a bug and returns what its finder says of it; None if the bug escapes."""
    finder = found_by or bug.found_by
    with planted(bug) as place:
        done = subprocess.run(
            _simulate(finder) if finder in SIMULATED else _test(finder.split()),
            env=environment_of_copy(place, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"{bug.name}: {finder} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout if done.returncode else None


def _simulate(finder: str) -> list[str]:
    return [sys.executable, "-m", "tests.simulation.planted_source", "--simulate", finder]


def _test(paths: Sequence[str]) -> list[str]:
    plain = ["-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-k", "not postgres"]
    return [sys.executable, "-m", "pytest", *plain, *(part for name in PLUGINS for part in ("-p", name)), *paths]


def simulate(finder: str) -> int:
    """Simulates until a law is broken. Then returns 1."""
    import logging

    logging.disable(logging.CRITICAL)
    seeds = int(os.environ.get("NEXTSLOT_PLANTED_SEEDS", SIMULATED[finder]))
    broken = {SIMULATION: _broken, NODES: _broken_nodes, HTTP: _broken_http}[finder]
    for seed in range(1, seeds + 1):
        found = broken(seed)
        if found is not None:
            sys.stdout.write(f"seed {seed}: {found}\n")
            return 1
    return 0


def _broken(seed: int) -> str | None:
    from nextslot.testing.simulation import plan, world

    history = world.simulate(seed, plan.make(seed, LENGTH if seed % 8 else plan.LENGTH))
    return str(history.broken[0]) if history.broken else None


def _broken_http(seed: int) -> str | None:
    from tests.simulation import http_clients

    history = http_clients.simulate(seed)
    return str(history.broken[0]) if history.broken else None


def _broken_nodes(seed: int) -> str | None:
    from nextslot.testing.simulation import nodes
    from tests.simulation import lease_trace

    world = nodes.simulated(seed)
    if world.history.broken:
        return str(world.history.broken[0])
    return next(lease_trace.problems(world.observed, nodes.NAMES), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", choices=tuple(SIMULATED), help="simulate in this process")
    parser.add_argument("--by", help="simulation, or tests, instead of what is named for each bug")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.simulate:
        return simulate(options.simulate)
    chosen = [bug for bug in BUGS if not options.names or any(part in bug.name for part in options.names)]

    def one(bug: Bug) -> bool:
        try:
            said = finds(bug, options.by)
        except (LookupError, RuntimeError) as error:
            said = f"ERROR {error}"
        last = said.strip().splitlines()[-1][:150] if said and said.strip() else said
        state = "ESCAPED" if said is None else "found  "
        sys.stdout.write(f"{state} {bug.name} | {options.by or bug.found_by} | {last}\n")
        sys.stdout.flush()
        return said is not None

    with ThreadPoolExecutor(2) as pool:
        return 0 if all(list(pool.map(one, chosen))) else 1


if __name__ == "__main__":
    sys.exit(main())

"""docs/lifecycle.md says what the code does: its diagrams and tables are read, and compared."""

import asyncio
import re
from pathlib import Path
from typing import Any

import apsw

from nextslot import NewJob, Scheduler, testing
from nextslot.domain import (
    RETRYABLE,
    TRANSITIONS,
    Backoff,
    Decision,
    DirectStatus,
    FailureKind,
    GroupStatus,
    JobStatus,
    OnFailure,
    RetryPolicy,
    RunStatus,
    Stage,
)
from nextslot.domain.retry import AT_ONCE, delay_seconds
from scripts.site_hooks import on_page_markdown
from tests.support import database, running_scheduler

PAGE = (Path(__file__).parents[2] / "docs/lifecycle.md").read_text()

# The stored stage that each status follows from.
STAGES = {
    JobStatus.WAITING: Stage.QUEUED,
    JobStatus.QUEUED: Stage.QUEUED,
    JobStatus.CANCELLED: Stage.CANCELLED,
    **dict.fromkeys((JobStatus.RUNNING, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.SKIPPED), Stage.RUNNING),
}


def test_spec_2_9_the_diagram_of_a_jobs_stage_is_TRANSITIONS() -> None:
    drawn = diagram("Stored stage")

    legal = {(before.value, after.value) for before, afters in TRANSITIONS.items() for after in afters}
    assert drawn == legal | {("[*]", "QUEUED")}


def test_DEC_006_the_diagram_of_a_runs_status_has_every_ending() -> None:
    drawn = diagram("Status of a run")

    assert drawn == {("[*]", "unfinished")} | {("unfinished", status.value) for status in RunStatus}


def test_the_diagram_of_the_status_makes_exactly_the_moves_of_the_stage() -> None:
    drawn = {(JobStatus(before), JobStatus(after)) for before, after in diagram("Status of a job") if before != "[*]"}

    moves = {(STAGES[before], STAGES[after]) for before, after in drawn if STAGES[before] is not STAGES[after]}
    # A group's skip takes a queued job through RUNNING in one transaction.
    assert moves == {(before, after) for before, afters in TRANSITIONS.items() for after in afters}
    assert {status for move in drawn for status in move} == set(JobStatus)


async def test_the_diagram_of_the_status_is_what_jobs_really_do(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        seen = Observer(tmp_path)
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        await live_every_life(scheduler, seen)

        assert seen.moves == diagram("Status of a job")


def test_the_table_of_failure_kinds_says_what_is_retried_and_when() -> None:
    rows = {cells[0]: cells[2:] for cells in table("Failure kinds")}
    delays = {**dict.fromkeys(AT_ONCE, "none"), FailureKind.QUOTA: "until it is renewed"}

    assert rows == {
        kind.value: (["yes", delays.get(kind, "backoff")] if kind in RETRYABLE else ["no", ""]) for kind in FailureKind
    }


def test_DEC_007_the_table_of_delays_is_what_the_policy_computes() -> None:
    policies = [
        RetryPolicy(),
        RetryPolicy(max_attempts=2, base_delay_seconds=60),
        RetryPolicy(backoff=Backoff.LINEAR),
    ]

    tables = [cells[1:] for cells in table("Retry") if len(cells) == 4]

    assert tables == [
        [f"{delay_seconds(policy, n, FailureKind.ERROR, 0.5):g}" for n in (1, 2, 3)] for policy in policies
    ]


def test_every_status_decision_group_status_and_policy_is_explained() -> None:
    assert set(re.findall(r"`(\w+)`(?=.*\| stage)", section("Status of a job"))) == {*JobStatus}
    assert {cells[0] for cells in table("Retry") if len(cells) == 2} == {decision.value for decision in Decision}
    assert {cells[0] for cells in table("Groups")} == {*OnFailure} | {*GroupStatus}


async def test_the_diagram_of_direct_executions_is_what_the_database_allows(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path):
        """The file is made, and that is all."""
    connection = database(tmp_path)

    allowed = {
        (before.value, after.value)
        for before in DirectStatus
        for after in DirectStatus
        if before is not after and allows(connection, before, after)
    }

    assert diagram("Direct executions") == allowed | {("[*]", "WAITING")}


def allows(connection: apsw.Connection, before: DirectStatus, after: DirectStatus) -> bool:
    """Returns whether plain SQL may make this transition."""
    connection.execute("begin")
    try:
        connection.execute(
            "insert into direct_executions (run_id, arrival, node_id, office_id, lane_id, job_type, params, status,"
            " is_detached, timeout_seconds, created_at, wait_until)"
            " values ('x', 1, 'local', 'default', 1, 'work', '{}', 'WAITING', 0, 1, 1, 1)"
        )
        for status in way_to(before):
            move(connection, status)
        move(connection, after)
    except apsw.ConstraintError as refused:
        # Refused for another reason it would be our own mistake, and is made to show.
        return "direct execution" not in str(refused)
    else:
        return True
    finally:
        if connection.in_transaction:  # What is refused has ended it.
            connection.execute("rollback")


def way_to(status: DirectStatus) -> list[DirectStatus]:
    """Returns a way through the diagram from WAITING to a status."""
    needs_a_start = status in (DirectStatus.COMPLETED, DirectStatus.SKIPPED)
    return [DirectStatus.RUNNING] * needs_a_start + [status] * (status is not DirectStatus.WAITING)


def move(connection: apsw.Connection, status: DirectStatus) -> None:
    has_started = status in (DirectStatus.RUNNING, DirectStatus.COMPLETED, DirectStatus.SKIPPED)
    has_ended = status not in (DirectStatus.WAITING, DirectStatus.RUNNING)
    update = "update direct_executions set status = ?, started_at = ?, finished_at = ?"
    connection.execute(update, (status, 1 if has_started else None, 2 if has_ended else None))


async def live_every_life(scheduler: Scheduler, seen: "Observer") -> None:
    """Runs one job for each way through the diagram, and checks it after each step."""
    hour = scheduler._clock.now().after(3600)
    _, unwanted = [await scheduler.submit("work", scheduled_for=hour) for _ in range(2)]
    seen.look()
    await scheduler.cancel(unwanted.job_id)
    await scheduler.pause()
    await asyncio.sleep(3600)
    seen.look()
    put_off, dropped, stopped = [await scheduler.submit("work", {"seconds": 60}) for _ in range(3)]
    await scheduler.submit("fail", {"kind": "invalid"})
    await scheduler.submit("skip")
    seen.look()
    await scheduler.change(put_off.job_id, scheduled_for=hour.after(600))
    await scheduler.cancel(dropped.job_id)
    await scheduler.resume()
    seen.look()
    await scheduler.cancel(stopped.job_id, interrupt=True)
    await asyncio.sleep(30)
    seen.look()
    await see_groups_skip(scheduler, seen)


async def see_groups_skip(scheduler: Scheduler, seen: "Observer") -> None:
    """Makes groups skip: a failing member, with a member behind it that waits for its turn, or one beside it that is
    ready.
    """
    await scheduler.pause(job_type="work")
    for mode in ("sequential", "parallel"):
        await scheduler.pause(job_type="fail")
        members = [NewJob(job_type="fail", params={"kind": "invalid"}), NewJob(job_type="work")]
        await scheduler.submit_group(members, mode=mode, on_failure="skip")
        seen.look()
        await scheduler.resume(job_type="fail")
        seen.look()
        await testing.settled()
        seen.look()


class Observer:
    """Works out every job's status from the file, and collects how they changed since it last looked."""

    def __init__(self, directory: Path) -> None:
        self._connection = database(directory)
        self._statuses: dict[str, str] = {}
        self.moves: set[tuple[str, str]] = set()

    def look(self) -> None:
        rows: list[Any] = self._connection.execute(
            "select job_id, stage, outcome, unmet = 0 and is_due and is_turn from jobs"
        ).fetchall()
        for job_id, stage, outcome, is_free in rows:
            status = outcome or stage
            if stage != "RUNNING":
                status = "WAITING" if stage == "QUEUED" and not is_free else stage
            before = self._statuses.get(job_id, "[*]")
            if before != status:
                self.moves.add((before, status))
            self._statuses[job_id] = status


def test_the_site_shows_each_diagram_as_a_picture_of_all_its_moves() -> None:
    shown = on_page_markdown(PAGE)

    pictures = re.findall(r'<svg class="states".*?</svg>', shown)
    assert [one.count("<path ") for one in pictures] == [one.count(" --> ") for one in PAGE.split("```mermaid")[1:]]
    assert "mermaid" not in shown


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def diagram(heading: str) -> set[tuple[str, str]]:
    """Returns the arrows of the mermaid diagram in a section."""
    drawn = re.search(r"```mermaid\nstateDiagram-v2\n(.*?)```", section(heading), re.DOTALL)
    assert drawn is not None
    return set(re.findall(r"^ +(\S+) --> (\w+)", drawn[1], re.MULTILINE))


def table(heading: str) -> list[list[str]]:
    """Returns the cells of a section's tables, without headings and backquotes."""
    rows = re.findall(
        r"^\| (.*?) ?\|$", re.sub(r"^\|.*\|\n\|-.*\|$", "", section(heading), flags=re.MULTILINE), re.MULTILINE
    )
    return [[cell.strip().strip("`") for cell in row.split("|")] for row in rows]

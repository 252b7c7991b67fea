"""The lease protocol: no state of the model breaks a promise, and the code does to its rows what the model says."""

import asyncio
import random
from pathlib import Path
from typing import Any

import apsw
import pytest

from nextslot.domain.lease_times import LeaseTimes
from nextslot.store.contract import Membership
from nextslot.store.postgres.lease_and_leader import Lease
from nextslot.store.postgres.sessions import Address, Keys
from nextslot.store.sqlite.sqlite_store import SqliteTx, connect, migrate
from nextslot.store.tables import nodes
from nextslot.store.tables.nodes import NodeInfo
from nextslot.system import sidecar_main
from nextslot.system.instant import Instant
from tests.simulation import lease_model
from tests.simulation.lease_model import LIVE, State, Times

pytestmark = pytest.mark.sqlite_only("searches a model")

TICK = 10_000_000


def test_in_no_reachable_state_a_job_runs_on_two_nodes_or_ends_twice() -> None:
    found = lease_model.search(Times())

    assert found.path is None
    assert found.states > 5_000
    renewals, runs = {"request", "renew", "renewed", "fenced"}, {"claim", "finish", "recover"}
    assert found.names == {"tick", "register", "join", "crash", "leave", "lose", "give up"} | renewals | runs


@pytest.mark.parametrize(
    "weaker",
    [
        Times(lease=0),
        Times(counts_from_request=False),
        Times(counts_from_registration=False),
    ],
    ids=["work longer than the lease", "from the answer on", "from joining on"],
)
def test_the_search_finds_what_a_weaker_protocol_breaks(weaker: Times) -> None:
    assert lease_model.search(weaker).path is not None


@pytest.mark.parametrize("is_fenced", [True, False])
def test_work_that_ends_too_late_is_stored_twice_only_without_the_fence(is_fenced: bool) -> None:
    """The second line of defence: even if a guardian is late, the outcome of a lost node is refused."""
    found = lease_model.search(Times(lease=0, is_fenced=is_fenced), lease_model.stored_twice)

    assert (found.path is None) == is_fenced


def test_the_times_of_the_model_are_those_of_the_code() -> None:
    times = LeaseTimes()

    assert (times.work_seconds, times.lease_seconds) == (Times().work * 10, Times().lease * 10)


@pytest.mark.parametrize("seed", range(20))
def test_the_code_does_to_its_rows_what_the_model_says(tmp_path: Path, seed: int) -> None:
    """Walks at random through the model, and executes each step on the table of nodes by the code's statements."""
    chance, code, state = random.Random(seed), Rows(tmp_path / "nodes.db"), State()
    for _ in range(300):
        step = chance.choice(list(lease_model.steps(state, Times())))
        code.follow(step)
        state = step.state

        assert code.rows() == {
            one: (node.status, node.lease_left if node.status == LIVE else None)
            for one, node in enumerate(state.nodes)
            if one in code.lives
        }
        assert code.answers == {one: node.answer for one, node in enumerate(state.nodes) if node.answer is not None}


class Rows:
    """The table of nodes, and the statements of the code for each step of the model."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path, "OFF")
        migrate(self._connection)
        self._tx = SqliteTx(self._connection)
        self._now = 1_000 * TICK
        self.lives: dict[int, int] = {}
        self.answers: dict[int, bool] = {}

    def follow(self, step: lease_model.Step) -> None:
        one = step.node
        if step.name == "tick":
            self._now += TICK
        elif step.name == "lose":
            assert nodes.lose(self._tx, Instant(self._now))
        elif step.name == "register" and one is not None:
            card = NodeInfo(f"n{one}", "here", pid=1, version="1", max_running=0, resources={}, job_types=[])
            self.lives[one] = nodes.register(self._tx, card, Times().lease * TICK / 1_000_000, Instant(self._now))
            self.answers.pop(one, None)
        elif step.name == "renew" and one is not None:
            self.answers[one] = self._renew(one)
        elif step.name == "leave" and one is not None:
            nodes.leave(self._tx, f"n{one}", self.lives[one], Instant(self._now))
            self.answers.pop(one, None)
        elif step.name in ("renewed", "fenced", "give up") and one is not None:
            self.answers.pop(one, None)

    def rows(self) -> dict[int, tuple[str, int | None]]:
        found: list[Any] = self._connection.execute("select node_id, status, lease_until from nodes").fetchall()
        return {
            int(node_id[1:]): (
                "lost" if status == "left" else status,
                None if until is None else max((until - self._now) // TICK, -1),
            )
            for node_id, status, until in found
        }

    def _renew(self, one: int) -> bool:
        """Executes the statement of the sidecar and of the lease's thread, with the clock of this test."""
        clock = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
        sql = sidecar_main.RENEW.replace(clock, str(self._now)).replace("%s", "?")
        values = (Times().lease * TICK, f"n{one}", self.lives[one])
        return bool(self._connection.execute(sql, values).fetchall())


def test_the_database_refuses_a_second_run_of_one_job(tmp_path: Path) -> None:
    """What the model takes for granted: a job has one run, whoever claims it."""
    connection = connect(tmp_path / "runs.db", "OFF")
    migrate(connection)
    unique = connection.execute("select sql from sqlite_master where name = 'runs'").get

    assert "job_id" in unique
    with pytest.raises(apsw.ConstraintError):
        connection.execute("insert into runs (run_id, job_id, started_at) values ('r', 'nothing', 1)")


def lease_of(age: float, member: "Notes") -> Lease:
    """Keeps a lease that was registered so many seconds ago, at a database that does not answer."""
    times = LeaseTimes(renew_seconds=0.1)
    membership = Membership("n", 1, member, times, age=age, adjust=lambda *_: None)
    return Lease(Address.of("postgresql://nobody@127.0.0.1:1/nowhere"), "test", Keys("c", 1, 2, 3, 4, "s"), membership)


@pytest.mark.real_time
async def test_the_time_for_work_counts_from_before_the_registration() -> None:
    """A node that took 15 seconds from its registration to its lease may work for 5 seconds until the first renewal."""
    member = Notes()

    lease = lease_of(15.0, member)
    left = lease._until - sidecar_main.now()
    lease.close()

    assert 0 < left <= 5
    assert not member.has_lapsed.is_set()


@pytest.mark.real_time
async def test_a_lease_that_cannot_be_renewed_in_time_stops_the_work() -> None:
    member = Notes()

    lease = lease_of(25.0, member)
    async with asyncio.timeout(60):
        await member.has_lapsed.wait()
    lease.close()


class Notes:
    """A member that notes that its lease has lapsed."""

    def __init__(self) -> None:
        self.has_lapsed = asyncio.Event()

    def renewed(self, until: float) -> None: ...

    def notified(self, topics: frozenset[str]) -> None: ...

    def leads(self, is_leader: bool) -> None: ...

    def lapsed(self, has_lapsed: bool) -> None:
        self.has_lapsed.set()

    def fenced(self) -> None: ...

"""Spec 12, spec 15 and spec 19 at the worst moments: a real server dies at each named point of its work in turn.

Random kills seldom meet the narrow places; `tests/crash/dying.py` has their names. After each death the file satisfies
the laws and the doctor before any repair, and the next life continues with it.
"""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import apsw
import httpx2
import pytest

from nextslot import offline_commands
from nextslot.config.loading import load
from nextslot.executors.process_tree.survivors import find_survivors
from tests.crash import laws
from tests.crash.dying import POINTS
from tests.crash.laws import Judge
from tests.crash.server import LIMIT, PATIENCE, Load, Server, living, prepare, run
from tests.crash.test_server_kill import finish
from tests.support import eventually

pytestmark = pytest.mark.sqlite_only("kills the only process that has the file")

INTERRUPTED = "when a handler has ended and nothing is stored"
# A death between two steps has stored what was lost; the points after it need something else to recover.
STARTS = [
    (INTERRUPTED, 12),
    ("before processes of the last life are ended", 1),
    ("while recovery stores what was lost", 1),
    ("between two steps of recovery", 1),
    (INTERRUPTED, 12),
    ("while recovery lets go of callers", 1),
    ("after recovery, before the first dispatch", 1),
]
WORK = [
    ("before a commit", 40),
    ("between a commit and its acknowledgement", 40),
    ("between a claim and its handler", 12),
    (INTERRUPTED, 12),
    ("while an end is stored", 12),
    ("in the middle of a write to the log", 100),
    ("in the middle of a checkpoint", 15),
]
COMMANDS = [("while a command starts", 4), ("while a command runs", 5)]
CALLERS = [
    ("while a caller is stored", 3),
    ("while a caller gets the slot", 3),
    ("while the end of a caller's work is stored", 3),
]
DELIVERIES = [
    ("while a delivery is sent", 5),
    ("when a delivery has arrived and nothing is stored", 5),
    ("while the end of a delivery is stored", 3),
]
STOPS = ["in the middle of a drain", "after a drain, before the file is closed"]
COPIES = ["while a backup is copied", "before a backup gets its name"]


def test_DEC_008_a_death_while_it_starts_or_recovers_is_recovered_by_the_next_start(tmp_path: Path) -> None:
    data = prepare(tmp_path / "data")
    load_, judge = Load(data), Judge(LIMIT)
    die(data, "while the tables are made", 3)

    for point, nth in STARTS:
        die(data, point, nth, load_)
        expect_sound(data, judge)

    assert len(judge.interrupted) >= STARTS.count((INTERRUPTED, 12))
    expect_all_done(data)
    assert load_.broken == []


def test_DEC_008_a_death_in_the_middle_of_work_loses_doubles_and_tears_nothing(tmp_path: Path) -> None:
    data = prepare(tmp_path / "data")
    load_, judge = Load(data), Judge(LIMIT)

    for point, nth in WORK:
        die(data, point, nth, load_)
        expect_sound(data, judge)

    expect_all_done(data)
    assert load_.broken == []


def test_DEC_008_a_death_while_a_command_starts_or_runs_leaves_no_process_of_it(tmp_path: Path) -> None:
    command = [sys.executable, "-S", str(Path(__file__).with_name("server_command.py")), str(tmp_path / "data")]
    table = f"[job_types.script]\ncommand = {command}\nretry_policy = {{ max_attempts = 100 }}\n"
    data = prepare(tmp_path / "data", table)
    load_, judge = Load(data, job_type="script"), Judge(LIMIT)

    for point, nth in COMMANDS:
        die(data, point, nth, load_)
        asyncio.run(eventually(lambda: not find_survivors(run_ids(data))))
        expect_sound(data, judge)

    expect_all_done(data)


def test_DEC_004_a_death_with_callers_on_the_line_leaves_no_reservation_behind(tmp_path: Path) -> None:
    data = prepare(tmp_path / "data")

    for point, nth in CALLERS:
        with living(data, dying(point, nth)) as server, calling(server.wait_until_ready()):
            expect_death(server, data, point)
        assert offline_commands.doctor(load(data)).findings == ()

    with living(data) as server:
        server.wait_until_ready()
        assert rows(data, "select count(*) from direct_executions where finished_at is null") == [(0,)]
        assert rows(data, "select count(*) from reservations where status = 'ACTIVE'") == [(0,)]
    assert rows(data, "select count(*) > 0 from direct_executions where failure_kind = 'crash'") == [(1,)]


def test_DEC_009_a_death_around_a_delivery_makes_it_come_again_and_never_not_at_all(tmp_path: Path) -> None:
    with receiving() as (url, received):
        data = prepare(tmp_path / "data", f'[offices.default.webhook]\nurl = "{url}"\n')
        load_, judge = Load(data), Judge(LIMIT)

        for point, nth in DELIVERIES:
            die(data, point, nth, load_)
            expect_sound(data, judge)
        expect_all_done(data)
        with living(data) as server:
            server.wait_until_ready()
            asyncio.run(eventually(lambda: not rows(data, "select 1 from deliveries where status = 'PENDING'")))

        stored = {delivery_id for (delivery_id,) in rows(data, "select delivery_id from deliveries")}
        assert set(received) == stored
        assert len(received) > len(stored), "none was on its way at a death: this proves nothing"


def test_a_death_in_a_shutdown_is_as_any_other(tmp_path: Path) -> None:
    data = prepare(tmp_path / "data")
    load_, judge = Load(data), Judge(LIMIT)

    for point in STOPS:
        with living(data, dying(point, 1)) as server, load_.on(server.wait_until_ready()):
            load_.wait_for(20)
            server.process.send_signal(signal.SIGTERM)
            expect_death(server, data, point)
        expect_sound(data, judge)

    expect_all_done(data)
    assert load_.broken == []


def test_DEC_002_a_death_of_a_backup_or_a_restore_leaves_the_database_and_no_half_copy(tmp_path: Path) -> None:
    data, file = prepare(tmp_path / "data"), tmp_path / "backup.db"
    load_, judge = Load(data), Judge(LIMIT)
    with living(data) as server, load_.on(server.wait_until_ready()):
        load_.wait_for(20)
        for point in COPIES:
            died = run(data, "backup", str(file), program=dying(point, 1))
            assert (died.returncode, last_death(data)) == (-signal.SIGKILL, point)
            assert not file.exists()
        assert run(data, "backup", str(file)).returncode == 0
        load_.wait_for(20)
        server.kill()

    point = "while the old file is put aside"
    died = run(data, "restore", str(file), "--force", program=dying(point, 1))

    assert (died.returncode, last_death(data)) == (-signal.SIGKILL, point)
    expect_sound(data, judge)
    assert run(data, "restore", str(file), "--force").returncode == 0
    assert offline_commands.doctor(load(data)).findings == ()


def test_every_named_point_is_met() -> None:
    met = [*(point for point, _ in [*STARTS, *WORK, *COMMANDS, *CALLERS, *DELIVERIES]), *STOPS, *COPIES]

    assert {*met, "while the tables are made", "while the old file is put aside"} == set(POINTS)


def dying(point: str, nth: int) -> Sequence[str]:
    return sys.executable, "-m", "tests.crash.dying", point, str(nth)


def die(data: Path, point: str, nth: int, load_: Load | None = None) -> None:
    """Runs one life, under load if it gets that far, until it reaches this point for the n-th time and dies."""
    with living(data, dying(point, nth)) as server:
        url = server.wait_until_ready_or_dead()
        if url is None or load_ is None:
            expect_death(server, data, point)
        else:
            with load_.on(url):
                expect_death(server, data, point)


def expect_death(server: Server, data: Path, point: str) -> None:
    try:
        ended = server.process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it did not come to the point: {point}")
    assert (ended, last_death(data)) == (-signal.SIGKILL, point)


def last_death(data: Path) -> str:
    return (data / "died").read_text().splitlines()[-1]


def expect_sound(data: Path, judge: Judge) -> None:
    assert judge.judge(laws.find(data))[:3] == []
    assert offline_commands.doctor(load(data)).findings == ()


def expect_all_done(data: Path) -> None:
    finish(data)
    found = laws.find(data)
    chains = [job for job in found.jobs.values() if job.retry_of is None]
    assert chains
    assert list(laws.unfinished(found, len(chains)))[:3] == []
    assert offline_commands.doctor(load(data)).findings == ()


def run_ids(data: Path) -> list[str]:
    return [run_id for (run_id,) in rows(data, "select run_id from runs")]


def rows(data: Path, sql: str) -> list[Any]:
    connection = apsw.Connection(str(data / "nextslot.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


@contextmanager
def calling(url: str) -> Iterator[None]:
    """Sends direct requests from two callers in a loop, until the server no longer answers."""

    def call() -> None:
        with httpx2.Client(base_url=url, timeout=PATIENCE) as http:
            try:
                while True:
                    http.post("/api/direct/tiny", json={})
            except httpx2.TransportError:
                return

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    yield
    for caller in callers:
        caller.join()


@contextmanager
def receiving() -> Iterator[tuple[str, list[str]]]:
    """Runs an endpoint that accepts everything. Yields the `webhook-id` of each accepted message."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            received.append(self.headers["webhook-id"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *values: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hook", received
        server.shutdown()

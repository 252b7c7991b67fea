"""Spec 12, spec 15 and spec 19 at the worst moments: a real server dies at each named point of its work in turn.

Random kills seldom meet the narrow places; `tests/crash/dying.py` has their names. After each death the file satisfies
the laws and the doctor before any repair, and the next life continues with it.
"""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from tests.crash.server import LIMIT, NEXTSLOT, PATIENCE, Load, Server, living, prepare, run
from tests.crash.test_parking import ASKING, answer
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
SESSIONS = [
    ("while the checkpoint of a run is stored", 3),
    ("while a run parks", 3),
    ("before a parked session runs again", 4),
    ("while an answer is stored", 4),
    ("while a deadline answers", 1),
]
# How often a session asks, and how many begin in each life.
ASKS, BEGUN = 2, 2
PARKED = """
select chain_id, count(*) from jobs join runs using (job_id) where failure_kind = 'parked'
group by chain_id order by chain_id
"""
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


def test_a_death_around_a_wait_loses_no_answer_and_asks_nothing_twice(tmp_path: Path) -> None:
    data, record = prepare(tmp_path / "data", ASKING), tmp_path / "record"
    record.touch()
    sessions: list[str] = []
    unasked: list[str] = []

    for point, nth in [*SESSIONS, (None, 0)]:
        with living(data, dying(point, nth) if point else [str(NEXTSLOT)]) as server, ThreadPoolExecutor(1) as clients:
            url = server.wait_until_ready()
            has_completed = clients.submit(ask_and_answer, url, str(record), sessions, unasked)
            if point is None:
                assert has_completed.result(PATIENCE)
            else:
                expect_death(server, data, point)
                assert not has_completed.result(PATIENCE)
        assert offline_commands.doctor(load(data)).findings == ()

    asked = [(f"step {step}", 1, str(step), "local") for step in range(1, ASKS + 1)]
    for chain in sessions:
        answers = f"select name, number, payload, sent_by from signals where chain_id = '{chain}' order by name"
        assert rows(data, answers) == asked
        assert rows(data, f"select value from checkpoints where chain_id = '{chain}'") == [(f'{{"step":{ASKS}}}',)]
        begun = [len(had) for one, had in begun_with(record) if (one, chain) in chains_of(data)]
        assert begun == sorted(begun), "no attempt begins with fewer answers than the one before"
    assert rows(data, PARKED) == [(chain, ASKS) for chain in sorted(sessions)]
    for chain in unasked:
        assert rows(data, f"select answer, sent_by from signals where chain_id = '{chain}'") == [
            ("approve", "deadline")
        ]


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
    met = [*(point for point, _ in [*STARTS, *WORK, *COMMANDS, *CALLERS, *DELIVERIES, *SESSIONS]), *STOPS, *COPIES]

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


def ask_and_answer(url: str, record: str, sessions: list[str], unasked: list[str]) -> bool:
    """Begins sessions and jobs with a short deadline, and answers the sessions. Returns whether all have completed;
    False if the server no longer answers."""
    wanted, wait = len(sessions) + BEGUN, {"name": "soon", "deadline_seconds": 0.05, "on_deadline": "approve"}
    asks = {"job_type": "asks", "params": {"record": record, "steps": ASKS}}
    try:
        while len(unasked) < wanted:
            unasked.append(submit(url, f"unasked {len(unasked)}", {"job_type": "tiny", "await_signal": wait}))
        while len(sessions) < wanted:
            sessions.append(submit(url, f"session {len(sessions)}", asks))
        while True:
            completed = [answer(url, one) for one in sessions]
            if all(completed) and all(has_completed(url, one) for one in unasked):
                return True
            time.sleep(0.02)
    except httpx2.TransportError:
        return False


def submit(url: str, key: str, wanted: Any) -> str:
    made = httpx2.post(f"{url}/api/jobs", json=wanted, headers={"Idempotency-Key": key}, timeout=PATIENCE)
    assert made.status_code in (200, 201), made.text
    return str(made.json()["job_id"])


def has_completed(url: str, job_id: str) -> bool:
    chain = httpx2.get(f"{url}/api/jobs/{job_id}", timeout=PATIENCE).json()["chain"]
    return bool(chain[-1]["status"] == "COMPLETED")


def begun_with(record: Path) -> list[tuple[str, list[str]]]:
    """Returns for each attempt its job, and the answers that it began with."""
    found = [line.split(" began with ") for line in record.read_text().splitlines()]
    return [(job_id, [] if had == "nothing" else had.split()) for job_id, had in found]


def chains_of(data: Path) -> set[tuple[str, str]]:
    return set(rows(data, "select job_id, chain_id from jobs"))


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

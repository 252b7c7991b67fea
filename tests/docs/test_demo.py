"""The demo, as a newcomer runs it: a real process on a real file, killed with SIGKILL and started again."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw


def test_the_demo_shows_every_feature_it_names_and_ends_by_itself(tmp_path: Path) -> None:
    ran = demo(tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    for line in (
        "frame 1 queued",
        "frame 6 moved: to the front",
        "poster cancelled: no poster after all",
        "soundtrack failed: error: the orchestra is not in tune",
        "soundtrack, retry completed",
        "frame 3 50%: tracing light",
        "encode ready: what it waited for is done",
        "group publish finished: COMPLETED",
    ):
        assert line in told(ran), line
    assert order_of_starts(ran) == ["frame 1", "soundtrack", "frame 6", "frame 2", "frame 3", "soundtrack, retry",
                                    "frame 4", "frame 5", "encode", "upload", "announce"]  # fmt: skip
    assert f"sqlite3 {tmp_path}/demo/nextslot.db" in ran.stdout
    assert (tmp_path / "demo/logs").is_dir()
    assert [path.read_text() for path in tmp_path.glob("demo/artifacts/*/*/film.txt")] == ["a film of 6 frames\n"]


def test_DEC_008_the_demo_is_killed_in_the_middle_and_the_next_run_finishes_the_film(tmp_path: Path) -> None:
    killed = demo(tmp_path, "--crash")
    again = demo(tmp_path)

    assert killed.returncode == -signal.SIGKILL
    assert again.returncode == 0, again.stderr
    assert "The last run left" in again.stdout
    assert "frame 1 queued" not in told(again)
    assert any("failed: crash: Scheduler crash recovery" in line for line in told(again))
    assert any(line.startswith("scheduler recovered:") for line in told(again))
    assert titles_by_end(tmp_path) == {
        **{f"frame {number}": "COMPLETED" for number in range(1, 7)},
        **dict.fromkeys(("soundtrack", "encode", "upload", "announce"), "COMPLETED"),
        "poster": "CANCELLED",
    }


def test_CON_003_ctrl_c_ends_an_endless_demo_after_what_runs(tmp_path: Path) -> None:
    process = subprocess.Popen(command(tmp_path, "--keep"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "started" not in process.stdout.readline():
        pass

    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=20)

    assert (process.returncode, errors) == (0, "")
    assert "Stopping: what runs is finished first" in rest
    with apsw.Connection(str(tmp_path / "demo/nextslot.db")) as connection:
        assert connection.execute("select count(*) from jobs where status = 'RUNNING' and finished_at is null").get == 0
        assert connection.execute("select count(*) from jobs where status = 'QUEUED'").get > 0


def test_a_second_demo_on_the_same_files_is_refused_with_a_sentence(tmp_path: Path) -> None:
    first = subprocess.Popen(command(tmp_path, "--keep"), stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    while "started" not in first.stdout.readline():
        pass

    second = demo(tmp_path)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=20)

    assert second.returncode == 1
    assert f"is in use by process {first.pid}" in second.stderr
    assert "Traceback" not in second.stderr


def command(directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-u", "-m", "nextslot.demo", "--data", str(directory / "demo"), *arguments]


def demo(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(directory, *arguments), capture_output=True, text=True, timeout=60, check=False)


def told(ran: "subprocess.CompletedProcess[str]") -> list[str]:
    """The lines of the narration, without their times and with single spaces."""
    lines = re.findall(r"^ *\d+\.\d\d s   (.*)$", ran.stdout, re.MULTILINE)
    return [" ".join(line.split()) for line in lines]


def order_of_starts(ran: "subprocess.CompletedProcess[str]") -> list[str]:
    return [line.partition(" started: ")[0] for line in told(ran) if " started: " in line]


def titles_by_end(directory: Path) -> dict[str, str]:
    """How each chain ended: by its last job."""
    with apsw.Connection(str(directory / "demo/nextslot.db")) as connection:
        rows: list[Any] = connection.execute(
            "select title, coalesce(outcome, status) from jobs order by job_id"
        ).fetchall()
    return dict(rows)

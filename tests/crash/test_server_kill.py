"""Spec 15 and spec 19 on the real thing: `nextslot serve` under load over HTTP, killed with -9 again and again.

`NEXTSLOT_KILLS=200` and `NEXTSLOT_BACKUPS=20` do so as often as is claimed in docs/reliability.md. The figures are in
the log (`--log-cli-level=WARNING`).
"""

import logging
import os
import random
import time
from pathlib import Path

import pytest

from nextslot import offline_commands
from nextslot.config.loading import load
from tests.crash import laws
from tests.crash.laws import Judge
from tests.crash.server import LIMIT, Load, living, prepare, run

log = logging.getLogger(__name__)

KILLS = int(os.environ.get("NEXTSLOT_KILLS", "5"))
BACKUPS = int(os.environ.get("NEXTSLOT_BACKUPS", "2"))

pytestmark = pytest.mark.sqlite_only("kills the only process that has the file")


def test_DEC_008_a_server_that_is_killed_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    data, chance = prepare(tmp_path / "data"), random.Random(11)
    load_, judge = Load(data), Judge(LIMIT)

    for _ in range(KILLS):
        live_and_be_killed(data, load_, chance)
        broken = judge.judge(laws.find(data))
        findings = offline_commands.doctor(load(data)).findings

        assert broken[:3] == []
        assert findings == ()
    assert load_.broken == []
    assert judge.interrupted, "no kill has found work to interrupt: this proves nothing"
    finish(data)
    found = laws.find(data)
    made, lost = len(set(found.acknowledged)), len(judge.interrupted)
    log.warning("%d kills, %d acknowledged jobs, %d runs interrupted: 0 violations", KILLS, made, lost)
    assert list(laws.unfinished(found, len([job for job in found.jobs.values() if job.retry_of is None])))[:3] == []


def test_DEC_002_a_backup_under_load_is_sound_and_has_all_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    data, chance = prepare(tmp_path / "data"), random.Random(12)
    load_, other = Load(data), tmp_path

    for number in range(BACKUPS):
        file, other = tmp_path / f"backup-{number}.db", prepare(tmp_path / f"restored-{number}")
        with living(data) as server, load_.on(server.wait_until_ready()):
            load_.wait_for(chance.randrange(20, 60))
            before = (data / "acknowledged").read_text().split()
            made = run(data, "backup", str(file))
            server.kill()
        restored = run(other, "restore", str(file), "--force")

        assert (made.returncode, restored.returncode) == (0, 0), made.stderr + restored.stderr
        assert offline_commands.doctor(load(other)).findings == ()
        assert set(before) <= laws.find(other).jobs.keys()
        assert run(other, "doctor").returncode == 0
        log.warning("backup %d: sound, with %d of %d acknowledged jobs", number + 1, len(before), len(before))
    finish(other)
    assert all(job.finished_at is not None for job in laws.find(other).jobs.values())


def live_and_be_killed(data: Path, load_: Load, chance: random.Random) -> None:
    """Runs a server and kills it. Most lives get to work; some are killed while they open the file or recover."""
    with living(data) as server:
        if chance.random() < 0.2 and (data / "nextslot.db").exists():
            time.sleep(chance.uniform(0, 1))
            return
        with load_.on(server.wait_until_ready()):
            load_.wait_for(chance.randrange(1, 60))
            time.sleep(chance.uniform(0, 0.02))
            server.kill()


def finish(data: Path) -> None:
    """Runs a last life without a kill, until all work is done."""
    with living(data) as server:
        server.wait_until_ready()
        end = time.monotonic() + 120
        while any(job.finished_at is None for job in laws.find(data).jobs.values()):
            assert time.monotonic() < end, "what was left is not done"
            time.sleep(0.2)

"""The catalog: job types from a configuration file, as a scheduler has them."""

from pathlib import Path

import pytest

from nextslot import Scheduler
from nextslot.errors import Invalid


async def test_job_types_come_from_a_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text(
        '[job_types.say]\ncommand = ["echo", "--", "{what}"]\nresources = { mouth = 1 }\n'
    )

    async with Scheduler(f"sqlite:///{tmp_path}/nextslot.db") as scheduler:
        scheduler.job_types.load(tmp_path / "nextslot.toml")

        job = await scheduler.submit("say", {"what": "$(whoami); --help"})
        ended = await scheduler.wait(job.job_id)

        assert job.resources == {"mouth": 1}
        assert ended.run is not None
        assert (tmp_path / (ended.run.log_path or "")).read_text() == "-- $(whoami); --help\n"


@pytest.mark.parametrize("text", ["[job_types.say]\ncolour = 1\n", "[job_types\n", "\xff"])
def test_a_bad_configuration_file_is_refused_and_adds_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "nextslot.toml").write_bytes(text.encode("latin-1"))
    scheduler = Scheduler(f"sqlite:///{tmp_path}/nextslot.db")

    with pytest.raises(Invalid, match="job_types"):
        scheduler.job_types.load(tmp_path / "nextslot.toml")

    assert scheduler.job_types.names() == []

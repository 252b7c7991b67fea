"""The configuration of a store for the files of runs, and what offline commands say about it."""

import shutil
from pathlib import Path

import pytest

from nextslot import offline_commands
from nextslot.config import Configuration, load
from nextslot.errors import Invalid
from nextslot.executors.object_store import ObjectStore
from nextslot.executors.run_context import RunContext
from nextslot.scheduler_from_config import compose


def configured(directory: Path, **more: str) -> Configuration:
    return load(directory, environment={"NEXTSLOT_FILES__STORE": f"file://{directory}/store", **more})


def found(directory: Path, **more: str) -> list[str]:
    findings = offline_commands.doctor(configured(directory, **more)).findings
    return [one.problem for one in findings if one.check == "files"]


async def made(directory: Path) -> str:
    """Runs a job that leaves a log and an artifact; returns its run."""
    scheduler = compose(configured(directory))

    @scheduler.job_type("make")
    def make(run: RunContext) -> None:
        run.log.info("begun")
        (run.artifacts / "film.txt").write_text("a film")

    async with scheduler:
        job = await scheduler.submit("make")
        await scheduler.wait(job.job_id)
        run = await scheduler.run_of(job)
    assert run is not None
    return run.run_id


@pytest.mark.real_time
@pytest.mark.sqlite_only("about a directory")
async def test_the_doctor_names_what_the_store_of_files_lacks(tmp_path: Path) -> None:
    run_id = await made(tmp_path)
    assert found(tmp_path) == []

    store = ObjectStore(f"file://{tmp_path}/store")
    store.delete([one.path for one in store.list("runs")])
    assert found(tmp_path) == [f"file://{tmp_path}/store does not have of the run {run_id}: film.txt, log"]

    (tmp_path / "unshipped" / run_id).touch()
    [waits] = found(tmp_path)
    assert "does not have all files of 1 runs yet" in waits
    (tmp_path / "unshipped" / run_id).unlink()
    shutil.rmtree(tmp_path / "artifacts")
    assert len(found(tmp_path, NEXTSLOT_RETENTION__FILES_DAYS="1")) == 1


@pytest.mark.real_time
@pytest.mark.sqlite_only("about a directory")
async def test_an_offline_purge_deletes_objects_of_runs_that_are_not_stored(tmp_path: Path) -> None:
    await made(tmp_path)
    store = ObjectStore(f"file://{tmp_path}/store")
    for path in tmp_path.glob("nextslot.db*"):
        path.unlink()
    async with compose(configured(tmp_path)):
        pass
    before = len(list(store.list("runs")))

    purged = await offline_commands.purge(configured(tmp_path, NEXTSLOT_RETENTION__FILES_DAYS="0.0000001"))

    assert (before, purged.files) == (2, 1)
    assert list(store.list("runs")) == []


def test_an_address_that_is_no_store_of_files_is_refused_with_the_place_where_it_stands(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"NEXTSLOT_FILES__STORE is 'ftp://x'; write s3://BUCKET/PREFIX"):
        load(tmp_path, environment={"NEXTSLOT_FILES__STORE": "ftp://x"})

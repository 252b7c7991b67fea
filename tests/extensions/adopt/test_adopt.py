"""`nextslot adopt`: what an old system had is there once, under its old ids, whenever the adoption is killed."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nextslot.errors import Invalid
from nextslot.extensions.adopt import old_stories
from nextslot.extensions.adopt.old_work import NoZone, Reading, names_of
from nextslot.store.open_store import maintenance
from tests import databases, postgres
from tests.cli.terminal import Terminal
from tests.extensions.adopt import old_systems
from tests.extensions.adopt.old_systems import uid
from tests.serving import serving

KILLED = Path(__file__).with_name("killed.py")
STORIES = {"jobs": 11, "stories": 2, "cards": 1, "groups": 1}
OFFICE = {"jobs": 9, "stories": 0, "cards": 0, "groups": 0}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def story_service(tmp_path: Path) -> list[str]:
    return ["stories", str(old_systems.story_service(tmp_path / "old")), "--timezone", "Asia/Seoul"]


@pytest.fixture
def office(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    name = f"old_office_{os.getpid()}"
    address = postgres.create(name, "template0")
    old_systems.office_database(address)
    yield ["office", address, "--timezone", "UTC", "--map", "prio=priority"]
    postgres.drop(name)


class Http:
    def __init__(self, base: str) -> None:
        self._base = base

    def get(self, path: str) -> Any:
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._base + path, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)


def place(data: Path) -> list[str]:
    return ["--data", str(data), "--database", databases.url(data)]


def adopt(source: list[str], data: Path, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = Terminal()("adopt", *source, *place(data), "--json", *options).json
    return found


def counts(report: dict[str, Any], expected: dict[str, int]) -> dict[str, int]:
    return {name: report[name] for name in expected}


def stored(data: Path) -> tuple[Counter[str], Counter[str]]:
    """Returns how many ids of each kind lead to something, and how many jobs have each status."""
    database = maintenance(databases.url(data))
    kinds = database.ask(lambda tx: tx.select("select kind, alias from aliases", {}))
    chains = database.ask(
        lambda tx: tx.select(
            "select case stage when 'CANCELLED' then stage else coalesce(outcome, stage) end from jobs", {}
        )
    )
    return Counter(kind for kind, _ in kinds), Counter(status for (status,) in chains)


def test_a_story_service_is_adopted_whole_and_nothing_of_it_changes(data: Path, story_service: list[str]) -> None:
    before = old_systems.files(Path(story_service[1]))

    report = adopt(story_service, data)

    assert counts(report, STORIES) == STORIES
    assert (report["queued"], report["crashed"], report["known"]) == (1, 1, 0)
    reasons = {one["source"].partition(" ")[0]: one["reason"] for one in report["left"]}
    assert set(reasons) == {
        "story_registry.db:", f"jobs/{old_systems.STORY_JOB['job_id']}.json", "jobs/broken.json",
        "jobs/j-strange.json", "batches/batch-7.json",
    }  # fmt: skip
    assert "'paused'" in reasons["jobs/j-strange.json"]
    assert old_systems.files(Path(story_service[1])) == before
    assert stored(data) == (
        Counter({"job": 11, "group": 1, "story": 2, "card": 1}),
        Counter({"COMPLETED": 4, "FAILED": 3, "CANCELLED": 2, "SKIPPED": 1, "QUEUED": 1}),
    )
    assert maintenance(databases.url(data)).examine() == []


@pytest.mark.sqlite_only("a server answers the same on both")
def test_old_links_answer_with_old_times_in_their_zone_and_texts(data: Path, story_service: list[str]) -> None:
    adopt(story_service, data)
    with serving(data) as server:
        http = Http(server.url)
        old = http.get(f"/jobs/{old_systems.STORY_JOB['job_id']}")
        assert (old["status"], old["created_at"]) == ("succeeded", "2026-01-18T01:00:00.000000Z")
        assert http.get("/api/jobs/j-running")["run"]["failure_kind"] == "crash"
        assert http.get("/jobs/j-failed")["error"] == "model not found"
        assert http.get("/jobs/j-skipped")["status"] == "skipped"
        assert http.get("/jobs/batch/batch-7")["status"] == "partial"
        story = http.get("/api/stories/20260118_101500")
        assert (story["title"], story["topic"]) == ("The lamp", "lighthouses")
        assert story["text"].startswith("The lamp went out")
        assert http.get("/api/stories/20260117_080000")["likeness"]["signal"] == "LOW"
        assert http.get("/api/research-cards/RC-20260118-090000")["key_concepts"] == ["isolation", "logbooks"]
        assert http.get("/api/stories/20990101_000000")["status"] == 404
        assert http.ask("POST", "/api/jobs/j-queued/cancel", {})["cancel_requested_at"] is not None


@pytest.mark.sqlite_only("texts are compared in memory")
def test_texts_of_the_old_service_are_remembered_as_duplicates(data: Path, story_service: list[str]) -> None:
    from nextslot.extensions.stories.library import STORIES as SHELF
    from nextslot.extensions.stories.library import earlier
    from nextslot.extensions.stories.similarity import find_duplicate, fingerprint, sketch

    adopt(story_service, data)

    known = maintenance(databases.url(data)).ask(lambda tx: earlier(tx, SHELF, "default"))
    text = old_systems.TALE.strip()
    same = find_duplicate(fingerprint(text), sketch(text), known)
    assert same is not None
    assert same.similarity == 1


def test_an_office_is_adopted_with_its_chains_and_nothing_of_it_changes(data: Path, office: list[str]) -> None:
    before = old_systems.contents(office[1])

    report = adopt(office, data)

    assert counts(report, OFFICE) == OFFICE
    assert (report["queued"], report["crashed"]) == (2, 1)
    reasons = {one["source"]: one["reason"] for one in report["left"]}
    assert set(reasons) == {"job_queue", *(f"job_queue:{uid(number)}" for number in (10, 11, 12))}
    assert "branch" in reasons["job_queue"]
    assert "wait for each other" in reasons[f"job_queue:{uid(10)}"]
    assert old_systems.contents(office[1]) == before
    assert stored(data)[0] == Counter({"job": 9, "run": 9})
    assert maintenance(databases.url(data)).examine() == []


@pytest.mark.sqlite_only("a server answers the same on both")
def test_jobs_of_an_old_office_answer_by_their_old_ids_in_office_words(data: Path, office: list[str]) -> None:
    adopt(office, data)
    with serving(data) as server:
        http = Http(f"{server.url}/api/offices/web/jobs")
        found = {number: http.get(f"/{uid(number)}") for number in range(1, 10)}

        # Not the fifth: it can start at once, and what becomes of it depends on the command of its role.
        words = [found[number]["status"] for number in range(1, 10) if number != 5]
        assert words == ["done", "done", "failed", "pending", "failed", "cancelled", "cancelled", "done"]
        assert [one["status"] for one in found[1]["executions"]] == ["timeout", "completed"]
        assert len(found[3]["executions"]) == 3
        assert [one["priority"] for one in found.values()] == list(range(1, 10))
        assert found[4]["blocked_by"][0]["job_id"] == found[3]["job_id"]
        assert found[1]["created_at"] == "2026-01-18T10:01:00.000000Z"
        assert found[1]["params"] == {"n": 1}
        assert http.ask("PATCH", f"/{uid(4)}/priority", {"priority": -5})["priority"] == -5


@pytest.mark.parametrize(("where", "number"), [("inside", 1), ("inside", 4), ("inside", 9), ("after", 2), ("after", 7)])
@pytest.mark.parametrize("kind", ["story_service", "office"])
def test_an_adoption_that_is_killed_and_run_again_leaves_each_item_once(
    data: Path, kind: str, where: str, number: int, request: pytest.FixtureRequest
) -> None:
    source: list[str] = request.getfixturevalue(kind)
    command = [sys.executable, str(KILLED), where, str(number), "adopt", *source, *place(data)]
    died = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, timeout=120, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    half = stored(data)[0]["job"]

    report = adopt(source, data)

    expected = STORIES if kind == "story_service" else OFFICE
    assert half < expected["jobs"]
    assert report["jobs"] == expected["jobs"] - half
    kinds, _ = stored(data)
    assert (kinds["job"], kinds["group"], kinds["story"]) == (expected["jobs"], expected["groups"], expected["stories"])
    assert counts(adopt(source, data), dict.fromkeys(expected, 0)) == dict.fromkeys(expected, 0)
    assert maintenance(databases.url(data)).examine() == []


@pytest.mark.sqlite_only("nothing is stored")
def test_a_dry_run_says_what_would_be_taken_over_and_stores_nothing(data: Path, story_service: list[str]) -> None:
    report = adopt(story_service, data, "--dry-run")

    assert counts(report, STORIES) == STORIES
    assert (report["adopted"], list(data.iterdir())) == (False, [])


@pytest.mark.sqlite_only("a dry run opens no database")
def test_a_dry_run_leaves_what_the_adoption_leaves(data: Path, story_service: list[str]) -> None:
    job = {"type": "research", "status": "queued", "created_at": "2026-01-18T10:15:00"}
    wrong = {"short": {"topic": "x"}, "hook": {"topic": "how lighthouses work", "webhook_url": "ftp://example.com/"}}
    for name, params in wrong.items():
        file = Path(story_service[1]) / "jobs" / f"{name}.json"
        file.write_text(json.dumps({**job, "job_id": name, "params": params, **params}))

    would, did = adopt(story_service, data, "--dry-run"), adopt(story_service, data)

    assert would | {"adopted": True} == did
    assert any("jobs/short.json" in one["source"] for one in did["left"])


@pytest.mark.sqlite_only("nothing is stored")
def test_a_directory_with_hostile_files_is_read_and_each_of_them_is_listed(tmp_path: Path) -> None:
    jobs, stories = tmp_path / "jobs", tmp_path / "stories"
    jobs.mkdir()
    stories.mkdir()
    good = {"job_id": "j", "type": "research", "status": "succeeded", "created_at": "2026-01-18T10:15:00Z"}
    wrong = {"params": "text", "artifacts": "text", "type": ["x"], "job_id": {}, "created_at": 7, "exit_code": "0"}
    (jobs / "a.json").write_text(json.dumps(good))
    (jobs / "again.json").write_text(json.dumps(good))
    for name, value in wrong.items():
        (jobs / f"{name}.json").write_text(json.dumps(good | {name: value}))
    (jobs / "deep.json").write_text("[" * 100_000)
    os.mkfifo(jobs / "pipe.json")
    (stories / "secret.md").symlink_to("/etc/passwd")
    (stories / "s.md").write_text("# A title\n\nA text.")
    (stories / "s.json").write_text('{"title": ["x"]}')

    found = old_stories.read(tmp_path, Reading(None, {}))

    assert [job.source for job in found.jobs] == ["jobs/a.json"]
    listed = {one.source: one.reason for one in found.left}
    assert listed.keys() == {
        *(f"jobs/{name}.json" for name in (*wrong, "again", "deep", "pipe")), "stories/secret.md", "stories/s.md",
    }  # fmt: skip
    assert listed["jobs/pipe.json"] == listed["stories/secret.md"] == "is not a plain file"
    assert listed["jobs/params.json"] == "the file has params as a JSON str, not dict"


@pytest.mark.sqlite_only("nothing is stored")
def test_what_is_not_recognised_is_refused_with_what_was_found(
    data: Path, tmp_path: Path, story_service: list[str], office: list[str]
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    utc = Reading(None, {})

    with pytest.raises(Invalid, match=r"it needs one of jobs, .* and has: cat\.jpg"):
        old_stories.read(tmp_path / "photos", utc)
    with pytest.raises(NoZone, match="--timezone Asia/Seoul"):
        old_stories.read(Path(story_service[1]), utc)
    with pytest.raises(Invalid, match="write --map old=new"):
        names_of(["prio"])
    empty = Terminal()("adopt", "office", postgres.address(), *place(data)).err
    assert "has no table job_queue" in empty
    unmapped = ["adopt", "office", office[1], "--map", "description=text", *place(data)]
    assert "--map ITS_NAME=description" in Terminal()(*unmapped).err

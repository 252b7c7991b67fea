"""CON-004: the old `/jobs` endpoints answer as they did, on top of the queue and without their old defects."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pytest_httpserver import HTTPServer
from standardwebhooks import Webhook

from nextslot.domain import NewJob
from nextslot.extensions.legacy import old_words
from nextslot.extensions.legacy import schemas as schemas
from nextslot.server.app import Options
from nextslot.server.request_body import Bodies, BodyLimits
from nextslot.server.schemas import ResponseModel
from tests.extensions.legacy.old_service import CARD, NOTHING, OTHER, RESEARCH, STORY, TOPIC, old_service, seen, until
from tests.extensions.stories import ollama_server as ollama
from tests.server.support import Server, serving
from tests.support import eventually


async def trigger(server: Server, kind: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = await server.client.post(f"/jobs/{kind}/trigger", json=body or {})
    assert answer.status_code == 202, answer.text
    content: dict[str, Any] = answer.json()
    return content


async def get(server: Server, path: str) -> dict[str, Any]:
    answer = await server.client.get(path)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


async def post(server: Server, path: str) -> dict[str, Any]:
    answer = await server.client.post(path)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


# Triggers.


async def test_CON_004_a_trigger_enqueues_and_its_job_ends_as_the_old_one_did(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        triggered = await trigger(server, "story", {"target_length": 400, "model": "big"})
        job = await until(server, triggered["job_id"])

        assert triggered == {
            "job_id": triggered["job_id"],
            "type": "story_generation",
            "status": "queued",
            "message": "The job is in the queue",
        }
        assert job["status"] == "succeeded"
        assert job["params"] == {
            "max_stories": 1,
            "enable_dedup": False,
            "model": "big",
            "target_length": 400,
            "webhook_url": None,
            "webhook_events": ["succeeded", "failed", "skipped"],
        }
        assert [name.rpartition("/")[2] for name in job["artifacts"]] == [
            "001-the-second-light.json",
            "001-the-second-light.md",
        ]
        assert all((tmp_path / name).is_file() for name in [*job["artifacts"], job["log_path"]])
        assert job["created_at"] < job["started_at"] < job["finished_at"]
        assert job["finished_at"].endswith("Z")


async def test_CON_004_a_job_has_exactly_the_old_fields(tmp_path: Path) -> None:
    async with old_service(tmp_path, RESEARCH) as (server, _):
        triggered = await trigger(server, "research", {"topic": TOPIC, "tags": ["sea"]})

        job = await until(server, triggered["job_id"])

        assert list(job) == [
            "job_id", "type", "status", "params", "pid", "log_path", "artifacts", "created_at", "started_at",
            "finished_at", "exit_code", "error", "webhook_url", "webhook_events", "webhook_sent", "webhook_error",
        ]  # fmt: skip
        assert (job["type"], job["status"], job["error"]) == ("research", "succeeded", None)
        # The old service gave up after 300 seconds by default.
        assert job["params"].items() >= {"topic": TOPIC, "tags": ["sea"], "model": None, "timeout": 300}.items()


async def test_CON_004_jobs_go_into_the_queue_of_the_office_default_in_its_order(tmp_path: Path) -> None:
    async with old_service(tmp_path, ollama.says_nothing) as (server, model):
        first = await trigger(server, "story")
        await model.asked.wait()
        second, third = await trigger(server, "story"), await trigger(server, "research", {"topic": TOPIC})

        running, queue = await server.scheduler.running(), await server.scheduler.queue()

        assert [job.job_id for job in running] == [first["job_id"]]
        assert [job.job_id for job in queue] == [second["job_id"], third["job_id"]]


async def test_CON_004_what_has_no_effect_and_what_is_not_known_is_noted(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        said = {"duration_seconds": 60, "interval_seconds": 5, "load_history": True, "db_path": "x.db", "colour": "red"}

        triggered = await trigger(server, "story", said)
        silent = await trigger(server, "story", {"interval_seconds": 0, "db_path": None, "load_history": False})

        assert triggered["message"] == (
            "The job is in the queue. Ignored, without effect here: db_path, duration_seconds, interval_seconds,"
            " load_history. Ignored, not known: colour"
        )
        assert silent["message"] == "The job is in the queue"


@pytest.mark.parametrize(
    "path",
    ["../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "..\\..\\x", "a" * 100_000, "nextslot.db"],
    ids=lambda path: path[:10].encode().hex(),
)
async def test_CON_004_a_path_from_a_client_reaches_no_file(tmp_path: Path, path: str) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        triggered = await trigger(server, "story", {"db_path": path})
        job = await until(server, triggered["job_id"])

        assert job["status"] == "succeeded"
        assert "db_path" in triggered["message"]
        assert path not in json.dumps(job)
    others = [path.name for path in tmp_path.iterdir() if not path.name.startswith("nextslot.db")]
    assert sorted(others) == ["artifacts", "logs"]


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        ("story", {"max_stories": 0}, "max_stories"),
        ("story", {"max_stories": 101}, "max_stories"),
        ("story", {"max_stories": "2"}, "max_stories"),
        ("story", {"target_length": 299}, "target_length"),
        ("story", {"target_length": 10_001}, "target_length"),
        ("story", {"duration_seconds": 0}, "duration_seconds"),
        ("story", {"interval_seconds": -1}, "interval_seconds"),
        ("story", {"webhook_url": "http://example.org", "webhook_events": ["succeeded", "done"]}, "webhook_events.1"),
        ("story", {"webhook_url": "not a url"}, "webhook_url"),
        ("story", {"webhook_url": "http://169.254.169.254/"}, "webhook_url"),
        ("research", {}, "topic"),
        ("research", {"topic": "too short"}, "topic"),
        ("research", {"topic": " " * 20}, "topic"),
        ("batch", {"jobs": []}, "jobs"),
        ("batch", {"jobs": [{"type": "story"}] * 51}, "jobs"),
        ("batch", {"jobs": [{"type": "story"}, {"type": "poem"}]}, "jobs.1.type"),
        ("batch", {"jobs": [{"type": "story"}, {"type": "research", "topic": "short"}]}, "jobs.1.topic"),
        ("batch", {"jobs": [{"type": "story"}], "webhook_url": "ftp://example.org"}, "webhook_url"),
    ],
)
async def test_CON_004_a_request_that_is_wrong_is_422_with_the_old_field_and_stores_nothing(
    tmp_path: Path, kind: str, body: dict[str, Any], field: str
) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        answer = await server.client.post(f"/jobs/{kind}/trigger", json=body)

        assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
        assert {one["field"] for one in answer.json()["errors"]} == {field}
        assert answer.headers["content-type"] == "application/problem+json"
        assert (await get(server, "/jobs"))["total"] == 0


async def test_CON_004_research_without_a_topic_in_a_batch_is_422_and_nothing_of_the_batch_is_made(
    tmp_path: Path,
) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        answer = await server.client.post(
            "/jobs/batch/trigger", json={"jobs": [{"type": "story"}, {"type": "research"}]}
        )

        assert answer.status_code == 422
        assert "topic" in answer.json()["detail"]
        assert (await get(server, "/jobs"))["total"] == 0


@pytest.mark.parametrize("kind", ["story", "research", "batch"])
async def test_CON_004_without_language_models_a_trigger_is_422_unknown_job_type(tmp_path: Path, kind: str) -> None:
    async with serving(tmp_path, extensions=["legacy"]) as server:
        body = {"topic": TOPIC, "jobs": [{"type": "story"}, {"type": "story"}]}

        answer = await server.client.post(f"/jobs/{kind}/trigger", json=body)

        assert (answer.status_code, answer.json()["code"]) == (422, "unknown_job_type")


@pytest.mark.parametrize("kind", ["story", "batch"])
async def test_CON_004_the_same_request_again_is_answered_with_what_it_made(tmp_path: Path, kind: str) -> None:
    async with old_service(tmp_path, ollama.says_nothing) as (server, _):
        body = {"jobs": [{"type": "story"}]} if kind == "batch" else {}
        id_field = "batch_id" if kind == "batch" else "job_id"

        async def send(**more: Any) -> httpx2.Response:
            headers = {"Idempotency-Key": "once"}
            return await server.client.post(f"/jobs/{kind}/trigger", json={**body, **more}, headers=headers)

        first, again = await send(), await send()
        other = await send(webhook_url="http://127.0.0.1:9/")

        assert (first.status_code, again.status_code) == (202, 200)
        assert again.json()[id_field] == first.json()[id_field]
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")


# What became of them.


@pytest.mark.parametrize(
    ("script", "body", "status"),
    [
        ((ollama.says_nothing,), {}, "running"),
        ((STORY,), {}, "succeeded"),
        ((NOTHING,), {}, "failed"),
    ],
)
async def test_CON_004_the_status_is_current_without_any_monitor(
    tmp_path: Path, script: tuple[ollama.Reply, ...], body: dict[str, Any], status: str
) -> None:
    async with old_service(tmp_path, *script) as (server, model):
        triggered = await trigger(server, "story", body)
        await model.asked.wait()
        if status != "running":
            await server.scheduler.wait(triggered["job_id"])

        job = await get(server, f"/jobs/{triggered['job_id']}")
        listed = await get(server, f"/jobs?status={status}")

        assert job["status"] == status
        assert [one["job_id"] for one in listed["jobs"]] == [triggered["job_id"]]
        assert (job["finished_at"] is None) == (status == "running")
        assert (job["error"] is None) == (status != "failed")


async def test_CON_004_a_duplicate_is_skipped_with_its_reason(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        first = await trigger(server, "story")
        await until(server, first["job_id"])
        second = await trigger(server, "story", {"enable_dedup": True})

        job = await until(server, second["job_id"])
        monitored = await post(server, f"/jobs/{second['job_id']}/monitor")

        assert (job["status"], job["artifacts"]) == ("skipped", [])
        assert monitored["status"] == "skipped"
        assert "duplicate" in monitored["reason"]


async def test_CON_004_a_retry_does_not_show_as_a_new_id(tmp_path: Path) -> None:
    async with old_service(tmp_path, NOTHING, STORY, retries=1) as (server, _):
        triggered = await trigger(server, "story")
        job = await until(server, triggered["job_id"])
        chain = await server.scheduler.chain(triggered["job_id"])

        listed = await get(server, "/jobs")
        by_retry = await get(server, f"/jobs/{chain[1].job_id}")

        assert [one.status for one in chain] == ["FAILED", "COMPLETED"]
        assert job["status"] == "succeeded"
        assert job["started_at"] == str(chain[0].started_at)
        assert job["finished_at"] == str(chain[1].finished_at)
        assert listed == {"jobs": [job], "total": 1, "message": "1 of 1 jobs"}
        assert by_retry == job


async def test_CON_004_a_chain_that_waits_for_its_retry_is_queued(tmp_path: Path) -> None:
    async with old_service(tmp_path, NOTHING) as (server, _):
        await server.scheduler.offices.change("default", retry_policy={"max_attempts": 1, "base_delay_seconds": 3600})
        triggered = await trigger(server, "story")
        await seen(lambda: server.scheduler.chain(triggered["job_id"]), lambda chain: len(chain) == 2)

        job = await get(server, f"/jobs/{triggered['job_id']}")
        queued, failed = await get(server, "/jobs?status=queued"), await get(server, "/jobs?status=failed")

        assert (job["status"], job["error"], job["finished_at"]) == ("queued", None, None)
        assert job["started_at"] is not None
        assert (queued["total"], failed["total"]) == (1, 0)


async def test_CON_004_the_list_is_newest_first_and_total_is_what_exists(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        await server.scheduler.pause()
        made = [(await trigger(server, "story"))["job_id"] for _ in range(4)]
        card = (await trigger(server, "research", {"topic": TOPIC}))["job_id"]
        await server.scheduler.submit("echo")
        await server.scheduler.offices.create("other")
        await server.scheduler.submit("story", office_id="other")

        page = await get(server, "/jobs?limit=2")
        stories = await get(server, "/jobs?type=story_generation&status=queued&limit=3")
        nothing = await get(server, "/jobs?type=research&status=running")

        assert [job["job_id"] for job in page["jobs"]] == [card, made[3]]
        assert (page["total"], page["message"]) == (5, "2 of 5 jobs")
        assert [job["job_id"] for job in stories["jobs"]] == made[:0:-1]
        assert stories["total"] == 4
        assert nothing == {"jobs": [], "total": 0, "message": "0 of 0 jobs"}


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "status=done", "type=story"])
async def test_CON_004_a_query_that_is_wrong_is_422(tmp_path: Path, query: str) -> None:
    async with serving(tmp_path) as server:
        answer = await server.client.get(f"/jobs?{query}")

        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, query.partition("=")[0])


async def test_CON_004_jobs_that_the_old_service_could_not_have_are_unknown(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        job = await server.scheduler.submit("echo")
        group, _ = await server.scheduler.submit_group([NewJob(job_type="echo")])

        for path in (f"/jobs/{job.job_id}", "/jobs/none", f"/jobs/batch/{group.group_id}", "/jobs/batch/none"):
            answer = await server.client.get(path)

            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_CON_004_answers_are_what_the_document_says(tmp_path: Path) -> None:
    async with old_service(tmp_path, RESEARCH, STORY) as (server, _):
        card = await trigger(server, "research", {"topic": TOPIC})
        batch = await trigger(server, "batch", {"jobs": [{"type": "story"}]})
        await server.scheduler.wait(batch["job_ids"][0])
        path = f"/jobs/{card['job_id']}"

        shown: list[tuple[type[ResponseModel], dict[str, Any]]] = [
            (schemas.Triggered, card),
            (schemas.BatchTriggered, batch),
            (schemas.JobStatus, await get(server, path)),
            (schemas.JobList, await get(server, "/jobs")),
            (schemas.Batch, await get(server, f"/jobs/batch/{batch['batch_id']}")),
            (schemas.Monitored, await post(server, f"{path}/monitor")),
            (schemas.AllMonitored, await post(server, "/jobs/monitor")),
            (schemas.DedupCheck, await post(server, f"{path}/dedup_check")),
            (schemas.JobCancelled, await post(server, f"{path}/cancel")),
        ]

        for form, content in shown:
            assert form.model_validate(content).model_dump() == content


# Cancel and monitor.


async def test_CON_004_a_queued_job_is_cancelled(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        await server.scheduler.pause()
        job_id = (await trigger(server, "story"))["job_id"]

        answer = await post(server, f"/jobs/{job_id}/cancel")
        again = await post(server, f"/jobs/{job_id}/cancel")

        assert answer == {"job_id": job_id, "success": True, "message": "The job was cancelled", "error": None}
        assert (await get(server, f"/jobs/{job_id}"))["status"] == "cancelled"
        assert again["success"] is False
        assert "the job is cancelled since" in again["error"]


async def test_CON_004_a_running_job_is_told_to_stop_though_its_office_lets_work_finish(tmp_path: Path) -> None:
    async with old_service(tmp_path, ollama.says_nothing, retries=3) as (server, model):
        job_id = (await trigger(server, "story"))["job_id"]
        await model.asked.wait()

        answer = await post(server, f"/jobs/{job_id}/cancel")
        job = await until(server, job_id)

        assert (answer["success"], answer["error"]) == (True, None)
        assert "told to stop" in answer["message"]
        assert job["status"] == "cancelled"
        assert len(await server.scheduler.chain(job_id)) == 1
        await asyncio.wait_for(model.hung_up.wait(), 15)


async def test_CON_004_a_cancel_ends_a_chain_that_waits_for_its_retry(tmp_path: Path) -> None:
    async with old_service(tmp_path, NOTHING) as (server, _):
        await server.scheduler.offices.change("default", retry_policy={"max_attempts": 1, "base_delay_seconds": 3600})
        job_id = (await trigger(server, "story"))["job_id"]
        await seen(lambda: server.scheduler.chain(job_id), lambda chain: len(chain) == 2)

        answer = await post(server, f"/jobs/{job_id}/cancel")

        assert (answer["job_id"], answer["success"]) == (job_id, True)
        assert (await get(server, f"/jobs/{job_id}"))["status"] == "cancelled"


async def test_CON_004_of_an_unknown_job_cancel_and_monitor_say_so_with_200(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        cancelled, monitored = await post(server, "/jobs/none/cancel"), await post(server, "/jobs/none/monitor")
        checked = await server.client.post("/jobs/none/dedup_check")

        assert (cancelled["job_id"], cancelled["success"]) == ("none", False)
        assert (monitored["job_id"], monitored["status"], monitored["webhook_processed"]) == ("none", None, False)
        assert cancelled["error"] == monitored["error"] == "there is no job 'none'"
        assert checked.status_code == 404


async def test_CON_004_monitor_shows_what_runs_and_changes_nothing(tmp_path: Path) -> None:
    async with old_service(tmp_path, ollama.says_nothing) as (server, model):
        job_id, _ = (await trigger(server, "story"))["job_id"], await trigger(server, "story")
        await model.asked.wait()
        events = [event.seq for event in (await server.scheduler.lists.events()).items]

        everything, one = await post(server, "/jobs/monitor"), await post(server, f"/jobs/{job_id}/monitor")

        assert everything == {"monitored_count": 1, "results": [one]}
        assert one == {
            "job_id": job_id, "status": "running", "pid": None, "artifacts": [], "error": None,
            "message": "The job is running", "reason": None, "webhook_processed": False,
        }  # fmt: skip
        assert [event.seq for event in (await server.scheduler.lists.events()).items] == events


# Batches.


async def test_CON_004_a_batch_with_a_failing_member_is_partial_and_the_others_run(tmp_path: Path) -> None:
    # One after the other, since the office `default` runs one job at a time; the retry of the first comes last.
    async with old_service(tmp_path, NOTHING, RESEARCH, STORY, NOTHING, retries=1) as (server, _):
        jobs = [{"type": "story"}, {"type": "research", "topic": TOPIC}, {"type": "story"}]
        triggered = await trigger(server, "batch", {"jobs": jobs})
        for job_id in triggered["job_ids"]:
            await server.scheduler.wait(job_id)

        batch = await get(server, f"/jobs/batch/{triggered['batch_id']}")

        assert (triggered["job_count"], triggered["status"]) == (3, "queued")
        assert triggered["message"] == "3 jobs are in the queue"
        assert [job["job_id"] for job in batch["jobs"]] == triggered["job_ids"]
        assert [job["type"] for job in batch["jobs"]] == ["story_generation", "research", "story_generation"]
        assert [job["status"] for job in batch["jobs"]] == ["failed", "succeeded", "succeeded"]
        assert [job["error"] is None for job in batch["jobs"]] == [False, True, True]
        counts = {name: value for name, value in batch.items() if name.endswith("_jobs")}
        assert counts == {
            "total_jobs": 3, "completed_jobs": 3, "succeeded_jobs": 2, "failed_jobs": 1, "running_jobs": 0,
            "queued_jobs": 0,
        }  # fmt: skip
        assert (batch["status"], batch["message"]) == ("partial", "3 of 3 jobs have ended")
        assert batch["created_at"] < batch["finished_at"]


async def test_CON_004_a_batch_is_a_parallel_group_that_goes_on(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        await server.scheduler.pause()
        triggered = await trigger(server, "batch", {"jobs": [{"type": "story", "target_length": 5000}] * 2})

        group = await server.scheduler.group(triggered["batch_id"])
        members = await server.scheduler.members(triggered["batch_id"])
        batch = await get(server, f"/jobs/batch/{triggered['batch_id']}")

        assert (group.mode, group.on_failure, group.office_id) == ("parallel", "continue", "default")
        assert [member.params["target_length"] for member in members] == [5000, 5000]
        assert (batch["status"], batch["queued_jobs"], batch["finished_at"]) == ("queued", 2, None)


async def test_CON_004_a_batch_is_running_until_all_have_ended(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY, ollama.says_nothing) as (server, model):
        triggered = await trigger(server, "batch", {"jobs": [{"type": "story"}] * 2})
        await until(server, triggered["job_ids"][0])
        await eventually(lambda: len(model.calls) == 2)

        batch = await get(server, f"/jobs/batch/{triggered['batch_id']}")

        assert (batch["status"], batch["completed_jobs"], batch["running_jobs"]) == ("running", 1, 1)


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (["succeeded", "succeeded"], "succeeded"),
        (["skipped", "skipped"], "succeeded"),
        (["succeeded", "skipped"], "succeeded"),
        (["succeeded", "failed"], "partial"),
        (["succeeded", "cancelled"], "partial"),
        (["failed", "skipped"], "failed"),
        (["cancelled", "cancelled"], "failed"),
        (["failed", "failed"], "failed"),
    ],
)
async def test_CON_004_the_word_for_a_batch_follows_from_those_of_its_jobs(
    tmp_path: Path, states: list[str], status: str
) -> None:
    """Skipped is what `enable_dedup` drops."""
    answers = {"succeeded": OTHER, "skipped": STORY, "failed": NOTHING, "cancelled": STORY}

    async with old_service(tmp_path, STORY, *[answers[state] for state in states if state != "cancelled"], STORY) as (
        server,
        _,
    ):
        await until(server, (await trigger(server, "story"))["job_id"])
        await server.scheduler.pause()
        jobs = [{"type": "story", "enable_dedup": state == "skipped"} for state in states]
        triggered = await trigger(server, "batch", {"jobs": jobs})
        for job_id, state in zip(triggered["job_ids"], states, strict=True):
            if state == "cancelled":
                await post(server, f"/jobs/{job_id}/cancel")
        await server.scheduler.resume()
        for job_id in triggered["job_ids"]:
            await server.scheduler.wait(job_id)

        batch = await get(server, f"/jobs/batch/{triggered['batch_id']}")

        assert [job["status"] for job in batch["jobs"]] == states
        assert batch["status"] == status


async def test_CON_004_what_a_kind_of_job_in_a_batch_does_not_know_is_noted_with_its_place(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        jobs = [{"type": "story", "timeout": 5, "mood": "dark"}, {"type": "research", "topic": TOPIC, "max_stories": 2}]

        triggered = await trigger(server, "batch", {"jobs": jobs})

        assert triggered["message"] == (
            "2 jobs are in the queue. Ignored, not known: jobs.0.mood. Ignored, not for a story job: jobs.0.timeout."
            " Ignored, not for a research job: jobs.1.max_stories"
        )


# Likeness.


async def test_CON_004_a_card_is_compared_with_those_completed_before_it(tmp_path: Path) -> None:
    other = {
        **CARD,
        "summary": "Bees dance to tell where flowers are.",
        "key_concepts": ["bees"],
        "applications": ["x"],
    }
    near = {**CARD, "applications": ["power for islands", "cooling of large halls", "warm water in winter"]}

    cards = [ollama.tells(json.dumps(card)) for card in (CARD, other, near, CARD)]
    async with old_service(tmp_path, *cards) as (server, _):
        made = []
        for _ in range(4):
            made.append((await trigger(server, "research", {"topic": TOPIC}))["job_id"])
            await until(server, made[-1])

        checks = [await post(server, f"/jobs/{job_id}/dedup_check") for job_id in made]

        job = await get(server, f"/jobs/{made[0]}")
        assert [check["signal"] for check in checks] == ["LOW", "LOW", "MEDIUM", "HIGH"]
        assert [check["similarity_score"] for check in checks][0::3] == [0.0, 1.0]
        assert 0.4 <= checks[2]["similarity_score"] < 0.8
        assert all(check["has_artifact"] for check in checks)
        assert checks[0]["artifact_path"] in job["artifacts"]
        run_id = (await server.scheduler.run_of(made[0])).run_id  # type: ignore[union-attr]
        assert checks[3]["message"] == f"The most similar earlier card is {run_id}"


async def test_CON_004_without_a_card_there_is_no_signal(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY, NOTHING) as (server, _):
        story = (await trigger(server, "story"))["job_id"]
        failed = (await trigger(server, "research", {"topic": TOPIC}))["job_id"]
        await until(server, failed)

        checks = [await post(server, f"/jobs/{job_id}/dedup_check") for job_id in (story, failed)]

        nothing = {"has_artifact": False, "artifact_path": None, "signal": None, "similarity_score": None}
        assert all(check.items() >= nothing.items() for check in checks)
        assert checks[0]["message"] == "Only research jobs are compared: it has no research card"
        assert checks[1]["message"] == "The job is failed: it has no research card"


# Webhooks.


async def test_CON_004_the_old_webhook_is_sent_once_when_the_chain_has_ended(
    tmp_path: Path, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/hook").respond_with_data("thanks")

    async with old_service(tmp_path, NOTHING, STORY, retries=1) as (server, _):
        triggered = await trigger(server, "story", {"webhook_url": httpserver.url_for("/hook")})
        await server.scheduler.wait(triggered["job_id"])
        job = await told(server, triggered["job_id"])

        [(request, _)] = httpserver.log
        content = Webhook(server.scheduler.webhooks.secret()).verify(request.data, dict(request.headers))
        assert list(content) == [
            "event", "job_id", "type", "status", "params", "created_at", "started_at", "finished_at", "exit_code",
            "error", "artifacts", "timestamp",
        ]  # fmt: skip
        shared = content.keys() & job.keys()
        assert {name: content[name] for name in shared} == {name: job[name] for name in shared}
        assert (content["event"], content["job_id"]) == ("succeeded", triggered["job_id"])
        assert request.headers["User-Agent"] == "HorrorStoryGenerator/1.3"
        assert request.headers["X-Job-ID"] == triggered["job_id"]
        assert request.headers["X-Job-Event"] == "succeeded"
        assert request.headers["Content-Type"] == "application/json"
        assert (job["webhook_sent"], job["webhook_error"]) == (True, None)
        assert (await post(server, f"/jobs/{triggered['job_id']}/monitor"))["webhook_processed"] is True


async def test_CON_004_a_webhook_that_is_not_taken_is_told_in_the_answer(
    tmp_path: Path, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/hook").respond_with_data("no", status=500)

    async with old_service(tmp_path, NOTHING) as (server, _):
        body = {"webhook_url": httpserver.url_for("/hook"), "webhook_events": ["failed"]}
        job_id = (await trigger(server, "story", body))["job_id"]
        await server.scheduler.wait(job_id)
        job = await seen(lambda: get(server, f"/jobs/{job_id}"), lambda job: job["webhook_error"])

        assert (job["webhook_sent"], job["webhook_error"]) == (False, "it answered 500")
        assert job["webhook_events"] == ["failed"]


async def test_CON_004_an_event_that_was_not_asked_for_is_not_sent(tmp_path: Path, httpserver: HTTPServer) -> None:
    httpserver.expect_request("/hook").respond_with_data("thanks")

    async with old_service(tmp_path, STORY) as (server, _):
        made = []
        for events in ([], ["failed", "skipped"], ["succeeded"]):
            body = {"webhook_url": httpserver.url_for("/hook"), "webhook_events": events}
            made.append((await trigger(server, "story", body))["job_id"])
            await server.scheduler.wait(made[-1])
        await told(server, made[-1])

        assert [request.headers["X-Job-ID"] for request, _ in httpserver.log] == made[-1:]


async def test_CON_004_the_batch_webhook_is_sent_once_when_all_have_ended(
    tmp_path: Path, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/hook").respond_with_data("thanks")

    async with old_service(tmp_path, NOTHING, STORY) as (server, _):
        body = {"jobs": [{"type": "story"}, {"type": "story"}], "webhook_url": httpserver.url_for("/hook")}
        triggered = await trigger(server, "batch", body)
        for job_id in triggered["job_ids"]:
            await server.scheduler.wait(job_id)
        path = f"/jobs/batch/{triggered['batch_id']}"
        batch = await seen(lambda: get(server, path), lambda batch: batch["webhook_sent"])

        [(request, _)] = httpserver.log
        content = Webhook(server.scheduler.webhooks.secret()).verify(request.data, dict(request.headers))
        assert {name: value for name, value in content.items() if name not in ("event", "timestamp")} == {
            **batch,
            "webhook_sent": False,
        }
        assert (content["event"], batch["webhook_url"]) == ("partial", httpserver.url_for("/hook"))
        assert request.headers["User-Agent"] == "HorrorStoryGenerator/1.3"
        assert request.headers["X-Job-ID"] == triggered["batch_id"]
        assert request.headers["X-Job-Event"] == "partial"


async def test_CON_004_a_batch_webhook_hears_only_of_what_it_asked_for(tmp_path: Path, httpserver: HTTPServer) -> None:
    httpserver.expect_request("/hook").respond_with_data("thanks")

    async with old_service(tmp_path, STORY) as (server, _):
        made = []
        for events in (["failed"], ["skipped"], ["succeeded"]):
            body = {"jobs": [{"type": "story"}], "webhook_url": httpserver.url_for("/hook"), "webhook_events": events}
            made.append(await trigger(server, "batch", body))
            await server.scheduler.wait(made[-1]["job_ids"][0])
        await eventually(lambda: httpserver.log)

        assert [request.headers["X-Job-ID"] for request, _ in httpserver.log] == [made[-1]["batch_id"]]


@pytest.mark.parametrize(
    ("events", "is_heard"),
    [(["succeeded"], True), (["failed"], True), (["skipped"], False), (["skipped", "failed"], True)],
)
def test_CON_004_a_partial_batch_is_of_interest_to_who_wants_successes_or_failures(
    events: list[str], is_heard: bool
) -> None:
    webhook = old_words.webhook("http://example.org", events)

    assert webhook is not None
    assert old_words.hears_of_batch(webhook, "partial") is is_heard


async def told(server: Server, job_id: str) -> dict[str, Any]:
    """Returns the old job once its webhook has been delivered."""
    return await seen(lambda: get(server, f"/jobs/{job_id}"), lambda job: job["webhook_sent"])


# Deprecation.


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "successor"),
    [
        ("GET", "/jobs", None, 200, "/api/jobs"),
        ("POST", "/jobs/monitor", None, 200, "/api/jobs"),
        ("POST", "/jobs/story/trigger", {"max_stories": 0}, 422, "/api/jobs"),
        ("POST", "/jobs/batch/trigger", {}, 422, "/api/job-groups"),
        ("GET", "/jobs/none", None, 404, "/api/jobs/none"),
        ("GET", "/jobs/batch/none", None, 404, "/api/job-groups/none"),
        ("POST", "/jobs/none/cancel", None, 200, "/api/jobs/none/cancel"),
        ("POST", "/jobs/none/dedup_check", None, 404, "/api/jobs/none"),
        ("DELETE", "/jobs", None, 405, "/api/jobs"),
        ("GET", "/jobs/%0d%0aX-Evil:%20yes%3E", None, 404, "/api/jobs/%0D%0AX-Evil%3A%20yes%3E"),
    ],
)
async def test_CON_004_every_answer_says_since_when_it_is_deprecated_and_what_to_use(
    tmp_path: Path, method: str, path: str, body: Any, status: int, successor: str
) -> None:
    async with serving(tmp_path) as server:
        answer = await server.client.request(method, path, json=body)

        assert answer.status_code == status
        assert answer.headers["deprecation"] == "@1794700800"
        assert answer.headers["sunset"] == "Mon, 15 Nov 2027 00:00:00 GMT"
        assert answer.headers["link"] == f'<{successor}>; rel="successor-version"'
        assert "x-evil" not in answer.headers


async def test_CON_004_refusals_before_any_route_say_so_too_and_new_paths_do_not(tmp_path: Path) -> None:
    async with serving(tmp_path, Options(bodies=Bodies(BodyLimits(body=1000)))) as server:
        refused = [
            await server.client.get("/jobs", headers={"host": "evil.example"}),
            await server.client.post("/jobs/story/trigger", content="x", headers={"content-type": "text/plain"}),
            await server.client.post("/jobs/story/trigger", json={"db_path": "x" * 2000}),
        ]
        new = [await server.client.get("/api/jobs"), await server.client.get("/health")]
        await server.scheduler.keys.create("a", ["admin"])
        refused.append(await server.client.get("/jobs"))

        assert [answer.status_code for answer in refused] == [403, 415, 413, 401]
        assert all("deprecation" in answer.headers and "link" in answer.headers for answer in refused)
        assert not any("deprecation" in answer.headers for answer in new)


async def test_CON_004_below_a_path_the_successor_is_there_too(tmp_path: Path) -> None:
    async with serving(tmp_path, Options(root_path="/scheduler")) as server:
        for path in ("/jobs/none", "/scheduler/jobs/none"):
            answer = await server.client.get(path)

            assert answer.headers["link"] == '</scheduler/api/jobs/none>; rel="successor-version"'


async def test_CON_004_calls_are_counted_by_route(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await get(server, "/jobs")
        await server.client.get("/jobs/one")
        await server.client.get("/jobs/two")

        metrics = (await server.client.get("/metrics")).text

        assert 'nextslot_legacy_requests_total{route="GET /jobs"} 1.0' in metrics
        assert 'nextslot_legacy_requests_total{route="GET /jobs/{job_id}"} 2.0' in metrics


async def test_CON_004_switched_off_there_is_nothing_there(tmp_path: Path) -> None:
    async with serving(tmp_path, extensions=["offices", "stories"]) as server:
        answers = [
            await server.client.get("/jobs"),
            await server.client.post("/jobs/story/trigger", json={}),
            await server.client.post("/jobs/none/cancel"),
        ]
        document = (await server.client.get("/openapi.json")).json()

        assert [answer.status_code for answer in answers] == [404, 404, 404]
        assert not any("deprecation" in answer.headers for answer in answers)
        assert not [path for path in document["paths"] if path.startswith("/jobs")]
        assert "/story/generate" in document["paths"]


async def test_CON_004_the_document_marks_them_as_deprecated(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        paths = (await server.client.get("/openapi.json")).json()["paths"]

        old = {path: operation for path, operations in paths.items() for operation in operations.values()
               if path.startswith("/jobs")}  # fmt: skip
        assert len(old) == 10
        assert all(operation["deprecated"] for operation in old.values())


async def test_CON_004_who_triggered_is_in_the_audit_log_and_reading_is_not(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        await trigger(server, "story")
        await post(server, "/jobs/monitor")

        [entry] = (await server.scheduler.lists.audit()).items

        assert entry.action == "POST /jobs/story/trigger"

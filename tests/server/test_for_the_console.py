"""What the console asks the API for besides the rest: who am I, what does this expression mean, when will it end."""

from pathlib import Path

from .support import serving


async def test_me_says_who_asks_what_they_may_do_and_where_events_are(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        local = (await server.client.get("/api/me")).json()
        await server.scheduler.offices.create("studio")
        await server.scheduler.keys.create("admin", ["admin"])
        key, text = await server.scheduler.keys.create("of the studio", ["submit"], "studio")
        mine = (await server.client.get("/api/me", headers={"X-API-Key": text})).json()

        assert (local["name"], local["key_id"], local["scopes"][-1]) == ("local", None, "admin")
        assert mine == {
            "name": "of the studio",
            "key_id": key.key_id,
            "scopes": ["read", "submit"],
            "office_id": "studio",
            "last_event": await server.scheduler.lists.last_event(),
            "extensions": ["adopt", "legacy", "mcp", "offices", "stories"],
            "job_types": [],
        }


async def test_a_stream_from_the_last_event_of_me_has_only_what_is_new(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.ended((await server.scheduler.submit("echo")).job_id)
        after = (await server.client.get("/api/me")).json()["last_event"]
        job = await server.scheduler.submit("echo")
        await server.ended(job.job_id)
        events = (await server.client.get("/api/events", params={"after": after})).json()["items"]

        assert {event["job_id"] for event in events} == {job.job_id}
        assert events[0]["seq"] == after + 1


async def test_a_preview_says_an_expression_in_words_and_its_next_occurrences_and_stores_nothing(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        query = {
            "cron_expression": "30 17 * * fri",
            "timezone": "Europe/Berlin",
            "count": "2",
            "after": "2026-07-01T00:00:00Z",
        }
        found = await server.client.get("/api/schedules/preview", params=query)

        assert found.json() == {
            "cron_words": "At 17:30 on Friday",
            "items": [
                {"utc": "2026-07-03T15:30:00.000000Z", "local": "2026-07-03T17:30:00+02:00"},
                {"utc": "2026-07-10T15:30:00.000000Z", "local": "2026-07-10T17:30:00+02:00"},
            ],
        }
        assert (await server.scheduler.schedules.page()).items == ()


async def test_a_preview_of_a_bad_expression_or_zone_says_which_and_why(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:

        async def problem(**query: str) -> tuple[int, str]:
            found = await server.client.get("/api/schedules/preview", params=query)
            return found.status_code, found.json()["errors"][0]["field"]

        assert await problem(cron_expression="0 17 *") == (422, "cron_expression")
        assert await problem(cron_expression="0 0 31 2 *") == (422, "cron_expression")
        assert await problem(cron_expression="@daily", timezone="Mars/Base") == (422, "timezone")


async def test_the_queue_says_when_what_runs_and_what_waits_is_expected_to_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for _ in range(3):
            await server.ended((await server.scheduler.submit("echo")).job_id)
        await server.scheduler.submit("gate")
        await server.scheduler.submit("echo")
        at_once = (await server.client.get("/api/queue", params={"wait_seconds": 0})).json()
        found = (await server.client.get("/api/queue")).json()

        assert at_once["forecast_at"] is None
        assert [job["job_id"] for job in at_once["queue"]] == [job["job_id"] for job in found["queue"]]
        assert found["forecast_at"] is not None, "a short queue waits for its forecast"
        assert "expected_end" in found["running"][0]
        (queued,) = found["queue"]
        assert queued["expected_start"] <= queued["expected_end"]


async def test_a_queue_says_what_must_be_resumed_before_it_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        found = []
        for scope in ({}, {"office_id": "default"}):
            await server.scheduler.pause(**scope)
            found.append((await server.client.get("/api/queue")).json()["paused_by"])
        await server.scheduler.resume()
        found.append((await server.client.get("/api/queue")).json()["paused_by"])

        assert found == [["scheduler"], ["scheduler", "office"], ["office"]]


async def test_a_dry_run_of_a_retry_counts_last_attempts_and_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        policy = {"max_attempts": 2, "base_delay_seconds": 0.001}
        for _ in range(3):
            await server.ended((await server.scheduler.submit("fail", retry_policy=policy)).job_id)
        body = {"job_type": ["fail"]}

        counted = (await server.client.post("/api/jobs/retry", json={**body, "dry_run": True})).json()
        jobs = (await server.client.get("/api/jobs")).json()["items"]
        done = (await server.client.post("/api/jobs/retry", json=body)).json()

        assert (counted["retried"], len(jobs), done["retried"]) == (3, 9, 3)
        assert set(counted["job_ids"]) == {job["job_id"] for job in jobs if job["attempt"] == 3}

"""Answers over HTTP and by signed links: who may give them, how often, and what the previews of chats do."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nextslot.domain.signals import Link, link_token
from nextslot.domain.webhook_signature import secret_of
from nextslot.engine.webhooks.webhook_outbox import WebhookSettings
from nextslot.services.runtime_settings import ReloadableSettings
from nextslot.testing import Mailbox
from tests.support import eventually

from .support import Server
from .test_18_neighbours import client_of, neighbours

PUBLIC = "https://people.example"
CHAT = "http://127.0.0.1/services/T0/B0/secret"
WAIT = {"name": "release", "question": "May it <go> live?"}


@asynccontextmanager
async def office_with_chat(tmp_path: Path) -> AsyncIterator[tuple[Server, dict[str, httpx2.AsyncClient], Mailbox]]:
    """The office `a`, whose chat gets notices with links, and its neighbour `b`."""
    box = Mailbox()
    settings = {"webhooks": WebhookSettings(public_url=f"{PUBLIC}/"), "sender": box}
    async with neighbours(tmp_path, "a", "b", **settings) as (server, keys):
        await server.scheduler.offices.change("a", max_concurrent_jobs=1)
        await server.scheduler.webhooks.create(CHAT, ["job.awaiting_signal"], format="slack")
        yield server, keys, box


async def asked(server: Server, **wait: Any) -> str:
    job = await server.scheduler.submit("echo", {"text": "x"}, office_id="a", await_signal={**WAIT, **wait})
    return job.job_id


async def link_of(box: Mailbox, job_id: str) -> str:
    """Returns the path of the link in the notice of a job."""

    def found() -> str | None:
        texts = [json.loads(one.body)["text"] for one in box.messages]
        text = next((one for one in texts if job_id in one), None)
        return None if text is None else re.findall(rf"{PUBLIC}(/signal/\S+)", text)[0]

    await eventually(lambda: found() is not None, seconds=30)
    return found() or ""


async def status(server: Server, job_id: str) -> str:
    return str((await server.scheduler.job(job_id)).status)


async def test_an_answer_over_http_is_stored_once_and_names_its_sender(tmp_path: Path) -> None:
    async with office_with_chat(tmp_path) as (server, keys, _):
        job_id = await asked(server)
        at = f"/api/jobs/{job_id}/signals/release"
        _, submit = await server.scheduler.keys.create("agent", ["submit"], "a")
        async with client_of(server, submit) as agent:
            weak = await agent.post(at, json={"answer": "approve"})
        foreign = await keys["b"].post(at, json={"answer": "approve"})
        wrong = await keys["a"].post(at, json={"answer": "maybe"})
        assert await status(server, job_id) == "WAITING"

        first = await keys["a"].post(at, json={"payload": {"n": 1}, "signal_id": "s"})
        again = await keys["a"].post(at, json={"payload": {"n": 1}})
        other = await keys["a"].post(at, json={"answer": "reject"})
        listed = (await keys["a"].get(f"/api/jobs/{job_id}/signals")).json()["items"]
        audit = (await keys["admin"].get("/api/audit")).json()["items"]

        assert [one.status_code for one in (weak, foreign, wrong)] == [403, 404, 422]
        assert [one.status_code for one in (first, again, other)] == [201, 200, 409]
        assert first.json() == again.json() == listed[0]
        assert (first.json()["sent_by"], first.json()["payload"]) == ("a", {"n": 1})
        assert "was answered with 'approve' by a at" in other.text
        entries = [one for one in audit if one["target"] == at]
        assert {(one["actor"], one["details"]["after"]["answer"]) for one in entries} == {("a", "approve")}


async def test_what_waits_for_an_answer_is_listed_within_the_office_of_the_key(tmp_path: Path) -> None:
    async with office_with_chat(tmp_path) as (server, keys, _):
        mine = await asked(server)
        theirs = await server.scheduler.submit("echo", {"text": "x"}, office_id="b", await_signal=WAIT)
        plain = await server.scheduler.submit("echo", {"text": "x"}, office_id="a")

        async def found(key: str, **query: str) -> set[str]:
            answer = await keys[key].get("/api/jobs", params=query)
            return {one["job_id"] for one in answer.json()["items"]}

        assert await found("a", awaiting_signal="true") == {mine}
        assert await found("a", q="is:awaiting") == {mine}
        assert await found("a", q="is:awaiting", awaiting_signal="false") == set()
        assert await found("a", awaiting_signal="false") == {plain.job_id}
        assert await found("admin", awaiting_signal="true") == {mine, theirs.job_id}
        wrong = await keys["a"].get("/api/jobs", params={"awaiting_signal": "perhaps"})
        assert wrong.status_code == 422
        await keys["a"].post("/api/jobs/cancel", json={"awaiting_signal": True})
        assert (await status(server, mine), await status(server, theirs.job_id)) == ("CANCELLED", "WAITING")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
async def test_a_preview_of_a_link_answers_nothing(tmp_path: Path, method: str) -> None:
    async with office_with_chat(tmp_path) as (server, _, box):
        job_id = await asked(server)
        link = await link_of(box, job_id)

        preview = {"User-Agent": "Slackbot-LinkExpanding"}
        addresses = (link, f"{link}?answer=approve")
        shown = [await server.client.request(method, one, headers=preview) for one in addresses]

        assert {one.status_code for one in shown} == {200 if method in ("GET", "HEAD") else 405}
        assert await status(server, job_id) == "WAITING"
        assert await server.scheduler.signals(job_id) == ()


async def test_a_link_shows_the_question_and_answers_once(tmp_path: Path) -> None:
    async with office_with_chat(tmp_path) as (server, keys, box):
        job_id = await asked(server)
        link = await link_of(box, job_id)

        page = await server.client.get(link)
        answered = await server.client.post(f"{link}?answer=approve")
        replayed = await server.client.post(f"{link}?answer=reject")
        after = await server.client.get(link)
        await server.scheduler.wait(job_id)
        (signal,) = await server.scheduler.signals(job_id)
        audit = (await keys["admin"].get("/api/audit")).json()["items"]

        assert "May it &lt;go&gt; live?" in page.text
        assert page.text.count("<button>") == 2
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-store"
        assert (answered.status_code, replayed.status_code) == (200, 409)
        assert "was answered before" in replayed.text
        assert "does not wait for an answer" in after.text
        assert (signal.sent_by, signal.answer) == ("link", "approve")
        (entry,) = [one for one in audit if one["target"] == f"/api/jobs/{job_id}/signals/release"]
        assert (entry["actor"], entry["details"]["after"]) == ("link", {"answer": "approve"})
        assert link.rpartition("/")[2] not in str(audit)


async def test_a_link_that_was_changed_or_is_out_of_date_is_refused(tmp_path: Path) -> None:
    async with office_with_chat(tmp_path) as (server, _, box):
        mine, other = await asked(server), await asked(server, name="other")
        link, foreign = await link_of(box, mine), await link_of(box, other)
        content, _, mark = link.rpartition("/")[2].partition(".")
        secret = server.scheduler._runtime.webhooks._server_secret
        now = server.scheduler._clock.now()
        expired = link_token(secret, Link(mine, "release", now.after(-1)))
        renamed = link_token(secret, Link(mine, "other", now.after(60)))
        tokens = [
            f"{content}.{mark[:-1]}{'0' if mark[-1] != '0' else '1'}",
            f"{content}.",
            content,
            f"{foreign.rpartition('/')[2].partition('.')[0]}.{mark}",
            f"{content}A.{mark}",
            f"{content}.{mark.upper()}",
            link_token("guess", Link(mine, "release", now.after(60))),
            expired,
            "ü",
            "x" * 4000,
        ]

        for token in tokens:
            shown = await server.client.get(f"/signal/{token}")
            used = await server.client.post(f"/signal/{token}?answer=approve")
            assert (shown.status_code, used.status_code) == (410, 409), token
            assert "cannot be used" in shown.text
        moved = await server.client.post(f"/signal/{renamed}?answer=approve")
        unclear = await server.client.post(f"{link}?answer=fail")
        crossed = await server.client.post(f"{link}?answer=approve", headers={"Origin": "https://evil.example"})

        assert (moved.status_code, unclear.status_code, crossed.status_code) == (409, 422, 403)
        assert [await status(server, one) for one in (mine, other)] == ["WAITING", "WAITING"]


async def test_a_link_to_an_earlier_wait_does_not_answer_the_next_one_of_the_same_name(tmp_path: Path) -> None:
    async with office_with_chat(tmp_path) as (server, keys, box):
        asks: list[int] = []

        async def session(run: Any) -> None:
            asks.append(run.attempt)
            if len(asks) < 3:
                run.park("go")

        server.scheduler.job_types.add("asks", session)
        job = await server.scheduler.submit("asks", office_id="a")
        first = await _waiting(server, job.job_id)
        old = await link_of(box, first)
        await keys["a"].post(f"/api/jobs/{job.job_id}/signals/go", json={})
        second = await _waiting(server, job.job_id)
        assert second != first

        replayed = await server.client.post(f"{old}?answer=approve")

        assert replayed.status_code == 409
        assert await status(server, second) == "WAITING"
        fresh = await server.client.post(f"{await link_of(box, second)}?answer=approve")
        assert fresh.status_code == 200
        await server.scheduler.wait(job.job_id)


async def _waiting(server: Server, job_id: str) -> str:
    """Returns the last job of a chain, once it waits for an answer."""
    async with asyncio.timeout(60):
        async for event in server.scheduler.events():
            last = (await server.scheduler.chain(job_id))[-1]
            if event.type == "job_awaiting_signal" and event.job_id == last.job_id and last.awaiting is not None:
                return last.job_id
    raise AssertionError(job_id)


async def test_a_new_secret_of_the_server_ends_the_links_of_before(tmp_path: Path) -> None:
    async with office_with_chat(tmp_path) as (server, keys, box):
        job_id = await asked(server)
        old = await link_of(box, job_id)
        settings = WebhookSettings(secret=secret_of("n" * 32), public_url=PUBLIC)
        await server.scheduler.settings.apply(ReloadableSettings(webhooks=settings), {}, {})

        shown, used = await server.client.get(old), await server.client.post(f"{old}?answer=approve")
        later = await asked(server, name="later")
        fresh = await server.client.post(f"{await link_of(box, later)}?answer=approve")

        assert (shown.status_code, used.status_code, fresh.status_code) == (410, 409, 200)
        assert "answer with `nextslot approve`" in used.text
        assert await status(server, job_id) == "WAITING"
        assert (await keys["a"].post(f"/api/jobs/{job_id}/signals/release", json={})).status_code == 201


async def test_with_named_people_a_link_counts_only_if_they_are_told_so(tmp_path: Path) -> None:
    async with office_with_chat(tmp_path) as (server, keys, box):
        mine, shared = await asked(server, answered_by=["a"]), await asked(server, answered_by=["a", "link"])

        refused = await server.client.post(f"{await link_of(box, mine)}?answer=approve")
        taken = await server.client.post(f"{await link_of(box, shared)}?answer=approve")
        not_named = await keys["admin"].post(f"/api/jobs/{mine}/signals/release", json={})
        named = await keys["a"].post(f"/api/jobs/{mine}/signals/release", json={})

        assert (refused.status_code, taken.status_code) == (409, 200), taken.text
        assert "can be answered only by a" in refused.text
        assert (not_named.status_code, named.status_code) == (403, 201)


@pytest.mark.parametrize("name", ["deadline", "link"])
async def test_no_key_answers_in_the_name_of_a_deadline_or_a_link(tmp_path: Path, name: str) -> None:
    async with neighbours(tmp_path, "a") as (_, keys):
        refused = await keys["admin"].post("/api/keys", json={"name": name, "scopes": ["operate"], "office_id": "a"})

        assert refused.status_code == 422
        assert f"name is '{name}'" in refused.json()["detail"]
        assert "give another name" in refused.json()["detail"]


async def test_a_key_that_may_submit_parks_and_leaves_checkpoints_for_the_runs_of_its_own_jobs_only(
    tmp_path: Path,
) -> None:
    async with office_with_chat(tmp_path) as (server, keys, _):
        begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        is_over = asyncio.Event()

        async def works(run: Any) -> None:
            begun.set_result(run.run_id)
            await is_over.wait()

        server.scheduler.job_types.add("works", works)
        texts = {name: (await server.scheduler.keys.create(name, ["submit"], "a"))[1] for name in ("mine", "yours")}
        _, everywhere = await server.scheduler.keys.create("everywhere", ["submit"])
        async with client_of(server, texts["mine"]) as client:
            made = await client.post("/api/jobs", json={"job_type": "works"})
            job_id = made.json()["job_id"]
        run_id = await asyncio.wait_for(begun, 60)

        async def sent(text: str) -> list[int]:
            async with client_of(server, text) as client:
                path = f"/api/job-runs/{run_id}"
                kept = await client.put(f"{path}/checkpoint", json={"value": text})
                parked = await client.post(f"{path}/park", json={"name": "go"})
            assert all("'mine' has made this job" in one.text for one in (kept, parked) if one.status_code == 403)
            return [kept.status_code, parked.status_code]

        assert await sent(texts["yours"]) == await sent(everywhere) == [403, 403]
        assert (await server.scheduler.job(job_id)).status == "RUNNING"
        assert (await keys["a"].get(f"/api/jobs/{job_id}")).json()["checkpoint"] is None
        assert await sent(texts["mine"]) == [200, 202]
        is_over.set()


async def test_nobody_reads_a_link_who_may_only_read(tmp_path: Path) -> None:
    async with office_with_chat(tmp_path) as (server, _, box):
        job_id = await asked(server)
        token = (await link_of(box, job_id)).rpartition("/")[2]
        _, text = await server.scheduler.keys.create("reader", ["read"])
        paths = [
            f"/api/jobs/{job_id}",
            f"/api/jobs/{job_id}/why",
            "/api/events",
            "/api/webhook-deliveries",
            "/api/webhooks",
            "/api/jobs",
            "/api/queue?office_id=a",
        ]

        async with client_of(server, text) as reader:
            answers = [await reader.get(path) for path in paths]

        assert not any(token in one.text for one in answers)


async def test_a_waiting_job_of_an_archived_office_can_be_answered_and_goes_on_when_the_office_does(
    tmp_path: Path,
) -> None:
    async with office_with_chat(tmp_path) as (server, keys, _):
        job_id = await asked(server)
        rejected = await asked(server)
        await server.scheduler.offices.change("a", status="archived")

        answers = [
            await keys["admin"].post(f"/api/jobs/{one}/signals/release", json={"answer": word})
            for one, word in ((job_id, "approve"), (rejected, "reject"))
        ]

        assert [one.status_code for one in answers] == [201, 201]
        assert await status(server, rejected) == "CANCELLED"
        await server.scheduler.offices.change("a", status="active")
        assert (await server.scheduler.wait(job_id)).job.status == "COMPLETED"

"""Offices whose names begin alike are strangers to each other: keys, lists, idempotency keys, streams."""

from pathlib import Path
from typing import Any

from .support import Server, serving


async def keys_of(server: Server, *offices: str) -> list[dict[str, str]]:
    """Makes the offices, and for each a key that may change it."""
    await server.scheduler.keys.create("root", ["admin"])
    made = []
    for office_id in offices:
        await server.scheduler.offices.create(office_id)
        _, text = await server.scheduler.keys.create(f"key of {office_id}", ["submit"], office_id=office_id)
        made.append({"X-API-Key": text})
    return made


async def submit(server: Server, office_id: str, headers: dict[str, str]) -> Any:
    return await server.client.post("/api/jobs", json={"job_type": "echo", "office_id": office_id}, headers=headers)


async def test_a_key_of_an_office_opens_none_whose_name_begins_alike(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        short, long = await keys_of(server, "a", "ab")

        answers = [
            (await submit(server, office_id, key)).status_code for key in (short, long) for office_id in ("a", "ab")
        ]

        assert answers == [201, 404, 404, 201]


async def test_a_list_and_an_event_of_one_office_show_nothing_of_one_whose_name_begins_alike(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        short, long = await keys_of(server, "a", "ab")
        job = (await submit(server, "ab", long)).json()
        await server.scheduler.wait(job["job_id"])

        lists = [(await server.client.get(f"/api/{name}", headers=short)).json() for name in ("jobs", "events")]
        one = await server.client.get(f"/api/jobs/{job['job_id']}", headers=short)

        assert [found["items"] for found in lists] == [[], []]
        assert one.status_code == 404


async def test_two_offices_may_use_the_same_idempotency_key(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        keys = await keys_of(server, "a", "ab")

        offices = ("a", "ab", "a", "ab")
        answers = [
            await submit(server, office, {**keys[number % 2], "Idempotency-Key": "same"})
            for number, office in enumerate(offices)
        ]
        jobs = [answer.json()["job_id"] for answer in answers]

        assert jobs[:2] == jobs[2:]
        assert jobs[0] != jobs[1]

"""Spec 19: statistics over HTTP: who sees which office, and what a wrong range is answered with."""

from pathlib import Path
from typing import Any

import pytest

from nextslot import AsyncClient

from .support import serving
from .test_18_neighbours import neighbours


def ended(answer: Any) -> int:
    assert answer.status_code == 200, answer.text
    return sum(one["completed"] for one in answer.json()["points"])


async def test_a_series_is_points_without_a_gap_with_the_fields_of_the_document(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        job = (await server.client.post("/api/jobs", json={"job_type": "echo"})).json()
        await server.scheduler.wait(job["job_id"])

        series = (await server.client.get("/api/stats/series", params={"step": 60})).json()

        document = (await server.client.get("/openapi.json")).json()
        [place] = [name for name in document["components"]["schemas"] if name.endswith("SeriesPoint")]
        fields = document["components"]["schemas"][place]["properties"]
        assert (series["step"], series["counted_from"]) == (60, None)
        assert {tuple(one) for one in [series["total"], *series["points"]]} == {tuple(fields)}
        assert (series["total"]["completed"], series["total"]["at"]) == (1, series["points"][0]["at"])
        assert series["points"][0]["at"].endswith(":00.000000Z")
        last = series["points"][-2:]
        assert sum(one["completed"] for one in last) == 1
        assert last[-1]["queue_depth"] == 0
        assert max(one["duration_p95_seconds"] or 0 for one in last) < 60


async def test_an_office_key_sees_its_own_office_and_404_for_another(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (server, keys):
        for office_id, count in (("a", 1), ("b", 2)):
            for _ in range(count):
                made = (await keys[office_id].post("/api/jobs", json={"job_type": "echo"})).json()
                await server.scheduler.wait(made["job_id"])
        path = "/api/stats/series"

        assert ended(await keys["a"].get(path)) == 1
        assert ended(await keys["b"].get(path)) == 2
        assert ended(await keys["admin"].get(path)) == 3
        assert ended(await keys["admin"].get(path, params={"office_id": "b", "job_type": "echo"})) == 2
        assert ended(await keys["admin"].get(path, params={"job_type": "no such type"})) == 0
        assert (await keys["a"].get(path, params={"office_id": "b"})).status_code == 404
        assert (await keys["admin"].get(path, params={"office_id": "nowhere"})).status_code == 404


@pytest.mark.parametrize(
    ("query", "field", "sentence"),
    [
        ({"step": "7"}, "step", "must be one of 60, 300, 900, 3600, 86400 seconds"),
        ({"step": "many"}, "step", "must be a whole number"),
        ({"from": "2026-11-15"}, "from", "a time such as"),
        ({"from": "2026-11-15T06:30:00"}, "from", "has no time zone; add Z"),
        ({"from": "0001-01-01T00:00:00+09:00", "step": "86400"}, "from", "before 1970"),
        ({"from": "9999-12-31T23:59:59-09:00"}, "from", "before now"),
        ({"from": "1999-01-01T00:00:00Z"}, "step", "use 86400, or a later `from`"),
        ({"from": "1999-01-01T00:00:00Z", "step": "86400"}, "step", "at most 1,000 fit"),
        ({"kind": "other"}, "kind", "'job' or 'direct'"),
        ({"until": "2026-11-15T06:30:00Z"}, "until", ""),
    ],
)
async def test_a_wrong_query_is_answered_with_its_field_and_a_sentence(
    tmp_path: Path, query: dict[str, str], field: str, sentence: str
) -> None:
    async with serving(tmp_path) as server:
        answer = await server.client.get("/api/stats/series", params=query)

        assert answer.status_code == 422, answer.text
        assert field in answer.text
        assert sentence in answer.text


async def test_the_client_reads_a_series(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, AsyncClient(str(server.client.base_url)) as client:
        job = await client.submit("echo")
        await client.wait(job.job_id)

        series = await client.stats.series(step=60, office_id="default", job_type="echo", kind="job")

        assert sum(one.completed for one in series.points[-2:]) == 1
        assert series.points[0].at.utcoffset() is not None

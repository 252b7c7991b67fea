"""Spec 4.19 on several nodes: a rate is one bucket for all of them."""

import asyncio
from pathlib import Path

from nextslot import Limits, NewJob
from nextslot.domain.limits import Rate, RateUnit
from tests.nodes.test_nodes import database, node, running

__all__ = ["database"]


async def test_a_rate_holds_across_nodes_and_offices(database: str, tmp_path: Path) -> None:
    limits = Limits(rates={"type:work": {RateUnit.STARTS: Rate(600, 3)}})
    nodes = [node(database, name, tmp_path, limits=limits) for name in "ab"]
    async with running(*nodes):
        for office_id in "op":
            await nodes[0].offices.create(office_id, max_concurrent_jobs=0)
        offices = ["o", "p", "default"] * 6
        made = await asyncio.gather(
            *(
                nodes[number % 2].submit_many([NewJob(job_type="work", office_id=office_id)])
                for number, office_id in enumerate(offices)
            )
        )

        ended = [await nodes[0].wait(job.job_id) for [job] in made]

        assert {one.job.worker_id.partition("/")[0] for one in ended if one.job.worker_id} <= {"a", "b"}
        at = sorted(one.job.started_at for one in ended if one.job.started_at is not None)
        left, before = 3.0, at[0]
        for start in at:
            left, before = min(3.0, left + (start - before) / 100_000) - 1, start
            assert left > -1e-6, "600 a minute are one in a tenth of a second"
        assert at[-1] - at[0] >= 1_500_000 - 1

"""Limits of keys on several nodes: the limit of a key counts the runs of all of them."""

import asyncio
from pathlib import Path
from typing import Any

from nextslot import Limits, NewJob
from tests.nodes.test_nodes import database, node, running

__all__ = ["database"]


async def test_of_one_key_so_many_run_at_once_as_its_pattern_says_on_all_nodes_together(
    database: str, tmp_path: Path
) -> None:
    limits = Limits(limit_keys={"customer:*": 1, "customer:big*": 2})
    schedulers = [node(database, name, tmp_path, limits=limits, node_running=2) for name in "ab"]
    # Moments of starts and ends, by key: 1 for a start.
    steps: dict[str, list[tuple[int, str]]] = {"customer:a": [], "customer:b": [], "customer:big": []}
    for one in schedulers:

        @one.job_type("serve")
        async def serve(run: Any, key: str, name: str = one.node) -> None:
            steps[key].append((1, name))
            await asyncio.sleep(0.02)
            steps[key].append((-1, name))

    async with running(*schedulers):
        await schedulers[0].pause()
        keys = list(steps) * 10  # Four fit at once: two nodes have as many slots.
        made = await asyncio.gather(
            *(
                schedulers[number % 2].submit_many([NewJob(job_type="serve", params={"key": key}, limit_keys=[key])])
                for number, key in enumerate(keys)
            )
        )
        await schedulers[0].resume()
        ended = [await asyncio.wait_for(schedulers[0].wait(job.job_id), 60) for [job] in made]

    assert {one.status for one in ended} == {"COMPLETED"}
    assert [most(steps[key]) for key in steps] == [1, 1, 2]
    assert {name for of_key in steps.values() for _, name in of_key} == {"a", "b"}


def most(steps: list[tuple[int, str]]) -> int:
    """Returns how many ran at once at most."""
    return max(sum(step for step, _ in steps[:end]) for end in range(1, len(steps) + 1))

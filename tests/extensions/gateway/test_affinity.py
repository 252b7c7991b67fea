"""Requests for several models on one resource: those for the loaded model go together, for a limited time."""

from pathlib import Path
from typing import Any

import pytest

from nextslot import NewJob
from nextslot.extensions.gateway.settings import ModelSettings
from tests.extensions.gateway.fake_upstream import fake_upstream
from tests.extensions.gateway.support import HELLO, chat, directs, gateway
from tests.extensions.gateway.test_waiting import callers
from tests.support import eventually

# See `support.gateway`.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


async def answered(tmp_path: Path, wanted: str, wait: float, **settings: Any) -> tuple[str, list[Any]]:
    """Sends requests for these models while another occupies the slot. Returns the order in which they reached the
    upstream, and the stored executions by their start.
    """
    async with (
        fake_upstream() as upstream,
        gateway(tmp_path, upstream.base_url, affinity_wait_seconds=wait, **settings) as server,
    ):
        bodies = [chat("held"), *(chat(f"brief-{one}", stream=bool(n % 2)) for n, one in enumerate(wanted))]
        async with callers(server, bodies) as tasks:
            upstream.opened.set()
            for task in tasks:
                assert (await task).status_code == 200
        await eventually(lambda: not server.scheduler._runtime.direct.callers)
        started = sorted((await directs(server))[:-1], key=lambda one: one.started_at)
        return "".join(one.removeprefix("brief-") for one in upstream.models[1:]), started


async def test_without_the_setting_requests_start_in_order(tmp_path: Path) -> None:
    assert (await answered(tmp_path, "abcabc", wait=0))[0] == "abcabc"


async def test_requests_for_the_loaded_model_go_together(tmp_path: Path) -> None:
    assert (await answered(tmp_path, "abcabc", wait=100))[0] == "aabbcc"


async def test_names_that_share_an_affinity_go_together(tmp_path: Path) -> None:
    models = {"brief-b": ModelSettings(upstream="fake", affinity="brief-a")}

    assert (await answered(tmp_path, "acbacb", wait=100, models=models))[0] == "ababcc"


async def test_a_request_for_another_model_is_passed_over_no_longer_than_the_bound(tmp_path: Path) -> None:
    order, started = await answered(tmp_path, "a" + "b" + 20 * "a", wait=1)

    models = [one.params["model"] for one in started]
    assert models == [f"brief-{one}" for one in order]
    passed = started[: models.index("brief-b")]
    assert len(passed) > 1, "requests for what is loaded passed the request for another model"
    assert len(passed) < 21, "and did not all pass it"
    assert passed[-1].started_at - passed[1].started_at <= 1_000_000


async def test_jobs_and_callers_of_one_model_go_together(tmp_path: Path) -> None:
    async with (
        fake_upstream() as upstream,
        gateway(tmp_path, upstream.base_url, affinity_wait_seconds=100) as server,
    ):
        async with callers(server, [chat("held")]):
            made = await server.scheduler.submit_many(
                [
                    NewJob(job_type="model_request", params={"model": f"brief-{one}", "body": {"messages": HELLO}})
                    for one in "abcabc"
                ]
            )
            changed = await server.scheduler.submit(
                "model_request", {"model": "brief-c", "body": {"messages": HELLO}}, urgent=True
            )
            changed = await server.scheduler.change(
                changed.job_id, params={"model": "brief-b", "body": {"messages": HELLO}}
            )
            upstream.opened.set()
            ended = [await server.scheduler.wait(job.job_id) for job in [*made, changed]]

        assert [one.job.status for one in ended] == ["COMPLETED"] * 7
        assert [job.affinity for job in made] == [f"brief-{one}" for one in "abcabc"]
        assert changed.affinity == "brief-b"
        assert upstream.models[1:] == [f"brief-{one}" for one in "bbbaacc"]

"""Kill -9 of a real Ray and of all around its jobs; only `scripts/ray_conformance.py` runs this file."""

import os
from pathlib import Path

from nextslot.extensions.ray.ray_engine import RayEngine
from tests.engines.ray_cluster import DASHBOARD, RayCluster
from tests.engines.test_mixed_kills import SLOTS, KillLoop

# On a machine with other work, Ray takes a minute to start a job, and as long to start again itself.
SETTINGS = {"lease_seconds": 30.0, "start_timeout_seconds": 600.0, "slots": SLOTS}


def test_jobs_on_ray_end_whatever_is_killed(tmp_path: Path) -> None:
    ray = RayCluster(os.environ["NEXTSLOT_TEST_RAY_PROGRAM"], Path(os.environ["NEXTSLOT_TEST_RAY_PLACE"]))

    def kill_worker() -> bool:
        was_there = ray.kill_worker()
        ray.start_worker()
        return was_there

    def kill_everything() -> bool:
        was_there = ray.kill_everything()
        ray.start()
        return was_there

    faults = {"Ray's worker": kill_worker, "all of Ray": kill_everything}
    loop = KillLoop(tmp_path, RayEngine({"address": DASHBOARD}), DASHBOARD, faults, SETTINGS, wait_for_wrapper=30.0)
    loop.run(lives=4)

    assert all(loop.kills[name] for name in ("scheduler", "wrapper", *faults))

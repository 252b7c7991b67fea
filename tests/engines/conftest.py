"""The engines that the conformance suite runs on."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nextslot.executors.engines.contract import Engine
from nextslot.executors.engines.local_engine import LocalEngine
from nextslot.extensions.ray.ray_engine import RayEngine
from nextslot.extensions.slurm.slurm_engine import SlurmEngine
from tests.engines.engine_doubles import LyingEngine
from tests.engines.fake_ray import FakeRay
from tests.engines.rig import PATIENCE, Rig
from tests.engines.slurm_cluster import SlurmCluster, cluster


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with cluster(tmp_path_factory.mktemp("slurm") / "cluster") as found:
        yield found


@pytest.fixture
def fake_ray(tmp_path: Path) -> Iterator[FakeRay]:
    with FakeRay(tmp_path) as found:
        yield found
        assert found.problems == []


def engine_of(request: pytest.FixtureRequest, kind: str) -> Engine:
    if kind == "slurm":
        there: SlurmCluster = request.getfixturevalue("slurm")
        return SlurmEngine({"config_file": str(there.config)})
    if kind == "ray":
        address = os.environ.get("NEXTSLOT_TEST_RAY") or request.getfixturevalue("fake_ray").address
        return RayEngine({"address": address, "cpus": 0.1})
    return {"local": LocalEngine, "lying": LyingEngine}[kind]()


@pytest.fixture(params=["local", "lying", "slurm", "ray"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rig(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Rig:
    return Rig(tmp_path, engine_of(request, kind))


@pytest.fixture
def impatient(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Rig:
    """One whose leases are short."""
    return Rig(tmp_path, engine_of(request, kind), lease_seconds=PATIENCE / 10)

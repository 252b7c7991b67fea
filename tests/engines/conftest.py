"""The engines that the conformance suite runs on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nextslot.executors.engines.contract import Engine
from nextslot.executors.engines.local_engine import LocalEngine
from nextslot.extensions.slurm.slurm_engine import SlurmEngine
from tests.engines.engine_doubles import LyingEngine
from tests.engines.rig import Rig
from tests.engines.slurm_cluster import SlurmCluster, cluster


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with cluster(tmp_path_factory.mktemp("slurm") / "cluster") as found:
        yield found


def engine_of(request: pytest.FixtureRequest, kind: str) -> Engine:
    if kind == "slurm":
        there: SlurmCluster = request.getfixturevalue("slurm")
        return SlurmEngine({"config_file": str(there.config)})
    return {"local": LocalEngine, "lying": LyingEngine}[kind]()


@pytest.fixture(params=["local", "lying", "slurm"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rig(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Rig:
    return Rig(tmp_path, engine_of(request, kind))


@pytest.fixture
def impatient(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Rig:
    """One whose leases are short."""
    return Rig(tmp_path, engine_of(request, kind), lease_seconds=6.0)

"""The tables `[engines.NAME]` and the tables that name an engine: each problem has its place and a remedy."""

from pathlib import Path

import pytest

from nextslot import Scheduler
from nextslot.config import load
from nextslot.errors import Invalid
from nextslot.scheduler_from_config import compose

GOOD = """
[engines.box]
kind = "local"
slots = 3

[engines.cluster]
kind = "slurm"
directory = "shared"
lease_seconds = 60
start_timeout_seconds = 0
options = { partition = "debug", cpus = 2 }

[engines.many]
kind = "ray"
options = { address = "https://ray.example:8265", token_env = "RAY_AUTH_TOKEN" }

[job_types.train]
command = ["train"]
engine = "cluster"
engine_options = { time = "1:00:00" }
"""


def problems(directory: Path, text: str) -> list[str]:
    (directory / "nextslot.toml").write_text(text)
    with pytest.raises(Invalid) as refused:
        compose(load(directory, environment={}))
    return [str(problem) for problem in refused.value.problems]


def test_the_engines_of_a_configuration_are_there_and_are_resources(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text(GOOD)

    scheduler = compose(load(tmp_path, environment={}))
    there = scheduler.job_types.engines.settings
    placing = scheduler.job_types.placing("train")

    assert [(one.name, one.kind, one.slots) for one in there.values()] == [
        ("box", "local", 3),
        ("cluster", "slurm", 10),
        ("many", "ray", 10),
    ]
    assert there["box"].directory == tmp_path / "engines" / "box"
    assert there["cluster"].directory == tmp_path / "shared"
    assert (there["cluster"].python, there["cluster"].lease_seconds) == ("python3", 60)
    assert there["cluster"].start_timeout_seconds is None
    assert "CUDA_VISIBLE_DEVICES" in there["many"].variables
    assert placing is not None
    spec = placing.spec({}, None, None)
    assert spec.options == {"partition": "debug", "cpus": 2, "time": "1:00:00"}
    assert scheduler.job_types.get("train").resources == {"cluster": 1}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[engines.x]\nkind = "locl"', "engines.x.kind: there is no such kind; there are: local, ray, slurm"),
        ('[engines."a b"]\nkind = "local"', "is no name for an engine"),
        ('[engines.x]\nkind = "local"\nslots = 0', "engines.x.slots is 0"),
        ('[engines.x]\nkind = "local"\noptions = { gpus = 1 }', "is not an option of a local engine"),
        ('[engines.x]\nkind = "slurm"\noptions = { cpus = "2" }', "engines.x.options.cpus is not a whole number"),
        ('[engines.x]\nkind = "ray"\noptions = { address = "ray:1" }', "engines.x.options.address is not an address"),
        ('[job_types.t]\ncommand = ["x"]\nengine = "gone"', "there is no engine 'gone'; add [engines.gone]"),
        (
            '[engines.x]\nkind = "local"\n[limits.resources]\nx = 2',
            "is an engine, which is a resource itself; set slots and units in [engines.x]",
        ),
        (
            '[engines.x]\nkind = "ray"\n[job_types.t]\ncommand = ["x"]\nengine = "x"\n'
            'engine_options = { runtime_env = { env_vars = { A = "b" } } }',
            "job_types.t.engine_options.runtime_env.env_vars is not passed on",
        ),
        (
            '[engines.x]\nkind = "slurm"\n[job_types.t]\ncommand = ["x"]\nengine = "x"\n'
            'engine_options = { programs = "/opt" }',
            "job_types.t.engine_options.programs is an option of the engine itself",
        ),
        ('[extensions]\ndisabled = ["ray"]\n[engines.x]\nkind = "ray"', "there are: local, slurm"),
    ],
)
def test_each_mistake_in_an_engine_has_its_place_and_a_remedy(tmp_path: Path, text: str, problem: str) -> None:
    found = problems(tmp_path, text)

    assert [problem in one for one in found] == [True], found


def test_a_program_gives_its_scheduler_the_same_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/nextslot.db"

    scheduler = Scheduler(url, engines={"box": {"kind": "local", "slots": 3}})
    with pytest.raises(Invalid) as refused:
        Scheduler(url, engines={"a b": {"kind": "local", "slots": 0}, "c": {"kind": "locl"}})

    assert scheduler.job_types.engines.settings["box"].directory == tmp_path / "engines" / "box"
    assert {one.field for one in refused.value.problems} == {"engines.a b", "engines.a b.slots", "engines.c.kind"}

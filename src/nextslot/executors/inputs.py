"""The inputs of a run: results and artifacts of the prerequisites of its job, for handlers and commands.

A prerequisite succeeds once, and what its run has stored does not change afterwards. So every read after the start of a
job returns the same inputs, also for its retries.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from nextslot.domain import Artifact, Run, RunStatus
from nextslot.errors import Invalid

from .run_files import RunFiles

# The prefix and the suffix of a placeholder for an input: `{inputs.NAME.path}`.
PREFIX, SUFFIX = "inputs.", ".path"


class Input(NamedTuple):
    """The result of a prerequisite. `path` is the directory of its artifacts, on the machine where it ran."""

    job_id: str
    run_id: str
    result: Any
    artifacts: tuple[Artifact, ...]
    path: Path

    def file(self, name: str) -> Path:
        return self.path / name

    def to_dict(self) -> dict[str, Any]:
        files = [{"name": one.name, "path": str(self.file(one.name)), "size": one.size} for one in self.artifacts]
        about = {"job_id": self.job_id, "run_id": self.run_id, "result": self.result}
        return {**about, "path": str(self.path), "artifacts": files}


# Inputs by the name of the prerequisite; None if it was skipped.
Inputs = Mapping[str, Input | None]


def inputs_of(found: Mapping[str, Run], files: RunFiles) -> dict[str, Input | None]:
    """Makes inputs from the runs by which the prerequisites have succeeded."""
    return {
        name: Input(run.job_id, run.run_id, run.result, run.artifacts, files.artifacts_root(run.run_id).absolute())
        if run.status is RunStatus.COMPLETED
        else None
        for name, run in found.items()
    }


def as_json(inputs: Inputs) -> bytes:
    return orjson.dumps({name: None if one is None else one.to_dict() for name, one in inputs.items()})


def of_json(text: Mapping[str, Any]) -> dict[str, Input | None]:
    """Reads the text that `as_json` has written."""

    def read(one: Mapping[str, Any]) -> Input:
        path = Path(one["path"])
        artifacts = tuple(
            Artifact(name=file["name"], path=file["path"], size=file["size"]) for file in one["artifacts"]
        )
        return Input(one["job_id"], one["run_id"], one["result"], artifacts, path)

    return {name: None if one is None else read(one) for name, one in text.items()}


def is_input(placeholder: str) -> bool:
    return placeholder.startswith(PREFIX) and placeholder.endswith(SUFFIX) and len(placeholder) > len(PREFIX + SUFFIX)


def argument(placeholder: str, inputs: Inputs) -> str:
    """Returns the argument for `inputs.NAME.path`: the directory of the artifacts of that prerequisite."""
    name = placeholder.removeprefix(PREFIX).removesuffix(SUFFIX)
    if name not in inputs:
        there = ", ".join(inputs) or "none"
        raise Invalid(
            f"the command needs the input {name!r}, which the job does not wait for (inputs: {there})", "command"
        )
    found = inputs[name]
    if found is None:
        raise Invalid(f"the command needs the input {name!r}, whose job was skipped", "command")
    return str(found.path)

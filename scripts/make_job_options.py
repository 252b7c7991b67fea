"""Writes a part of src/nextslot/client/keyword_arguments.py: the keyword arguments of a submission, for type checkers.

    uv run python scripts/make_job_options.py

A type checker reads keyword arguments only where they are written out, so this list is made from the declaration of a
request (`domain.NewJob`); tests/domain/test_declared_once.py fails while the file is not what this makes.
"""

from pathlib import Path

from nextslot.domain import NewJob
from nextslot.domain.declared_values import (
    Declared,
    declared,
    is_time,
    is_words,
)

TARGET = Path(__file__).parents[1] / "src/nextslot/client/keyword_arguments.py"
# What only the scheduler itself says.
NOT_ASKED = {"schedule_id", "created_by"}
# What a verb names by itself, and an item of a list by a key.
OWN = ("job_type", "template_id", "params", "key")
_BEGIN, _END = "writes this file from `domain.NewJob`.\n", "\n\n# End.\n"
_HEAD = "class JobOptions(TypedDict, total=False):\n"
_NEXT = '''

class NewJob(JobOptions, total=False):
    """One of many: its type or template, its parameters, and the `key` by which others of the request depend on it."""

'''
_KINDS = {"resources": "Mapping[str, int] | Sequence[str]", "depends_on": "Sequence[str]"}


def text() -> str:
    """Returns the whole file, with its part made anew."""
    before, rest = TARGET.read_text().split(_BEGIN)
    after = rest.split(_END)[1]
    said = {one.name: f"    {one.name}: {_kind(one)}\n" for one in declared(NewJob) if one.name not in NOT_ASKED}
    made = _HEAD + "".join(said[name] for name in said if name not in OWN) + _NEXT + "".join(said[name] for name in OWN)
    return before + _BEGIN + made + _END + after


def _kind(field: Declared) -> str:
    if field.name in _KINDS:
        return _KINDS[field.name]
    if is_time(field.type):
        return "Time"
    if is_words(field.type):
        return "str"
    return field.type.__name__ if isinstance(field.type, type) and field.type.__module__ == "builtins" else "Json"


if __name__ == "__main__":
    TARGET.write_text(text())

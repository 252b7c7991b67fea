"""Prints the tables of docs/configuration.md from the declarations of the settings.

    uv run python scripts/make_configuration_tables.py

tests/config/test_config.py fails while the page has other tables.
"""

import sys
from collections.abc import Iterator

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from nextslot.config.fields import table_of
from nextslot.config.settings import Section, settings_class


def tables() -> str:
    """Returns the tables of docs/configuration.md, one for each section, generated from the declarations."""
    return "\n".join(_table(name, field) for name, field in settings_class().model_fields.items())


def _table(name: str, field: FieldInfo) -> str:
    section, is_many = table_of(field.annotation)
    lines = [f"### {name}{'.NAME' if is_many else ''}", ""]
    if section is None:
        return "\n".join([*lines, field.description or "", ""])
    lines += ["| setting | default | meaning |", "|---|---|---|"]
    lines += [f"| `{path}` | {default} | {meaning} |" for path, default, meaning in _rows(section, "")]
    return "\n".join([*lines, ""])


def _rows(section: type[Section], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in section.model_fields.items():
        yield prefix + name, _default(section, field), field.description or ""
        inner, is_many = table_of(field.annotation)
        if inner is not None:
            yield from _rows(inner, f"{prefix}{name}.{'NAME.' if is_many else ''}")


def _default(section: type[Section], field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ([], {}, ""):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(tables())

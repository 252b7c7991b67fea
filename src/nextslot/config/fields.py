"""Conversion of declared settings: all values with their paths, and values from text. `loading` calls it."""

import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, SecretStr

from .settings import Section, settings_class

_TRUTHS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def leaves(section: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields every setting with its path; of offices and roles, only the settings that are set."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from leaves(value, (*path, name))
        else:
            yield from _leaves_of_value((*path, name), value)


def _leaves_of_value(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves_of_value((*path, name), inner)
    elif isinstance(value, Section):
        for name in type(value).model_fields:
            if name in value.model_fields_set:
                yield from _leaves_of_value((*path, name), getattr(value, name))
    else:
        yield path, value


def from_text(path: tuple[str, ...], text: str) -> Any:
    """Converts the text of a variable to the type of the setting. Returns text that cannot be converted as it is, so
    that the validation refuses it."""
    kind = _plain(_annotation(path))
    if kind in (str, SecretStr) or typing.get_origin(kind) is Literal:
        return text
    if kind is bool:
        return _TRUTHS.get(text.strip().lower(), text)
    if typing.get_origin(kind) is list and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",")]
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if found.keys() == {"value"} else text


def _annotation(path: tuple[str, ...]) -> Any:
    here: Any = settings_class()
    for part in path:
        here = _plain(here)
        if isinstance(here, type) and issubclass(here, BaseModel):
            field = here.model_fields.get(part)
            here = field.annotation if field else Any
        elif typing.get_origin(here) is dict:
            here = typing.get_args(here)[1]
        else:
            return Any
    return here


def _plain(annotation: Any) -> Any:
    """Returns an annotation without `None` and without its constraints."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _plain(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not types.NoneType]
        return _plain(kinds[0])
    return annotation


def table_of(annotation: Any) -> tuple[type[Section] | None, bool]:
    """Returns the section type of a field, and whether the field maps names to sections of this type."""
    kind = _plain(annotation)
    is_many = typing.get_origin(kind) is dict
    if is_many:
        kind = _plain(typing.get_args(kind)[1])
    return (kind, is_many) if isinstance(kind, type) and issubclass(kind, Section) else (None, is_many)

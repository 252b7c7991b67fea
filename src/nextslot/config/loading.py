"""Reads a configuration from the file, the environment and the command line. Reports every problem with its place.

`nextslot serve`, `config check`, `config reload` and the offline commands call `load`.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pydantic import BaseModel, SecretStr, ValidationError

from nextslot.errors import Invalid, Problem

from . import checks, fields
from .settings import Settings, settings_class

FILE = "nextslot.toml"
PREFIX = "NEXTSLOT_"
DEFAULT = "default"
COMMAND_LINE = "command line"
MASK = "********"
_SQLITE = "sqlite:///"
# Shorter texts do not count as secrets: masking them would garble messages.
_SHORTEST_SECRET = 8

Path_ = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting: its value, masked if it is a secret, and its origin."""

    name: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings, the origin of each, and their data directory."""

    settings: Settings
    data: Path
    file: Path | None
    origins: Mapping[Path_, str]
    # The sources besides the file, with which `read_again` reads the configuration.
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    overrides: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def read_again(self) -> "Configuration":
        """Reads the same sources again. Raises if the file has disappeared."""
        return load(self.data, self.file, self.environment, self.overrides)

    @property
    def store_url(self) -> str:
        """Returns the database address. Resolves a relative file in the data directory."""
        url = self.settings.store.url
        if not url.startswith(_SQLITE):
            return url
        return _SQLITE + quote(str(self.data / unquote(url.removeprefix(_SQLITE))))

    @property
    def private_files(self) -> list[Path]:
        """Returns the files with secrets: the configuration, and the key for TLS."""
        server = self.settings.server
        key = server.tls_key if server.tls_key is not None else server.tls_certificate
        return [*([] if self.file is None else [self.file]), *([] if key is None else [self.data / key])]

    def effective(self) -> list[Effective]:
        """Returns every setting, with secrets masked, as `nextslot config check` shows them."""
        return [
            Effective(".".join(path), masked(path, value), self.origins.get(path, DEFAULT))
            for path, value in self.leaves()
        ]

    def warnings(self) -> list[str]:
        """Returns a sentence for each variable that has no effect and whose name is close to that of a setting."""
        settings = {"_".join(path).upper(): PREFIX + "__".join(path).upper() for path, _ in self.leaves()}
        given = os.environ if self.environment is None else self.environment
        names = [name for name in sorted(given) if name.startswith(PREFIX) and "__" not in name]
        close = {name: get_close_matches(name.removeprefix(PREFIX), settings, n=1, cutoff=0.9) for name in names}
        return [
            f"the environment variable {name} has no effect; did you mean {settings[found[0]]}?"
            for name, found in close.items()
            if found
        ]

    def command_warnings(self) -> list[str]:
        """Returns a sentence for each command to which a parameter could add an option, such as `["ls", "{path}"]`."""
        commands = {
            path[1]: value for path, value in self.leaves() if path[0] == "job_types" and path[2:] == ("command",)
        }
        return [
            f"job_types.{name}.command: a parameter {word} that begins with - is an option for the program; "
            f'write "--" before it, if the program knows that'
            for name, command in commands.items()
            for word in _open_words(command)
        ]

    def leaves(self) -> Iterator[tuple[Path_, Any]]:
        """Yields every setting with its path and its unmasked value."""
        return fields.leaves(self.settings)

    def secrets(self) -> list[str]:
        """Returns the texts that must not appear in any log line."""
        found = [text for path, value in self.leaves() for text in _secret_texts(path, value)]
        return sorted({text for text in found if len(text) >= _SHORTEST_SECRET}, key=len, reverse=True)


def _open_words(command: object) -> Iterator[str]:
    """Yields the placeholders of parameters that neither follow `--` nor are the value of an option before them."""
    words = [str(word) for word in command] if isinstance(command, (list, tuple)) else []
    free = words[: words.index("--")] if "--" in words else words
    for before, word in pairwise(free):
        if _PARAMETER.fullmatch(word) and not before.startswith("-"):
            yield word


# Does not match `{inputs.NAME.path}`, a path that nextslot chooses.
_PARAMETER = re.compile(r"\{[^{}.]+\}")


def load(
    data: Path | str = ".",
    file: Path | str | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Configuration:
    """Reads the configuration of a data directory. `overrides` come from the command line, by names such as
    `server.port`.

    Without `file`, reads `nextslot.toml` in that directory if the file exists.
    """
    data = Path(data).absolute()
    path = Path(file) if file is not None else data / FILE
    is_there = file is not None or path.exists()
    merged = _Merged()
    if is_there:
        merged.add(_file_values(path), path.name)
    merged.add_environment(os.environ if environment is None else environment)
    merged.add_overrides(overrides or {})
    settings = _checked(merged, data)
    return Configuration(settings, data, path if is_there else None, merged.origins, environment, overrides or {})


class _Merged:
    """Nested values, in which later sources override earlier ones, with the origin of each value."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[Path_, str] = {}
        self._labels: dict[Path_, str] = {}

    def add(self, values: Mapping[str, Any], origin: str) -> None:
        for path, value in _leaves_of(values):
            self._put(path, value, origin, f"{origin}: {'.'.join(path)}")

    def add_environment(self, environment: Mapping[str, str]) -> None:
        for name, text in sorted(environment.items()):
            if name.startswith(PREFIX) and "__" in name and text:
                path = self._path_of(name.removeprefix(PREFIX).lower().split("__"))
                value = fields.from_text(path, text)
                self._put(path, value, name, name)

    def add_overrides(self, overrides: Mapping[str, Any]) -> None:
        for name, value in overrides.items():
            if value is not None:
                self._put(tuple(name.split(".")), value, COMMAND_LINE, f"{COMMAND_LINE}: {name}")

    def places(self, path: Path_) -> list[str]:
        """Returns where a setting was written, so that an error can name the file, variable or option. If the setting
        itself was not written, returns the places of the settings below it, or of its table."""
        given = self._labels
        below = [label for one, label in given.items() if one[: len(path)] == path and len(one) > len(path)]
        if path in given:
            return [given[path]]
        if below and all(label.startswith(PREFIX) for label in below):
            return below
        origins = dict.fromkeys(o for one, o in self.origins.items() if one[: len(path)] == path or one == path[:1])
        around = origins or dict.fromkeys(o for one, o in self.origins.items() if one[:1] == path[:1])
        return [f"{origin}: {'.'.join(path)}" for origin in around] or [".".join(path)]

    def _path_of(self, parts: list[str]) -> Path_:
        """Returns the path that the name of a variable stands for. Names of roles and offices match in any case."""
        path: list[str] = []
        here: Any = self.values
        for part in parts:
            known = {name.lower(): name for name in here} if isinstance(here, dict) else {}
            path.append(known.get(part, part))
            here = here.get(path[-1]) if isinstance(here, dict) else None
        return tuple(path)

    def _put(self, path: Path_, value: Any, origin: str, label: str) -> None:
        here = self.values
        for part in path[:-1]:
            inner = here.setdefault(part, {})
            if not isinstance(inner, dict):
                return  # A plain value stands in the place of a table; the validation reports it.
            here = inner
        here[path[-1]] = value
        self.origins[path] = origin
        self._labels[path] = label


def _leaves_of(values: Mapping[str, Any], path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves_of(value, (*path, name))
        else:
            yield (*path, name), value


def _file_values(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(
            f"cannot be read: {error.strerror}; check the path and its permissions", field=str(path)
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"is not valid TOML: {error}", field=str(path)) from error


def _checked(merged: _Merged, data: Path) -> Settings:
    problems: list[tuple[Path_, str]] = []
    settings: Settings | None = None
    try:
        settings = settings_class().model_validate(merged.values)
    except ValidationError as error:
        problems += checks.sentences(error)
    problems += checks.table_problems(merged.values, data)
    if problems or settings is None:
        raise Invalid([Problem(place, text) for path, text in problems for place in merged.places(path)])
    return settings


def masked(path: Path_, value: Any) -> Any:
    """Returns a value with its secrets masked."""
    if isinstance(value, SecretStr) or (value is not None and "env" in path[:-1]):
        return MASK
    if isinstance(value, str):
        return without_password(value)
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, dict):
        return {name: masked((*path, name), inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [masked(path, inner) for inner in value]
    return value


def without_password(text: str) -> str:
    password = _password(text)
    return text.replace(f":{password}@", f":{MASK}@") if password else text


def _password(text: str) -> str | None:
    if "://" not in text or "@" not in text:
        return None
    try:
        return urlsplit(text).password
    except ValueError:
        return None


def _secret_texts(path: Path_, value: Any) -> Iterator[str]:
    """Yields the texts of a secret: the whole value, and the value without its prefix."""
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
        yield value.get_secret_value().removeprefix("whsec_")
    elif isinstance(value, str):
        name = path[-1].upper()
        if "env" in path[:-1] and any(word in name for word in ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASS")):
            yield value
        if password := _password(value):
            yield password
            yield unquote(password)
    elif isinstance(value, dict):
        for inner, text in value.items():
            yield from _secret_texts((*path, inner), text)

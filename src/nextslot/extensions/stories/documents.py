"""Writes the files of `story` and `research`: Markdown with front matter, and JSON; each file whole or not at all."""

import asyncio
import json
import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_OF_A_SLUG = 40
MOST_BYTES_OF_A_SLUG = 120
MOST_OF_A_TITLE = 120

_THOUGHTS = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?…。！？]['\"”’»)\]*_]*(?=\s|$)|[。！？]")


async def write_files(directory: Path, files: Mapping[str, str]) -> None:
    """Writes all files or none, in a thread, because a disk may be slow; an interrupted run waits for the end."""
    writing = asyncio.ensure_future(asyncio.to_thread(_write_files, directory, files))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        raise


def markdown(properties: Mapping[str, Any], body: str) -> str:
    """Returns front matter and a body. The values are JSON, which is valid YAML and escapes all text."""
    front = "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in properties.items())
    return f"---\n{front}\n---\n\n{body.strip()}\n"


def as_json(properties: Mapping[str, Any]) -> str:
    return json.dumps(properties, ensure_ascii=False, indent=2) + "\n"


def slug(title: str, fallback: str) -> str:
    """Returns a part of a file name with the letters and digits of a title, of every script; it cannot be a path."""
    plain = unicodedata.normalize("NFKC", title).lower()
    # Many scripts write vowels as marks (M) on letters (L).
    joined = "".join(sign if unicodedata.category(sign)[0] in "LMN" else "-" for sign in plain)
    short = re.sub("-+", "-", joined).strip("-")[:MOST_OF_A_SLUG]
    # File systems limit the bytes of a name, and a letter may have four.
    cut = short.encode("utf-8", "ignore")[:MOST_BYTES_OF_A_SLUG].decode("utf-8", "ignore")
    return cut.strip("-") or fallback


def clean(text: str) -> str:
    """Returns a model's answer without its thoughts, control characters and broken surrogate pairs."""
    # The two halves of a character may come in two chunks; this joins them.
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    spoken = _THOUGHTS.sub("", whole).replace("\r\n", "\n").replace("\r", "\n")
    kept = "".join(sign for sign in spoken if sign in "\n\t" or unicodedata.category(sign) not in ("Cc", "Cs"))
    return re.sub(r"\n{3,}", "\n\n", kept).strip()


def whole_sentences(text: str) -> str:
    """Returns a text without a last sentence that was cut off, unless that sentence is a large part of the text."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    if not ends or ends[-1] == len(text) or ends[-1] < len(text) * 0.6:
        return text
    return text[: ends[-1]]


def shortened(text: str, length: int) -> str:
    """Returns a text on one line of at most this length, cut between words if possible."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    cut = line[: length - 1]
    return (cut.rpartition(" ")[0] if cut.rfind(" ") > length // 2 else cut).rstrip(" ,;:-") + "…"


def _write_files(directory: Path, files: Mapping[str, str]) -> None:
    made: list[Path] = []
    try:
        for name, text in files.items():
            made.append(directory / f".{name}.part")
            _write_durably(made[-1], text)
        for name in files:
            (directory / f".{name}.part").rename(directory / name)
            made.append(directory / name)
        _sync_directory(directory)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

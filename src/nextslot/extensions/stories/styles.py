"""Styles of stories: how to write a story. Named styles are settings; a job's parameters override single parts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

DEFAULT_LENGTH = 1500
DEFAULT_TEMPERATURE = 0.8
SYSTEM = (
    "You are a storyteller. You write complete short stories with a beginning, a middle and an end,"
    " in the language of the request. You write the story only, with nothing before and nothing after it."
)
# The placeholders that a template may contain.
PLACES = ("topic", "genre", "language", "words", "tags")
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """A style of a story. Another style, or the defaults, supply each part that is None."""

    system: str | None = None
    template: str | None = None
    genre: str | None = None
    length: int | None = None
    language: str | None = None
    temperature: float | None = None

    def over(self, other: "Style") -> "Style":
        """Returns this style, with its missing parts from another one."""
        mine = {one.name: getattr(self, one.name) for one in fields(self)}
        return Style(**{name: getattr(other, name) if value is None else value for name, value in mine.items()})

    def request(self, topic: str | None, tags: list[str]) -> list[str]:
        """Returns the lines of a prompt that say what to write."""
        words = f"{max(50, round((self.length or DEFAULT_LENGTH) / 6, -1)):.0f}"
        if self.template is not None:
            values = {"topic": (topic or "").strip(), "words": words, "tags": ", ".join(tags)}
            values |= {"genre": self.genre or "", "language": self.language or ""}
            return [_PLACE.sub(lambda found: values.get(found[1], found[0]), self.template).strip()]
        about = f" about this topic: {topic.strip()}" if topic else " about whatever you like"
        kind = f"{self.genre} story" if self.genre else "story"
        lines = [f"Write a short {kind}{about}", f"It has about {words} words."]
        if self.language:
            lines.append(f"It is written in {self.language}.")
        if tags:
            lines.append(f"It fits these tags: {', '.join(tags)}.")
        return lines


def unknown_places(template: str) -> list[str]:
    return [name for name in dict.fromkeys(_PLACE.findall(template)) if name not in PLACES]


def of_params(params: Mapping[str, Any]) -> Style:
    """Returns the parts of a style that the parameters of a job name."""
    given = {name: params.get(name) for name in ("system", "template", "genre", "language", "temperature")}
    return Style(length=params.get("target_length"), **given)

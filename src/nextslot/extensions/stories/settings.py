"""The table `[llm]` of a configuration."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, ValidationError

from nextslot.config.settings import Section, WebAddress
from nextslot.extension_api import SettingProblem

from .styles import PLACES, unknown_places


class ProviderSettings(Section):
    base_url: WebAddress = Field(description="The address of an OpenAI-compatible server.")
    token_env: str | None = Field(
        default=None, min_length=1, description="The environment variable that contains its token."
    )


class StyleSettings(Section):
    """A named style of stories, which jobs choose as `style`."""

    system: str | None = Field(default=None, max_length=4000, description="The system prompt.")
    template: str | None = Field(
        default=None,
        max_length=4000,
        description="The prompt, with {topic}, {genre}, {language}, {words} and {tags}; none: the built-in one.",
    )
    genre: str | None = Field(default=None, max_length=100, description="Such as `ghost` or `science fiction`.")
    length: int | None = Field(default=None, ge=300, le=10_000, description="About how many characters a story has.")
    language: str | None = Field(default=None, max_length=100, description="The language of the stories.")
    temperature: float | None = Field(default=None, ge=0, le=2, description="How much the model varies its words.")


class LlmSettings(Section):
    ollama_base_url: WebAddress | None = Field(
        default=None, description="The address of Ollama; none: `OLLAMA_BASE_URL`, else http://127.0.0.1:11434."
    )
    default_model: str | None = Field(
        default=None, min_length=1, description="The model of jobs that name none; none: the embedded model."
    )
    styles: dict[str, StyleSettings] = Field(default={}, description="Styles of stories, by name.")
    providers: dict[str, ProviderSettings] = Field(
        default={}, description="Other servers, by name; jobs use their models as `NAME:MODEL`."
    )


def provider_problems(values: Mapping[str, Any]) -> Iterator[SettingProblem]:
    """Finds names that no provider can have; a table whose form is wrong has its own problem."""
    llm = values.get("llm")
    providers = llm.get("providers") if isinstance(llm, Mapping) else None
    for name, table in providers.items() if isinstance(providers, Mapping) else ():
        if _is_valid(table) and (name == "ollama" or not name.isidentifier()):
            yield ("llm", "providers", name), "cannot be the name of a provider; use letters and digits, and not ollama"


def style_problems(values: Mapping[str, Any]) -> Iterator[SettingProblem]:
    """Finds templates with unknown places."""
    llm = values.get("llm")
    found = llm.get("styles") if isinstance(llm, Mapping) else None
    for name, table in found.items() if isinstance(found, Mapping) else ():
        template = table.get("template") if isinstance(table, Mapping) else None
        for place in unknown_places(template) if isinstance(template, str) else ():
            yield ("llm", "styles", name, "template"), f"has {{{place}}}; it can have {', '.join(PLACES)}"


def _is_valid(table: object) -> bool:
    try:
        ProviderSettings.model_validate(table)
    except ValidationError:
        return False
    return True

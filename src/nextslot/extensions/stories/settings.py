"""The table `[llm]` of a configuration."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, ValidationError

from nextslot.config.settings import Section, WebAddress
from nextslot.extension_api import SettingProblem


class ProviderSettings(Section):
    base_url: WebAddress = Field(description="The address of an OpenAI-compatible server.")
    token_env: str | None = Field(
        default=None, min_length=1, description="The environment variable that contains its token."
    )


class LlmSettings(Section):
    ollama_base_url: WebAddress | None = Field(
        default=None, description="The address of Ollama; none: `OLLAMA_BASE_URL`, else http://127.0.0.1:11434."
    )
    default_model: str | None = Field(
        default=None, min_length=1, description="The model of jobs that name none; none: the embedded model."
    )
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


def _is_valid(table: object) -> bool:
    try:
        ProviderSettings.model_validate(table)
    except ValidationError:
        return False
    return True

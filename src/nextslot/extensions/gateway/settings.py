"""The table `[gateway]` of a configuration."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from nextslot.config.settings import Section, WebAddress
from nextslot.domain.bounds import Delay, Seconds, whole
from nextslot.extension_api import SettingProblem

Name = Annotated[str, Field(min_length=1, max_length=200)]


class UpstreamSettings(Section):
    base_url: WebAddress | None = Field(
        default=None, description="The address of an OpenAI-compatible server; `/v1` is added if the address lacks it."
    )
    embedded: bool = Field(default=False, description="Whether this is the embedded model of `stories`.")
    token_env: Name | None = Field(default=None, description="The environment variable that contains its key.")
    models: list[Name] = Field(
        default=[], description="The models it serves; `*` stands for any text. Empty: the upstream is asked."
    )
    ask_usage: bool = Field(
        default=True, description="Whether streams ask it for the numbers of tokens, by `stream_options`."
    )
    resource: Name | None = Field(
        default=None, description="The resource that its models occupy; none: its name, `ollama` for the embedded one."
    )


class ModelSettings(Section):
    """A name for clients."""

    upstream: Name = Field(description="The upstream that answers.")
    name: Name | None = Field(default=None, description="The model's name at the upstream; none: the same.")
    resource: Name | None = Field(default=None, description="The resource that it occupies; none: the upstream's.")
    units: Annotated[int, whole(1, 1_000_000)] = Field(default=1, description="How many units of it a request takes.")
    affinity: Name | None = Field(
        default=None, description="What the resource should have loaded for it; none: the model's name at the upstream."
    )


class GatewaySettings(Section):
    wait_seconds: Delay = Field(default=300, description="How long a caller waits for a slot before it gets 503.")
    timeout_seconds: Seconds = Field(default=3600, description="How long a request may run.")
    connect_seconds: Seconds = Field(default=5, description="How long an upstream may take to accept a connection.")
    first_byte_seconds: Seconds = Field(
        default=600, description="How long an upstream may take to begin its answer; it may load the model first."
    )
    between_seconds: Seconds = Field(default=120, description="How long an upstream may be silent in its answer.")
    upstreams: dict[str, UpstreamSettings] = Field(
        default={}, description="Model servers, by name; none: Ollama on this machine, and the embedded model."
    )
    models: dict[str, ModelSettings] = Field(default={}, description="Models with a name or a resource of their own.")
    limit_callers: bool = Field(
        default=False,
        description="Whether a request has the limit key `caller:NAME`, the name of its API key; see `limits.keys`.",
    )
    offices: dict[str, Name] = Field(
        default={}, description="The office of a key, by the key's name, if the key is for all offices."
    )


def gateway_problems(values: Mapping[str, Any]) -> Iterator[SettingProblem]:
    """Finds upstreams without an address, and models of unknown upstreams; wrong types have their own problems."""
    table = values.get("gateway")
    if not isinstance(table, Mapping):
        return
    upstreams, models = table.get("upstreams") or {}, table.get("models") or {}
    for name, one in upstreams.items() if isinstance(upstreams, Mapping) else ():
        if isinstance(one, Mapping) and bool(one.get("base_url")) == bool(one.get("embedded")):
            yield ("gateway", "upstreams", name), "needs either base_url or embedded = true; give one of them"
    known = list(upstreams) if isinstance(upstreams, Mapping) and upstreams else ["ollama", "embedded"]
    for name, one in models.items() if isinstance(models, Mapping) else ():
        wanted = one.get("upstream") if isinstance(one, Mapping) else None
        if isinstance(wanted, str) and wanted not in known:
            yield ("gateway", "models", name, "upstream"), f"is {wanted!r}; it must be one of: {', '.join(known)}"

"""Declares every setting of a server once: its type, its default, and a sentence that says what it does.

`loading` reads files and the environment into these classes, `scheduler_from_config` creates a scheduler from them, and
`scripts/make_configuration_tables.py` writes the tables of docs/configuration.md from them.
"""

import re
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    create_model,
    model_validator,
)

from nextslot import extension_api
from nextslot.domain.addresses import is_loopback
from nextslot.domain.bounds import (
    LIMIT,
    MAX_BATCH_BYTES,
    MAX_BODY_BYTES,
    MAX_PARAMS_BYTES,
    Delay,
    Limit,
    Seconds,
    number,
    whole,
)
from nextslot.domain.devices import names_problem
from nextslot.domain.limits import Rate, RateUnit
from nextslot.domain.webhook_signature import secret_problem
from nextslot.executors.object_store import url_problem
from nextslot.executors.shared_run_files import WAIT_SECONDS
from nextslot.system.disk_space import DiskLimits

Port = Annotated[int, whole(0, 65_535)]
Bytes = Annotated[int, whole(0)]
Days = Annotated[float, number(" of days", most=36_600, is_zero_allowed=False)]


def _secret(value: object) -> object:
    return SecretStr(value) if isinstance(value, str) else value


def _webhook_secret(secret: SecretStr) -> SecretStr:
    problem = secret_problem(secret.get_secret_value())
    if problem is not None:
        raise ValueError(problem)
    return secret


def _web_address(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+.*", text):
        raise ValueError("is not a web address; begin it with http:// or https://")
    return text


def _file_store(text: str) -> str:
    if (problem := url_problem(text)) is not None:
        raise ValueError(problem)
    return text


def _sub_path(text: str) -> str:
    if text and not re.fullmatch(r"(/[^/\s?#]+)+", text):
        raise ValueError("is not a path of this form; write one such as /scheduler, without a slash at its end")
    return text


def _store_address(text: str) -> str:
    if not re.match(r"(sqlite:///.|postgres(ql)?://.)", text):
        raise ValueError("is not a database address; use sqlite:///file.db or postgresql://user@host/database")
    return text


def _variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", text) or text.startswith("NEXTSLOT_"):
        raise ValueError("is no name for a variable; use letters, digits and '_', and do not begin it with NEXTSLOT_")
    return text


def _node_units(value: object) -> object:
    if value == NVML:
        return value
    if isinstance(value, list):
        problem = names_problem(value)
    elif isinstance(value, str):
        problem = f'is {value!r}; write a number of units, a list of names such as ["0", "1"], or "{NVML}"'
    else:
        problem = LIMIT.problem(value)
    if problem is not None:
        raise ValueError(problem)
    return value


# A number of units, a list of their names, or "nvml": the GPUs that NVIDIA's library reports when the server starts.
NVML = "nvml"
NodeUnits = Annotated[int | list[str] | str, BeforeValidator(_node_units)]
WebhookSecret = Annotated[SecretStr, BeforeValidator(_secret), AfterValidator(_webhook_secret)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
FileStore = Annotated[str, AfterValidator(_file_store)]


class Section(BaseModel):
    """A table of the file. Strict: an unknown key or a wrong type is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ServerSettings(Section):
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="The address to listen on; any other than loopback requires an API key.",
    )
    port: Port = Field(default=8000, description="The port to listen on; 0 takes a free one.")
    health_port: Port | None = Field(
        default=None,
        description="A port on which a separate small process answers `/health` and `/ready`; none: only `port`.",
    )
    allowed_hosts: list[str] = Field(
        default=[],
        description="Names allowed in a request's Host header, in addition to the address itself; `*` allows any.",
    )
    allowed_origins: list[str] = Field(default=[], description="Other web origins whose pages may use the API.")
    root_path: Annotated[str, AfterValidator(_sub_path)] = Field(
        default="", description="The path below which a proxy serves this server, such as /scheduler."
    )
    docs: bool = Field(default=True, description="Whether /docs and /openapi.json are served.")
    tls_certificate: str | None = Field(
        default=None,
        min_length=1,
        description="A PEM file with the certificate and its chain: the server then speaks TLS. SIGHUP reads it again.",
    )
    tls_key: str | None = Field(
        default=None, min_length=1, description="The PEM file of its key; none: the key is in `tls_certificate`."
    )
    max_body_bytes: Annotated[int, whole(1024)] = Field(
        default=MAX_BODY_BYTES,
        description="The largest request body, or item of a batch; a larger one is refused with 413.",
    )
    max_batch_bytes: Annotated[int, whole(1024)] = Field(
        default=MAX_BATCH_BYTES, description="The largest body of a batch, a group, or an order of the queue."
    )
    max_connections: Annotated[int, whole(0, 1_000_000)] = Field(
        default=0,
        description="How many connections may be open; 0: half the process's limit of open files. Beyond it, those "
        "that have waited longest without a request are closed.",
    )
    max_connections_per_peer: Annotated[int, whole(0, 1_000_000)] = Field(
        default=0,
        description="How many connections an address may have open; 0: a quarter of all, and no limit on this machine.",
    )
    max_requests_per_second: Annotated[int, whole(0, 1_000_000)] = Field(
        default=10_000,
        description="How many requests a second a caller may send, on average over two seconds; 0: no limit.",
    )
    max_streams: Annotated[int, whole(1, 1_000_000)] = Field(
        default=1000, description="How many streams and waiting direct callers there may be."
    )
    max_streams_per_caller: Annotated[int, whole(1, 1_000_000)] = Field(
        default=100, description="How many streams and waiting direct callers an office, a key or an address may have."
    )
    head_timeout_seconds: Seconds = Field(
        default=10, description="How long a caller may take to send the head of a request."
    )
    idle_timeout_seconds: Seconds = Field(
        default=5, description="How long a connection may be idle after an answer before it is closed."
    )
    shutdown_grace_seconds: Delay = Field(
        default=3600,
        description="How long running work may continue after SIGTERM before it is interrupted.",
    )


class StoreSettings(Section):
    url: Annotated[str, AfterValidator(_store_address)] = Field(
        default="sqlite:///nextslot.db", description="The database: a SQLite file, or a PostgreSQL address."
    )
    synchronous: Literal["FULL", "NORMAL"] = Field(
        default="FULL", description="`NORMAL` is faster, but a power cut may lose the latest commits."
    )
    disk_warn_bytes: Bytes = Field(
        default=DiskLimits().warn_bytes,
        description="Warn when fewer bytes are free for the database, logs or artifacts; 0: never.",
    )
    disk_refuse_bytes: Bytes = Field(
        default=DiskLimits().refuse_bytes,
        description="Refuse new work with 503 `disk_low` when fewer bytes are free; running work can end. 0: never.",
    )


class RateTable(Section):
    per_minute: Annotated[float, number("", most=1e9, is_zero_allowed=False)] | None = Field(
        default=None, description="How many runs may start in a minute."
    )
    burst: Annotated[float, number("", most=1e9, least=1)] | None = Field(
        default=None, description="How many may start at once after a pause; none: a tenth of `per_minute`, at least 1."
    )
    tokens_per_minute: Annotated[float, number("", most=1e12, is_zero_allowed=False)] | None = Field(
        default=None,
        description="How many tokens runs may use in a minute, by `usage.total_tokens` of their results; nothing "
        "starts while more were used.",
    )
    tokens_burst: Annotated[float, number("", most=1e12, least=1)] | None = Field(
        default=None,
        description="How many tokens may be used at once after a pause; none: a tenth of `tokens_per_minute`.",
    )

    @model_validator(mode="after")
    def _has_a_rate(self) -> "RateTable":
        if self.per_minute is None and self.tokens_per_minute is None:
            raise ValueError("has no rate; give per_minute or tokens_per_minute")
        return self

    def rates(self) -> dict[RateUnit, Rate]:
        """Returns the rates of the table, by the unit that they count."""
        given = {
            RateUnit.STARTS: (self.per_minute, self.burst),
            RateUnit.TOKENS: (self.tokens_per_minute, self.tokens_burst),
        }
        return {unit: Rate.of(rate, burst) for unit, (rate, burst) in given.items() if rate is not None}


def _rated(name: str) -> str:
    if not re.fullmatch(r"scheduler|(office|type|resource):.+", name):
        raise ValueError("is not what a rate can be of; write scheduler, office:NAME, type:NAME or resource:NAME")
    return name


class LimitsTable(Section):
    running: Limit = Field(default=0, description="How many jobs may run at once in the whole scheduler; 0: no limit.")
    resources: dict[str, Limit] = Field(
        default={},
        description="Units of each resource across all offices; an unlisted resource has 1, `remote` has no limit.",
    )
    affinity_wait_seconds: dict[str, Delay] = Field(
        default={},
        description="How long jobs of the `affinity` that a resource has loaded may go before the next job in order; "
        "0: never. Also written in a table `[limits.resources.NAME]`, beside `units`.",
    )
    job_types: dict[str, Limit] = Field(default={}, description="How many jobs of a type may run at once; 0: no limit.")
    keys: dict[str, Limit] = Field(
        default={},
        description="How many jobs of an office with the same key of their `limit_keys` may run at once, by a pattern "
        'for keys: `"customer:*" = 1`. Of several patterns that fit, the longest counts; 0, and no pattern: no limit.',
    )
    rates: dict[Annotated[str, AfterValidator(_rated)], RateTable] = Field(
        default={},
        description="What may start or be used in a minute: a table for each of `scheduler`, `office:NAME`, "
        "`type:NAME` and `resource:NAME`.",
    )
    starvation_after_seconds: Seconds = Field(
        default=600,
        description="How long a limit may hold a job back while other jobs pass it, before units are kept free for it.",
    )
    stall_alarm_seconds: Delay = Field(
        default=600,
        description="How long a run may write no output and report no progress before `job_stalled`; 0: no alarm.",
    )
    max_params_bytes: Annotated[int, whole(2, 64 * 1024 * 1024)] = Field(
        default=MAX_PARAMS_BYTES, description="The largest parameters of a job, as JSON."
    )
    direct_waiting: Annotated[int, whole(1, 100_000)] = Field(
        default=100, description="How many direct callers of an office may wait; further callers get 503."
    )

    @model_validator(mode="before")
    @classmethod
    def _resource_tables(cls, given: Any) -> Any:
        """Splits the tables of resources into their units and their affinity waits."""
        resources = given.get("resources") if isinstance(given, dict) else None
        if not isinstance(resources, dict) or not any(isinstance(one, dict) for one in resources.values()):
            return given
        units, waits = dict(resources), dict(given.get("affinity_wait_seconds") or {})
        for name, table in resources.items():
            if isinstance(table, dict):
                unknown = sorted(table.keys() - {"units", "affinity_wait_seconds"})
                if unknown:
                    raise ValueError(
                        f"resources.{name} has no setting {unknown[0]!r}; write units, affinity_wait_seconds"
                    )
                units[name] = table.get("units", 1)
                if "affinity_wait_seconds" in table:
                    waits[name] = table["affinity_wait_seconds"]
        return {**given, "resources": units, "affinity_wait_seconds": waits}


class NodeSettings(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")] | None = Field(
        default=None,
        description="This node's name, part of `worker_id`; none: `local` on SQLite, the machine's name on PostgreSQL.",
    )
    address: WebAddress | None = Field(
        default=None,
        description="Where other nodes reach the HTTP server of this node, to [read files of runs](run-files.md); "
        "none: where it listens, if that is one address (PostgreSQL).",
    )
    running: Limit = Field(
        default=0, description="How many jobs and direct executions this node may run at once; 0: no limit of its own."
    )
    resources: dict[str, NodeUnits] = Field(
        default={},
        description="Units that this node has: how many, or a list of [named devices](commands.md#devices), or "
        '`"nvml"`; a resource that any node lists is used only on nodes that list it.',
    )
    device_variables: dict[str, Annotated[str, AfterValidator(_variable)]] = Field(
        default={},
        description="The environment variable that names the devices of a resource to a run; "
        "that of `gpu` is CUDA_VISIBLE_DEVICES.",
    )
    unresponsive_seconds: Seconds = Field(
        default=300,
        description="How long a node keeps its lease while its event loop does not answer (PostgreSQL).",
    )


class OfficeTable(Section):
    """The settings of an office in the file override the stored ones, and cannot be changed through the API."""

    name: str | None = Field(default=None, description="A name for people.")
    status: Literal["active", "archived"] | None = Field(
        default=None, description="An archived office accepts no new jobs."
    )
    max_concurrent_jobs: Limit | None = Field(
        default=None, description="How many of its jobs may run at once; 0: no limit."
    )
    role_limits: dict[str, Limit] | None = Field(
        default=None, description="How many jobs of each role may run at once."
    )
    timeout_seconds: Delay | None = Field(default=None, description="The timeout of jobs that set none; 0: none.")
    retry_policy: dict[str, Any] | None = Field(
        default=None, description="The fields of its retry policy that differ from the default."
    )
    cancel_mode: Literal["finish", "interrupt"] | None = Field(
        default=None, description="What a cancel does to a running job, unless the request says otherwise."
    )
    on_dependency_failure: Literal["wait", "cancel"] | None = Field(
        default=None, description="What happens to a job whose dependency has failed permanently."
    )
    webhook: dict[str, Any] | None = Field(default=None, description="Where its events are sent: `url`, `events`.")
    priority_aging_seconds: Delay | None = Field(
        default=None,
        description="For each such period that a job is ready, it goes before others by one priority more; 0: never.",
    )

    def named(self) -> dict[str, Any]:
        """Returns the settings that the file contains, in the form that the engine uses."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        for name in ("timeout_seconds", "priority_aging_seconds"):
            if values.get(name) == 0:
                values[name] = None
        return values


class EngineTable(Section):
    kind: str = Field(description="What it is: `local`, `slurm` or `ray`, or one that another extension offers.")
    slots: Annotated[int, whole(1, 1_000_000)] = Field(
        default=10, description="How many runs are handed to it at once, waiting ones included."
    )
    units: dict[str, Annotated[int, whole(1, 1_000_000_000)]] = Field(
        default={},
        description="What its runs share there, by names of your own such as `cpus`, `memory_gb` and `gpu`: what runs "
        "there at once takes no more. A job type says what a run takes (`engine_units`).",
    )
    directory: str | None = Field(
        default=None,
        min_length=1,
        description="Where its runs have their directories: on storage that its machines share with every node; none: "
        "`engines/NAME` in the data directory.",
    )
    python: str | None = Field(
        default=None,
        min_length=1,
        description="Python 3.11 or newer on its machines; none: `python3`, and for a local engine the server's own.",
    )
    poll_seconds: Seconds | None = Field(
        default=None, description="How often it is asked what it sees, and records are read; none: what suits its kind."
    )
    lease_seconds: Seconds = Field(
        default=900, description="How long a run that has begun may give no sign of life before it is taken for dead."
    )
    start_timeout_seconds: Delay = Field(
        default=86_400, description="How long a run may wait there to be started; 0: for ever."
    )
    options: dict[str, Any] = Field(
        default={}, description="Options of its kind for all of its runs; see [engines](engines.md#options)."
    )


class WebhookTable(Section):
    secret: WebhookSecret | None = Field(
        default=None,
        description="The secret from which those of offices derive; none: one is generated and stored in the database.",
    )
    allow_private: bool | None = Field(
        default=None,
        description="Whether webhooks may go to loopback and private addresses; none: only from a server on loopback "
        "that has no `allowed_hosts` and no key.",
    )
    timeout_seconds: Seconds = Field(default=10, description="How long an endpoint may take to respond.")
    public_url: WebAddress | None = Field(
        default=None,
        description="The address of this server for people: notices of jobs that wait for an answer link to it.",
    )
    concurrency: Annotated[int, whole(1, 1000)] = Field(
        default=64, description="How many deliveries may be in progress at once."
    )


class FilesSettings(Section):
    store: FileStore | None = Field(
        default=None,
        description="A store for logs and artifacts that [all nodes read](run-files.md): `s3://BUCKET/PREFIX`, or "
        "`file:///DIRECTORY`; none: only the disk of the node that runs the work.",
    )
    wait_seconds: Delay = Field(
        default=WAIT_SECONDS,
        description="How long the outcome of a run waits at most while the store does not take its files.",
    )


class RetentionSettings(Section):
    jobs_days: Days | None = Field(
        default=None, description="How long ended jobs and their runs are kept; none: for ever."
    )
    events_days: Days | None = Field(default=None, description="How long events are kept; none: for ever.")
    files_days: Days | None = Field(default=None, description="How long logs and artifacts are kept; none: for ever.")
    deliveries_days: Days | None = Field(
        default=None, description="How long webhook deliveries are kept; none: for ever."
    )
    audit_days: Days | None = Field(default=None, description="How long the audit log is kept; none: for ever.")
    stats_days: Days | None = Field(default=None, description="How long statistics are kept; none: for ever.")


class LogSettings(Section):
    format: Literal["auto", "json", "text"] = Field(
        default="auto", description="`auto` means text on a terminal, else JSON."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The lowest level that is logged."
    )


class TelemetrySettings(Section):
    otel_endpoint: WebAddress | None = Field(
        default=None, description="The address that receives traces (OTLP over HTTP); needs the extra `otel`."
    )


class ExtensionSettings(Section):
    disabled: list[str] = Field(
        default=[], description="Names of the [extensions](extensions.md) that this server does without."
    )


class Settings(Section):
    """The tables of the core. `settings_class` adds those of the extensions."""

    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    limits: LimitsTable = LimitsTable()
    node: NodeSettings = NodeSettings()
    # `executors/command_config.py` checks job types, with messages of its own.
    job_types: dict[str, dict[str, Any]] = Field(
        default={},
        description="A command, or a Python function as `handler`; see [commands](commands.md#settings).",
    )
    engines: dict[str, EngineTable] = {}
    # Their fields are those of the requests that put templates.
    templates: dict[str, dict[str, Any]] = Field(
        default={},
        description="Templates that each start puts, by name; see [schedules](schedules.md#declared-in-code).",
    )
    schedules: dict[str, dict[str, Any]] = Field(
        default={},
        description="Schedules that each start puts, by name: `template`, `cron_expression`, `timezone`, ….",
    )
    offices: dict[str, OfficeTable] = {}
    webhooks: WebhookTable = WebhookTable()
    files: FilesSettings = FilesSettings()
    retention: RetentionSettings = RetentionSettings()
    logs: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    extensions: ExtensionSettings = ExtensionSettings()

    def allow_private(self, has_keys: bool) -> bool:
        """Returns whether webhooks may go to private addresses: by default while all callers are local (spec 12.12)."""
        if self.webhooks.allow_private is not None:
            return self.webhooks.allow_private
        return is_loopback(self.server.host) and not self.server.allowed_hosts and not has_keys


@cache
def settings_class() -> type[Settings]:
    """Makes the class of all settings: the core's tables, and those of every extension, disabled ones too."""
    # `Any`: the settings of extensions are known only once the extensions are found.
    tables: Any = {name: declared for one in extension_api.find_all() for name, declared in one.settings().items()}
    found: type[Settings] = create_model("AllSettings", __base__=Settings, **tables)
    return found

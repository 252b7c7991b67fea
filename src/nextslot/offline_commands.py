"""The functions behind offline commands: they open a database without a scheduler, under the schedulers' own lock.

The command line calls them; they dispatch no jobs. While a server uses the database, the error of a command that needs
it exclusively names that server, and how to do the same through the server.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from nextslot.config.loading import Configuration
from nextslot.domain.addresses import url_problem
from nextslot.domain.webhook_signature import secret_for, secret_of
from nextslot.engine.cluster.repairs import Repairs
from nextslot.engine.retention import DAY, Keep, Purged, Retention
from nextslot.engine.settings.audit_log import AuditLog
from nextslot.engine.settings.key_ring import KeyRing
from nextslot.executors.object_store import ObjectStore
from nextslot.executors.run_files import RunFiles
from nextslot.executors.shared_run_files import SharedRunFiles
from nextslot.executors.threads import DaemonThreads
from nextslot.services.keys import KeyService
from nextslot.services.unit_of_work import UnitOfWork
from nextslot.store.contract import Closing, Tx
from nextslot.store.maintenance import maintenance
from nextslot.store.maintenance.backup_sqlite import Absent
from nextslot.store.maintenance.doctor import Finding, runs_with_files, unstored_outcomes
from nextslot.store.maintenance.exported_rows import Moved, Progress
from nextslot.store.maintenance.maintenance import Maintenance
from nextslot.store.open_store import directories, load_export, open_store, sqlite_path, write_export
from nextslot.store.open_store import maintenance as maintenance_of
from nextslot.store.tables import keys as stored_keys
from nextslot.store.tables import offices, webhooks
from nextslot.system.clock import SystemClock
from nextslot.system.disk_space import DiskLimits, DiskSpace
from nextslot.system.instant import Instant
from nextslot.system.randomness import SystemChance

from .domain import DEFAULT_OFFICE, Actor, RequestContext, default_office
from .errors import AlreadyOpen, Conflict, StoreError, Unavailable

# Of how many runs the doctor compares the files with the shared store.
MOST_RUNS = 200
OFFLINE = RequestContext(actor=Actor(name="offline command", key_id=None, action="offline", target="data directory"))


@dataclass(frozen=True, slots=True)
class Examined:
    """The doctor's findings, and how many counters it corrected and jobs it retried."""

    findings: tuple[Finding, ...]
    repaired: int = 0
    retried: int = 0


@asynccontextmanager
async def opened(
    configuration: Configuration, online: str | None = None, closing: Closing | None = None
) -> AsyncIterator[UnitOfWork]:
    """Opens the store without a dispatcher. `online` is the advice for the error while a server runs."""
    clock = SystemClock()
    with _hint(online):
        store = open_store(
            configuration.store_url,
            closing or _nothing_more,
            threaded=False,
            synchronous=configuration.settings.store.synchronous,
        )
    access = UnitOfWork(clock, AuditLog(SystemChance()))
    access.gate.store = store
    try:
        await store.write(lambda tx: offices.insert(tx, default_office(clock.now())))
        yield access.for_caller(OFFLINE)
    finally:
        access.gate.store = None
        await store.close()


@asynccontextmanager
async def keys(configuration: Configuration, *, creates: bool = True) -> AsyncIterator[KeyService]:
    """Opens the keys of a database, for `nextslot key add` before any server runs. Creates it only if `creates`."""
    online = "to use the running server: nextslot key … --url URL, with an admin key in NEXTSLOT_API_KEY"
    if not creates:
        _maintenance(configuration).pending()
    async with opened(configuration, online) as access:
        yield KeyService(access, KeyRing(SystemChance(), configuration.settings.offices))


async def is_guarded(configuration: Configuration) -> bool:
    """Returns whether there is an admin key, even while other nodes run. A missing database has none."""
    database = _maintenance(configuration)
    try:
        if not database.pending():
            return database.ask(stored_keys.has_admin)
    except Absent:
        return False
    async with keys(configuration) as found:  # The database is outdated: open it as a start would, which migrates it.
        return await found.is_guarded()


async def webhook_secret(configuration: Configuration, office_id: str = DEFAULT_OFFICE) -> str:
    """Returns the secret that signs the webhooks of an office and its jobs. It derives from the configured one, else
    from a generated and stored one."""
    given = configuration.settings.webhooks.secret
    if given is not None:
        return secret_for(given.get_secret_value(), office_id)

    def work(tx: Tx) -> str:
        kept = webhooks.server_secret(tx)
        if kept is None:
            kept = secret_of(SystemChance().secret())
            webhooks.keep_server_secret(tx, kept)
        return kept

    async with opened(configuration) as access:
        return secret_for(await access.write(work), office_id)


def pending(configuration: Configuration) -> list[str]:
    """Returns the migrations that a start would apply."""
    return _maintenance(configuration).pending()


def migrate(configuration: Configuration) -> list[str]:
    """Applies the pending migrations and returns their names."""
    return _maintenance(configuration).migrate()


def doctor(configuration: Configuration, repair: bool = False) -> Examined:
    """Checks whether the stored data is consistent. Only reads, so a server may be running, unless `repair` is set."""
    database = _maintenance(configuration)
    repaired = retried = 0
    if repair:
        online = "while it runs, use nextslot doctor without --repair"
        with _hint(online):
            repaired = database.repair()
        if database.ask(unstored_outcomes):
            retried = asyncio.run(_retry_unstored(configuration, online))
    findings = (
        *database.examine(),
        *_disk_findings(configuration),
        *_webhook_findings(configuration, database),
        *_file_findings(configuration, database),
    )
    return Examined(findings, repaired, retried)


async def _retry_unstored(configuration: Configuration, online: str) -> int:
    repairs, retried = Repairs(SystemClock(), SystemChance()), 0
    async with opened(configuration, online, repairs.close_transaction) as access:
        while found := await access.store.write(repairs.retry_unstored):
            retried += found
    return retried


def _disk_findings(configuration: Configuration) -> Iterator[Finding]:
    limits = DiskLimits(configuration.settings.store.disk_warn_bytes, configuration.settings.store.disk_refuse_bytes)
    space = DiskSpace(limits, directories(configuration.store_url, configuration.data), SystemClock().now)
    if (warning := space.warning()) is not None:
        yield Finding("disk", warning, f"free some space: below {limits.refuse_bytes:,} bytes new work is refused")


def _webhook_findings(configuration: Configuration, database: Maintenance) -> Iterator[Finding]:
    """Names subscriptions and offices whose webhooks the server does not send, because of their addresses."""
    try:
        is_private_allowed = configuration.settings.allow_private(database.ask(stored_keys.has_admin))
        receivers = [] if is_private_allowed else database.ask(_receivers)
    except StoreError:  # It is damaged, which `examine` has said.
        return
    for name, url in receivers:
        if url_problem(url, allow_private=True) is None and (problem := url_problem(url, allow_private=False)):
            remedy = "set `[webhooks] allow_private = true` if every key may reach your network, or change the URL"
            yield Finding("webhooks", f"nothing is sent to {name}: its URL {problem}", remedy)


def _files(configuration: Configuration) -> RunFiles:
    store = configuration.settings.files.store
    return RunFiles(configuration.data, shared=None if store is None else SharedRunFiles(ObjectStore(store)))


def _file_findings(configuration: Configuration, database: Maintenance) -> Iterator[Finding]:
    """Names files of ended runs that the shared store does not have, if there is one: of the newest runs."""
    files = _files(configuration)
    if files.shared is None:
        return
    waiting = set(files.unshipped())
    if waiting:
        problem = f"{files.shared.objects.url} does not have all files of {len(waiting)} runs yet, which this node has"
        yield Finding("files", problem, "start the server of this node: it stores them")
    days = configuration.settings.retention.files_days
    since = Instant(0) if days is None else SystemClock().now().after(-days * DAY)
    try:
        for run_id, has_log, artifacts in database.ask(lambda tx: runs_with_files(tx, since, MOST_RUNS)):
            missing = [] if run_id in waiting else files.shared.missing(run_id, has_log, artifacts)
            if missing:
                problem = f"{files.shared.objects.url} does not have of the run {run_id}: {', '.join(missing[:10])}"
                yield Finding(
                    "files",
                    problem,
                    "start the node that ran it, which may still have it; else restore it from a version of the store",
                )
    except Unavailable as error:
        yield Finding("files", str(error), "check its address, its keys (AWS_…) and the way to it")
    except StoreError:  # The database is damaged, which `examine` has said.
        return


def _receivers(tx: Tx) -> list[tuple[str, str]]:
    """Returns who gets messages, and at which URL."""
    subscriptions = [(f"the subscription {one.webhook_id}", one.url) for one in webhooks.enabled(tx)]
    offices = [(f"the office {name!r}", str(webhook["url"])) for name, webhook in webhooks.offices(tx).items()]
    return subscriptions + offices


def backup(
    configuration: Configuration, target: Path | str, force: bool = False, progress: Progress | None = None
) -> Path:
    """Copies the database to a file, even while a server runs. The copy is checked before it gets its name."""
    target = _new_file(configuration, target, force)
    _maintenance(configuration).backup(target, progress or _silently)
    return target


def _new_file(configuration: Configuration, target: Path | str, force: bool) -> Path:
    target = Path(target).absolute()
    if _is_ours(configuration, target):
        # A running server would continue in a file without a name, and lose everything it writes.
        raise Conflict(f"{target} is part of the database itself: give another file")
    if target.exists() and not force:
        raise Conflict(f"{target} exists already: give another file, or --force to replace it")
    if not target.parent.is_dir():
        raise StoreError(f"the directory of {target} does not exist: create it first")
    return target


def _is_ours(configuration: Configuration, file: Path) -> bool:
    """Returns whether a file is the database, or one of the files that SQLite, the lock or an import keep beside it."""
    path = sqlite_path(configuration.store_url)
    return path is not None and file.resolve() in {
        Path(f"{path.resolve()}{suffix}") for suffix in ("", "-wal", "-shm", "-journal", ".lock", ".commits", ".import")
    }


def restore(
    configuration: Configuration,
    source: Path | str,
    force: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> Path | None:
    """Verifies a backup and makes it the database; with `verify` it only verifies.

    Returns the new name of the replaced file, if any. A PostgreSQL database must be empty. The next start recovers jobs
    that were running when the backup was made, as after a crash.
    """
    source = Path(source)
    maintenance.verify(source, progress or _silently)
    if verify:
        return None
    path = sqlite_path(configuration.store_url)
    places = [path, configuration.data / "logs", configuration.data / "artifacts"]
    there = [place for place in places if place is not None and place.exists()]
    if there and not force:
        raise Conflict(f"{there[0]} exists already: use another data directory, or --force to replace it")
    return _maintenance(configuration).restore(source, progress or _silently)


def export_to(
    configuration: Configuration, target: Path | str, force: bool = False, progress: Progress | None = None
) -> Moved:
    """Exports all stored data of either database to one file. No server may be running."""
    target = _new_file(configuration, target, force)
    return write_export(configuration.store_url, target, progress or _silently)


def import_from(configuration: Configuration, source: Path | str, progress: Progress | None = None) -> Moved:
    """Imports such a file into an empty database, verified, all or nothing.

    An interrupted import can be continued.
    """
    return load_export(Path(source), configuration.store_url, progress or _silently)


def _silently(doing: str, table: str, done: int, rows: int) -> None:
    """Ignores progress."""


async def purge(configuration: Configuration, dry_run: bool = False) -> Purged:
    """Deletes history older than `[retention]` allows. `dry_run` only counts it, even beside a running server."""
    retention = Retention(SystemClock(), _files(configuration), DaemonThreads())
    retention.use(Keep(**configuration.settings.retention.model_dump()))
    if dry_run:
        return _maintenance(configuration).ask(retention.count)
    _maintenance(configuration).pending()  # Raises if there is no database, instead of creating an empty one.
    async with opened(configuration, "a running server deletes old history once a day by itself") as access:
        return await retention.purge(access.store)


def _maintenance(configuration: Configuration) -> Maintenance:
    return maintenance_of(configuration.store_url)


@contextmanager
def _hint(online: str | None) -> Iterator[None]:
    try:
        yield
    except AlreadyOpen as error:
        hint = f"; {online}" if online else ""
        raise AlreadyOpen(f"{error}{hint}") from error


def _nothing_more(tx: Tx) -> None:
    """Does nothing: offline, the end of a transaction claims no jobs and appends no events."""

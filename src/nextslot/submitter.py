"""`Submitter` and `AsyncSubmitter`: handles that only submit jobs. Any number of processes may open them.

The address of a server (`http://…`) submits over HTTP. That of a PostgreSQL database stores requests there, which its
server takes in; `enqueue` does so in the caller's own transaction. Nothing of the engine is loaded.
"""

import asyncio
import inspect
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack

import orjson

from nextslot import domain
from nextslot.client import Client
from nextslot.client.keyword_arguments import JobOptions, NewJob
from nextslot.client.requests import bodies, post
from nextslot.domain.bounds import IN_PARAMS, meant, must_be
from nextslot.errors import Invalid, StoreError

if TYPE_CHECKING:
    from nextslot.store.postgres.enqueue import Wanted

_POSTGRES = ("postgresql://", "postgres://")
_OPTIONS = frozenset(JobOptions.__annotations__)


class Way(Protocol):
    """How requests get to the scheduler."""

    def submit(self, jobs: Sequence[NewJob]) -> list[str]: ...

    def close(self) -> None: ...


class Submitter:
    """Submits jobs and returns their ids. Threads may share it, and it may be used after a fork."""

    def __init__(self, url: str | None = None, *, key: str | None = None) -> None:
        """`url` is by default `NEXTSLOT_URL`, else the server of this machine; `key` is the API key of a server."""
        given = url or os.environ.get("NEXTSLOT_URL")
        if given is not None and given.startswith("sqlite:"):
            raise Invalid(
                "is a SQLite file, which one scheduler alone opens; give the address of its server, such as "
                "http://127.0.0.1:8000",
                field="url",
            )
        if given is not None and given.startswith(_POSTGRES):
            self._way: Way = _ByDatabase(given)
        else:
            self._way = _ByHttp(given, key)

    def submit(self, job_type: str, params: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]) -> str:
        """Submits a job, and returns its id; the request is durable when this returns."""
        return self._way.submit([_job(job_type, params, options)])[0]

    def submit_many(self, jobs: Sequence[NewJob | domain.NewJob]) -> list[str]:
        """Submits many jobs, all or none, and returns their ids."""
        return self._way.submit([_checked(one, number) for number, one in enumerate(jobs)])

    def close(self) -> None:
        self._way.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncSubmitter:
    """A `Submitter` on an event loop: each call waits in a thread."""

    def __init__(self, url: str | None = None, *, key: str | None = None) -> None:
        self._submitter = Submitter(url, key=key)

    async def submit(
        self, job_type: str, params: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]
    ) -> str:
        """Does what `Submitter.submit` does."""
        return await asyncio.to_thread(self._submitter.submit, job_type, params, **options)

    async def submit_many(self, jobs: Sequence[NewJob | domain.NewJob]) -> list[str]:
        """Does what `Submitter.submit_many` does."""
        return await asyncio.to_thread(self._submitter.submit_many, jobs)

    async def close(self) -> None:
        await asyncio.to_thread(self._submitter.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def enqueue(
    connection: Any, job_type: str, params: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]
) -> str:
    """Stores a request in the transaction of a connection to PostgreSQL, and returns the id of its job. The job exists
    if that transaction commits.

    `connection` is one of psycopg, or a Connection or Session of SQLAlchemy that uses psycopg.
    """
    from nextslot.store.postgres.enqueue import enqueued

    if hasattr(connection, "connection") and callable(connection.connection):
        connection = connection.connection()  # A Session has its Connection.
    return enqueued(_execute(connection), [_wanted(_job(job_type, params, options))])[0]


async def enqueue_async(
    connection: Any, job_type: str, params: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]
) -> str:
    """Does what `enqueue` does, on an AsyncConnection of psycopg, or on one or an AsyncSession of SQLAlchemy that uses
    psycopg."""
    from nextslot.store.postgres.enqueue import CALL

    wanted = _wanted(_job(job_type, params, options))
    if inspect.iscoroutinefunction(getattr(type(connection), "connection", None)):
        connection = await connection.connection()  # An AsyncSession has its AsyncConnection.
    row = (await _execute(connection)(CALL, wanted)).fetchone()
    if inspect.isawaitable(row):  # A cursor of psycopg; the result of SQLAlchemy has its rows already.
        row = await row
    return str(row[0])


def _execute(connection: Any) -> Any:
    """Returns the method of a connection of SQLAlchemy or psycopg that carries out SQL."""
    if hasattr(connection, "exec_driver_sql"):
        return connection.exec_driver_sql
    if not hasattr(connection, "pgconn"):
        wanted = "a connection of psycopg, or a Connection or Session of SQLAlchemy"
        raise Invalid(must_be(connection, wanted), field="connection")
    return connection.execute


class _ByHttp:
    """One client for each process: connections do not survive a fork."""

    def __init__(self, url: str | None, key: str | None) -> None:
        self._url, self._key = url, key
        self._client: Client | None = None
        self._process = 0

    def submit(self, jobs: Sequence[NewJob]) -> list[str]:
        if self._client is None or self._process != os.getpid():
            self._client, self._process = Client(self._url, key=self._key), os.getpid()
        return [one.job_id for one in self._client.submit_many(jobs)] if jobs else []

    def close(self) -> None:
        if self._client is not None and self._process == os.getpid():
            self._client.close()
        self._client = None


class _ByDatabase:
    def __init__(self, url: str) -> None:
        try:
            from nextslot.store.postgres.enqueue import EnqueueConnection
        except ImportError as error:
            raise StoreError("PostgreSQL needs its driver: pip install 'nextslot[postgres]'") from error
        self._connection: EnqueueConnection = EnqueueConnection(url)

    def submit(self, jobs: Sequence[NewJob]) -> list[str]:
        if any(one.get("key") is not None for one in jobs):
            raise Invalid(
                "names a job within one request, which the inbox of a database does not know; submit one after the "
                "other, and give the id of one to depends_on of the next",
                field="key",
            )
        return self._connection.enqueue([_wanted(one) for one in jobs])

    def close(self) -> None:
        self._connection.close()


def _job(job_type: str, params: Mapping[str, Any] | None, options: JobOptions) -> NewJob:
    made: Any = {"job_type": job_type, "params": dict(params or {}), **options}
    return _checked(made, None)


def _checked(job: NewJob | domain.NewJob, number: int | None) -> NewJob:
    """Refuses what no job has, before anything is sent: the answer of an inbox would come too late."""
    at = "" if number is None else f"jobs.{number}."
    if isinstance(job, domain.NewJob):
        said: Any = bodies([job])[0]
        return _checked(said, number)
    if not isinstance(job, Mapping):
        raise Invalid(must_be(job, "a dict of the fields of a job"), field=at.rstrip("."))
    if not isinstance(job.get("job_type"), str):
        raise Invalid("is missing; give the name of a job type", field=f"{at}job_type")
    known = {*_OPTIONS, "job_type", "params", "key", "template_id"}
    for wrong in sorted(job.keys() - known):
        raise Invalid("is not a field of a job" + meant(wrong, known, IN_PARAMS), field=at + wrong)
    return job


def _wanted(job: NewJob) -> "Wanted":
    given: dict[str, Any] = {**job}
    job_type, params = given.pop("job_type"), given.pop("params", {})
    content = post("", {"params": params, "options": given}).content or b"{}"
    plain = orjson.loads(content)
    return job_type, orjson.dumps(plain["params"]).decode(), orjson.dumps(plain["options"]).decode()

"""The lease of a node on PostgreSQL.

It has its own thread and connection, so that neither a long transaction nor a handler that blocks the event loop makes
the node look dead. It renews the lease by the database's clock, tries to become the leader, and receives the
notifications of other nodes. If the lease cannot be renewed, it notifies its member in time that all work must stop.

A handler that holds the interpreter's lock stops this thread too. Then the sidecar renews the lease in its place. The
deadline of all work, in the node's heartbeat file, is the later of the two renewals. Neither renews the lease of a node
whose event loop has not answered for `unresponsive_seconds`.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from nextslot.store.contract import LOST, TOPICS, Membership
from nextslot.system.sidecar import NodeVitals
from nextslot.system.sidecar_main import RENEW
from nextslot.system.sidecar_main import now as boottime

from .sessions import SERVER_TIMEOUTS, Address, Keys

T = TypeVar("T")
log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
LONGEST_PAUSE = 2.0
# The topics that a node checks after each renewal even without a notification, because one may have been lost.
ALWAYS = frozenset(TOPICS)

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


class Fence(Exception):
    """The lease is gone: another node has declared this one lost."""


class Unresponsive(Exception):
    """The event loop of this node has not answered for so long that other nodes should take over its work."""


class Lease:
    def __init__(
        self, address: Address, name: str, keys: Keys, membership: Membership, vitals: NodeVitals | None = None
    ) -> None:
        self._address = address
        self._name = name
        self._keys = keys
        self._membership = membership
        self._sidecar = None if vitals is None else vitals.sidecar
        # Stored here, since this thread may outlive the watchdog by a moment.
        self._heartbeat = None if vitals is None else vitals.heartbeat
        self._loop = asyncio.get_running_loop()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._wakeup = asyncio.Event()
        self._is_over = False
        self._is_leader = False
        self._is_following = False
        self._has_lapsed = False
        self._was_silent = False
        self._renewed_until = boottime() + membership.times.work_seconds - membership.age
        if self._heartbeat is not None:
            self._heartbeat.until = self._renewed_until
        if self._sidecar is not None:
            self._sidecar.keep(self._for_sidecar())
        self._notify(lambda: membership.member.renewed(self._until), on_loop=False)
        self._thread = threading.Thread(target=self._run, name="nextslot-lease", daemon=True)
        self._thread.start()

    def follow(self, is_following: bool) -> None:
        self._is_following = is_following
        self._wake()

    def close(self) -> None:
        """Ends the lease; called on the scheduler's thread. The leader's lock is released with the connection."""
        self._is_over = True
        self._wake()
        if self._sidecar is not None:
            self._sidecar.keep(None)
        self._thread.join(timeout=self._membership.times.renew_seconds + 1)

    @property
    def _until(self) -> float:
        """Returns when work must have ended, by the last renewal of this thread or of the sidecar."""
        return self._renewed_until if self._heartbeat is None else max(self._renewed_until, self._heartbeat.until)

    def _for_sidecar(self) -> Mapping[str, object]:
        times = self._membership.times
        named = {**self._address.parameters, "connect_timeout": 2, "application_name": f"{self._name} sidecar"[:63]}
        return {
            "conninfo": make_conninfo(**named),
            "node_id": self._membership.node_id,
            "life": self._membership.life,
            "renew": times.renew_seconds,
            "work": times.work_seconds,
            "lease": times.lease_seconds,
            "unresponsive": times.unresponsive_seconds,
        }

    def _wake(self) -> None:
        loop = self._own_loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop has ended already.
                loop.call_soon_threadsafe(self._wakeup.set)

    # On the lease's own thread.

    def _run(self) -> None:
        asyncio.run(self._keep())

    async def _keep(self) -> None:
        self._own_loop, self._wakeup = asyncio.get_running_loop(), asyncio.Event()
        pause = PAUSE_SECONDS
        while not self._is_over:
            try:
                self._refuse_if_unresponsive()
                connection = await self._in_time(self._connect())
                try:
                    pause = PAUSE_SECONDS
                    await self._hold(connection)
                finally:
                    with contextlib.suppress(psycopg.Error, TimeoutError, OSError):
                        await asyncio.wait_for(connection.close(), 1)
            except Fence:
                self._notify(self._membership.member.fenced)
                self._is_over = True
            except Unresponsive as silent:
                self._log_once(silent)
            except (psycopg.Error, TimeoutError, OSError) as error:
                log.warning(
                    "node %s cannot renew its lease, it tries again: %s",
                    self._membership.node_id,
                    self._address.hide(str(error)),
                )
            self._lose_lead()
            self._lapse_if_late()
            if not self._is_over:
                await self._wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _connect(self) -> Connection:
        return await psycopg.AsyncConnection.connect(
            **{**self._address.parameters, "connect_timeout": 5, "application_name": f"{self._name} lease"[:63]},
            autocommit=True,
        )

    async def _hold(self, connection: Connection) -> None:
        """Keeps the lease while the connection lasts."""
        await self._in_time(connection.execute(SERVER_TIMEOUTS))
        # If this node freezes while it holds the leader's lock, the server ends this session when the lease is over.
        silent = round(self._membership.times.lease_seconds * 1000)
        await self._in_time(connection.execute(f"set idle_session_timeout = {silent}"))
        is_listening, since = False, time.monotonic()
        for topic in TOPICS:
            if topic != "events":
                await self._in_time(connection.execute(sql.SQL("listen {}").format(self._channel(topic))))
        while not self._is_over:
            self._refuse_if_unresponsive()
            await self._renew(connection)
            if not self._is_leader and await self._in_time(self._fetch_value(connection, self._keys.lead_sql)):
                self._is_leader = True
                self._notify(lambda: self._membership.member.leads(True))
            # After an outage of the database, each node gets a full lease time to come back.
            is_sure = time.monotonic() - since > self._membership.times.lease_seconds
            topics = ALWAYS | {LOST} if is_sure else ALWAYS
            self._notify(partial(self._membership.member.notified, topics))
            end = time.monotonic() + self._membership.times.renew_seconds
            while not self._is_over and (left := end - time.monotonic()) > 0:
                if self._is_following != is_listening:
                    is_listening = self._is_following
                    verb = "listen" if is_listening else "unlisten"
                    await self._in_time(connection.execute(sql.SQL(verb + " {}").format(self._channel("events"))))
                    self._notify(lambda: self._membership.member.notified(frozenset({"events"})))
                await self._receive(connection, left)

    async def _renew(self, connection: Connection) -> None:
        times, began, sent = self._membership.times, boottime(), time.monotonic()
        values = (round(times.lease_seconds * 1_000_000), self._membership.node_id, self._membership.life)
        found = await self._in_time(self._fetch_value(connection, RENEW, values))
        if found is None:
            raise Fence
        # Read now, since the event loop may run the call much later.
        received = time.monotonic()
        self._notify(lambda: self._membership.adjust(found, sent, received))
        if self._has_lapsed:
            self._notify(lambda: self._membership.member.lapsed(False))
        self._renewed_until, self._has_lapsed, self._was_silent = began + times.work_seconds, False, False
        if self._heartbeat is not None:
            self._heartbeat.until = self._until
        self._notify(lambda: self._membership.member.renewed(self._until), on_loop=False)

    async def _receive(self, connection: Connection, seconds: float) -> None:
        """Receives notifications until it is time to renew, or until another thread wakes this one."""
        self._wakeup.clear()
        listening = asyncio.ensure_future(self._next_topics(connection, seconds))
        woken = asyncio.ensure_future(self._wakeup.wait())
        try:
            await asyncio.wait({listening, woken}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done() and (topics := listening.result()):
                self._notify(lambda: self._membership.member.notified(topics))
        finally:
            for task in (listening, woken):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, psycopg.Error):
                    await task

    async def _next_topics(self, connection: Connection, seconds: float) -> frozenset[str]:
        """Returns all topics that have arrived by the time the first is read."""
        found = set()
        async for notice in connection.notifies(timeout=seconds, stop_after=1):
            if notice.payload != self._membership.node_id:
                found.add(notice.channel.rpartition("_")[2])
        return frozenset(found)

    async def _fetch_value(self, connection: Connection, query: str, values: tuple[Any, ...] = ()) -> Any:
        row = await (await connection.execute(query, values)).fetchone()
        return row[0] if row else None

    async def _in_time(self, work: Awaitable[T]) -> T:
        """Awaits `work`, but no longer than until the lease must be renewed or its work must end."""
        left = self._until - boottime()
        return await asyncio.wait_for(work, min(self._membership.times.renew_seconds, left) if left > 0 else 2.0)

    async def _wait(self, seconds: float) -> None:
        self._wakeup.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wakeup.wait(), seconds)

    def _refuse_if_unresponsive(self) -> None:
        silent = 0.0 if self._heartbeat is None else self._heartbeat.silent_seconds
        if silent > self._membership.times.unresponsive_seconds:
            raise Unresponsive(f"the event loop has not answered for {silent:.0f} s")

    def _log_once(self, silent: Unresponsive) -> None:
        if not self._was_silent:
            self._was_silent = True
            log.error("node %s stops renewing its lease: %s", self._membership.node_id, silent)

    def _lose_lead(self) -> None:
        if self._is_leader:
            self._is_leader = False
            self._notify(lambda: self._membership.member.leads(False))

    def _lapse_if_late(self) -> None:
        if boottime() >= self._until:
            self._has_lapsed = True
            self._notify(lambda: self._membership.member.lapsed(True))

    def _channel(self, topic: str) -> sql.Identifier:
        return sql.Identifier(f"{self._keys.channel}_{topic}")

    def _notify(self, call: Callable[[], None], on_loop: bool = True) -> None:
        if not on_loop:
            call()
        else:
            with contextlib.suppress(RuntimeError):  # The scheduler's event loop has ended already.
                self._loop.call_soon_threadsafe(call)

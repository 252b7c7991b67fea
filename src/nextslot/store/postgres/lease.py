"""The lease of a node on PostgreSQL: a thread and a connection of its own, so that neither a long transaction nor a
handler that blocks the event loop looks like a dead machine.

It renews the lease by the database's clock, tries to become the leader, and listens to what other nodes announce.
Whatever happens, it tells its member in time that the work must end.

A handler that holds the interpreter's lock stops this thread too: then the sidecar renews the lease in its place, and
the deadline of all work, which is in the node's pulse, is the later of what the two have got from the database. A node
whose event loop has not answered for `unresponsive_seconds` is renewed by neither.
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

from nextslot.store.membership import LOST, TOPICS, Membership
from nextslot.system.sidecar import NodeVitals
from nextslot.system.sidecar_main import RENEW
from nextslot.system.sidecar_main import now as boottime

from .sessions import VIGILANCE, Address, Keys

T = TypeVar("T")
log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
LONGEST_PAUSE = 2.0
# What a node looks at even if nobody announced it: the safety net for an announcement that was lost.
ALWAYS = frozenset(TOPICS)

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


class Fence(Exception):
    """The lease is gone: somebody declared this node lost."""


class Unresponsive(Exception):
    """The event loop of this node has not answered for so long that others had better do its work."""


class Lease:
    def __init__(
        self, address: Address, name: str, keys: Keys, membership: Membership, vitals: NodeVitals | None = None
    ) -> None:
        self._address = address
        self._name = name
        self._keys = keys
        self._membership = membership
        self._sidecar = None if vitals is None else vitals.sidecar
        # Kept here, since this thread may outlast the watchdog by a moment.
        self._pulse = None if vitals is None else vitals.pulse
        self._loop = asyncio.get_running_loop()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._life: asyncio.Task[None] | None = None
        self._poke = asyncio.Event()
        self._is_over = False
        self._is_leader = False
        self._is_following = False
        self._has_lapsed = False
        self._was_silent = False
        self._renewed_until = boottime() + membership.times.work_seconds
        if self._pulse is not None:
            self._pulse.until = self._renewed_until
        if self._sidecar is not None:
            self._sidecar.keep(self._for_sidecar())
        self._tell(lambda: membership.member.renewed(self._until), on_loop=False)
        self._thread = threading.Thread(target=self._run, name="nextslot-lease", daemon=True)
        self._thread.start()

    def follow(self, is_following: bool) -> None:
        self._is_following = is_following
        self._wake()

    def close(self) -> None:
        """From the scheduler's thread; the lock of the leader goes with the connection."""
        self._is_over = True
        self._wake()
        if self._sidecar is not None:
            self._sidecar.keep(None)
        self._thread.join(timeout=self._membership.times.renew_seconds + 1)

    @property
    def _until(self) -> float:
        """When work must have ended: by the last renewal, whoever of the two has made it."""
        return self._renewed_until if self._pulse is None else max(self._renewed_until, self._pulse.until)

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
            with contextlib.suppress(RuntimeError):  # It has ended already.
                loop.call_soon_threadsafe(self._poke.set)

    # On its own thread.

    def _run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        self._own_loop, self._poke = asyncio.get_running_loop(), asyncio.Event()
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
                self._tell(self._membership.member.fenced)
                self._is_over = True
            except Unresponsive as silent:
                self._say_once(silent)
            except (psycopg.Error, TimeoutError, OSError) as error:
                log.warning(
                    "node %s cannot renew its lease: %s", self._membership.node_id, self._address.hide(str(error))
                )
            self._lose_lead()
            self._lapse_if_late()
            if not self._is_over:
                await self._rest(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _connect(self) -> Connection:
        return await psycopg.AsyncConnection.connect(
            **{**self._address.parameters, "connect_timeout": 5, "application_name": f"{self._name} lease"[:63]},
            autocommit=True,
        )

    async def _hold(self, connection: Connection) -> None:
        """As long as the connection lasts."""
        await self._in_time(connection.execute(VIGILANCE))
        # A node that stands still with the leader's lock loses it with its lease: the server ends this session then.
        silent = round(self._membership.times.lease_seconds * 1000)
        await self._in_time(connection.execute(f"set idle_session_timeout = {silent}"))
        is_listening, since = False, time.monotonic()
        for topic in TOPICS:
            if topic != "events":
                await self._in_time(connection.execute(sql.SQL("listen {}").format(self._channel(topic))))
        while not self._is_over:
            self._refuse_if_unresponsive()
            await self._renew(connection)
            if not self._is_leader and await self._in_time(self._asked(connection, self._keys.lead_sql)):
                self._is_leader = True
                self._tell(lambda: self._membership.member.leads(True))
            # After an outage of the database itself, everybody has a full lease to come back.
            is_sure = time.monotonic() - since > self._membership.times.lease_seconds
            topics = ALWAYS | {LOST} if is_sure else ALWAYS
            self._tell(partial(self._membership.member.heard, topics))
            end = time.monotonic() + self._membership.times.renew_seconds
            while not self._is_over and (left := end - time.monotonic()) > 0:
                if self._is_following != is_listening:
                    is_listening = self._is_following
                    verb = "listen" if is_listening else "unlisten"
                    await self._in_time(connection.execute(sql.SQL(verb + " {}").format(self._channel("events"))))
                    self._tell(lambda: self._membership.member.heard(frozenset({"events"})))
                await self._hear(connection, left)

    async def _renew(self, connection: Connection) -> None:
        times, began, sent = self._membership.times, boottime(), time.monotonic()
        values = (round(times.lease_seconds * 1_000_000), self._membership.node_id, self._membership.life)
        found = await self._in_time(self._asked(connection, RENEW, values))
        if found is None:
            raise Fence
        # Read here: the loop may come to it much later.
        received = time.monotonic()
        self._tell(lambda: self._membership.adjust(found, sent, received))
        self._renewed_until, self._has_lapsed, self._was_silent = began + times.work_seconds, False, False
        if self._pulse is not None:
            self._pulse.until = self._until
        self._tell(lambda: self._membership.member.renewed(self._until), on_loop=False)

    async def _hear(self, connection: Connection, seconds: float) -> None:
        """What others announce, until it is time to renew or somebody wakes us."""
        self._poke.clear()
        listening = asyncio.ensure_future(self._next_topics(connection, seconds))
        poked = asyncio.ensure_future(self._poke.wait())
        try:
            await asyncio.wait({listening, poked}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done() and (topics := listening.result()):
                self._tell(lambda: self._membership.member.heard(topics))
        finally:
            for task in (listening, poked):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, psycopg.Error):
                    await task

    async def _next_topics(self, connection: Connection, seconds: float) -> frozenset[str]:
        """All that has come by the time that the first is read."""
        found = set()
        async for notice in connection.notifies(timeout=seconds, stop_after=1):
            if notice.payload != self._membership.node_id:
                found.add(notice.channel.rpartition("_")[2])
        return frozenset(found)

    async def _asked(self, connection: Connection, query: str, values: tuple[Any, ...] = ()) -> Any:
        row = await (await connection.execute(query, values)).fetchone()
        return row[0] if row else None

    async def _in_time(self, work: Awaitable[T]) -> T:
        """Nothing is waited for longer than until the lease has to be renewed, or its work to be ended."""
        left = self._until - boottime()
        return await asyncio.wait_for(work, min(self._membership.times.renew_seconds, left) if left > 0 else 2.0)

    async def _rest(self, seconds: float) -> None:
        self._poke.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._poke.wait(), seconds)

    def _refuse_if_unresponsive(self) -> None:
        silent = 0.0 if self._pulse is None else self._pulse.silent_seconds
        if silent > self._membership.times.unresponsive_seconds:
            raise Unresponsive(f"its event loop has not answered for {silent:.0f} s")

    def _say_once(self, silent: Unresponsive) -> None:
        if not self._was_silent:
            self._was_silent = True
            log.error("the lease of node %s is let go: %s", self._membership.node_id, silent)

    def _lose_lead(self) -> None:
        if self._is_leader:
            self._is_leader = False
            self._tell(lambda: self._membership.member.leads(False))

    def _lapse_if_late(self) -> None:
        if not self._has_lapsed and boottime() >= self._until:
            self._has_lapsed = True
            self._tell(self._membership.member.lapsed)

    def _channel(self, topic: str) -> sql.Identifier:
        return sql.Identifier(f"{self._keys.channel}_{topic}")

    def _tell(self, call: Callable[[], None], on_loop: bool = True) -> None:
        if not on_loop:
            call()
        else:
            with contextlib.suppress(RuntimeError):  # The scheduler's loop has ended without us.
                self._loop.call_soon_threadsafe(call)

"""The lease of a node on PostgreSQL: a thread and a connection of its own, so that neither a long transaction nor a
handler that blocks the event loop looks like a dead machine.

It renews the lease by the database's clock, tries to become the leader, and listens to what other nodes announce.
Whatever happens, it tells its member in time that the work must end.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from .membership import LOST, TOPICS, Seat
from .postgres_session import VIGILANCE, Address, Keys

T = TypeVar("T")
log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
LONGEST_PAUSE = 2.0
# What a node looks at even if nobody announced it: the safety net for an announcement that was lost.
ALWAYS = frozenset(TOPICS)

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

_RENEW = """
update nodes set renewed_at = {now}, lease_until = {now} + %s where node_id = %s and life = %s and status = 'live'
returning renewed_at
""".replace("{now}", "(extract(epoch from clock_timestamp()) * 1000000)::bigint")


class Fence(Exception):
    """The lease is gone: somebody declared this node lost."""


class Lease:
    def __init__(self, address: Address, name: str, keys: Keys, seat: Seat) -> None:
        self._address = address
        self._name = name
        self._keys = keys
        self._seat = seat
        self._loop = asyncio.get_running_loop()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._life: asyncio.Task[None] | None = None
        self._poke = asyncio.Event()
        self._is_over = False
        self._is_leader = False
        self._is_following = False
        self._has_lapsed = False
        self._until = boottime() + seat.times.work_seconds
        self._tell(lambda: seat.member.renewed(self._until), on_loop=False)
        self._thread = threading.Thread(target=self._run, name="nextslot-lease", daemon=True)
        self._thread.start()

    def follow(self, is_following: bool) -> None:
        self._is_following = is_following
        self._wake()

    def close(self) -> None:
        """From the scheduler's thread; the lock of the leader goes with the connection."""
        self._is_over = True
        self._wake()
        self._thread.join(timeout=self._seat.times.renew_seconds + 1)

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
                connection = await self._in_time(self._connect())
                try:
                    pause = PAUSE_SECONDS
                    await self._hold(connection)
                finally:
                    with contextlib.suppress(psycopg.Error, TimeoutError, OSError):
                        await asyncio.wait_for(connection.close(), 1)
            except Fence:
                self._tell(self._seat.member.fenced)
                self._is_over = True
            except (psycopg.Error, TimeoutError, OSError) as error:
                log.warning("node %s cannot renew its lease: %s", self._seat.node_id, self._address.hide(str(error)))
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
        silent = round(self._seat.times.lease_seconds * 1000)
        await self._in_time(connection.execute(f"set idle_session_timeout = {silent}"))
        is_listening, since = False, time.monotonic()
        for topic in TOPICS:
            if topic != "events":
                await self._in_time(connection.execute(sql.SQL("listen {}").format(self._channel(topic))))
        while not self._is_over:
            await self._renew(connection)
            if not self._is_leader and await self._in_time(self._asked(connection, self._keys.lead_sql)):
                self._is_leader = True
                self._tell(lambda: self._seat.member.leads(True))
            # After an outage of the database itself, everybody has a full lease to come back.
            is_sure = time.monotonic() - since > self._seat.times.lease_seconds
            topics = ALWAYS | {LOST} if is_sure else ALWAYS
            self._tell(partial(self._seat.member.heard, topics))
            end = time.monotonic() + self._seat.times.renew_seconds
            while not self._is_over and (left := end - time.monotonic()) > 0:
                if self._is_following != is_listening:
                    is_listening = self._is_following
                    verb = "listen" if is_listening else "unlisten"
                    await self._in_time(connection.execute(sql.SQL(verb + " {}").format(self._channel("events"))))
                    self._tell(lambda: self._seat.member.heard(frozenset({"events"})))
                await self._hear(connection, left)

    async def _renew(self, connection: Connection) -> None:
        times, began, sent = self._seat.times, boottime(), time.monotonic()
        values = (round(times.lease_seconds * 1_000_000), self._seat.node_id, self._seat.life)
        found = await self._in_time(self._asked(connection, _RENEW, values))
        if found is None:
            raise Fence
        # Read here: the loop may come to it much later.
        received = time.monotonic()
        self._tell(lambda: self._seat.adjust(found, sent, received))
        self._until, self._has_lapsed = began + times.work_seconds, False
        self._tell(lambda: self._seat.member.renewed(self._until), on_loop=False)

    async def _hear(self, connection: Connection, seconds: float) -> None:
        """What others announce, until it is time to renew or somebody wakes us."""
        self._poke.clear()
        listening = asyncio.ensure_future(self._next_topics(connection, seconds))
        poked = asyncio.ensure_future(self._poke.wait())
        try:
            await asyncio.wait({listening, poked}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done() and (topics := listening.result()):
                self._tell(lambda: self._seat.member.heard(topics))
        finally:
            for task in (listening, poked):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, psycopg.Error):
                    await task

    async def _next_topics(self, connection: Connection, seconds: float) -> frozenset[str]:
        """All that has come by the time that the first is read."""
        found = set()
        async for notice in connection.notifies(timeout=seconds, stop_after=1):
            if notice.payload != self._seat.node_id:
                found.add(notice.channel.rpartition("_")[2])
        return frozenset(found)

    async def _asked(self, connection: Connection, query: str, values: tuple[Any, ...] = ()) -> Any:
        row = await (await connection.execute(query, values)).fetchone()
        return row[0] if row else None

    async def _in_time(self, work: Awaitable[T]) -> T:
        """Nothing is waited for longer than until the lease has to be renewed, or its work to be ended."""
        left = self._until - boottime()
        return await asyncio.wait_for(work, min(self._seat.times.renew_seconds, left) if left > 0 else 2.0)

    async def _rest(self, seconds: float) -> None:
        self._poke.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._poke.wait(), seconds)

    def _lose_lead(self) -> None:
        if self._is_leader:
            self._is_leader = False
            self._tell(lambda: self._seat.member.leads(False))

    def _lapse_if_late(self) -> None:
        if not self._has_lapsed and boottime() >= self._until:
            self._has_lapsed = True
            self._tell(self._seat.member.lapsed)

    def _channel(self, topic: str) -> sql.Identifier:
        return sql.Identifier(f"{self._keys.channel}_{topic}")

    def _tell(self, call: Callable[[], None], on_loop: bool = True) -> None:
        if not on_loop:
            call()
        else:
            with contextlib.suppress(RuntimeError):  # The scheduler's loop has ended without us.
                self._loop.call_soon_threadsafe(call)


def boottime() -> float:
    """As the guardians count: it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)

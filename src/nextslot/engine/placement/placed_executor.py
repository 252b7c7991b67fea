"""PlacedExecutor: hands a run to its engine and follows the run's records to the end, as `Executor` runs one locally.

A run ends by its wrapper's record, by its lease, or by an operator, never because this node or the engine reports an
end. Each step reads the records first, and another node can repeat it: the first writer of `claim.json` and of
`end.json` decides.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson

from nextslot.domain import FailureKind, Json, Outcome
from nextslot.domain.placements import Placement, PlacementSpec, PlacementState
from nextslot.engine.dispatch.resource_outages import Outages
from nextslot.engine.effects import Claim
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.execution.executor import NOTHING_GIVEN, Given, Keep, SetSession
from nextslot.errors import Unavailable
from nextslot.executors.checkpoints import CheckpointLines
from nextslot.executors.command import INHERITED
from nextslot.executors.command_output import Output
from nextslot.executors.engines import wrapper_archive
from nextslot.executors.engines.contract import Cause, Key, Refused, Sight, Submission
from nextslot.executors.engines.engines import EngineSettings
from nextslot.executors.engines.placed_command import BY_ENGINE, outcome_of
from nextslot.executors.engines.run_directory import Look, RunDirectory, hash_of
from nextslot.executors.inputs import inputs_of
from nextslot.executors.process_tree.run_marks import RUN_ID, tag_of
from nextslot.executors.run_context import Listener, RunContext
from nextslot.executors.run_files import TOLD, RunFiles
from nextslot.executors.threads import Threads
from nextslot.store.contract import Store, Tx
from nextslot.store.tables import old_history, placements
from nextslot.system.instant import Instant

from .engine_watch import EngineWatch

log = logging.getLogger(__name__)

T = TypeVar("T")

# The first pause between two reads of the records; pauses grow up to the engine's `poll_seconds`.
FIRST_PAUSE = 0.05
# How long, and how often, an engine must say that it does not know a run or that the run has ended, before this is
# believed of a run that no wrapper has claimed: records written on another machine may become visible late.
ABSENT_SECONDS, FEWEST_SIGHTS = 10.0, 3
# How often a renewal of the lease is stored in the database.
STORE_RENEWAL_SECONDS = 60.0
# How long after the grace time the executor also requests the engine to end a run that should stop.
ENGINE_STOP_SECONDS = 15.0
# How long, and how often, an engine is asked why it has ended a run.
CAUSE_SECONDS, CAUSE_PAUSE = 15.0, 0.5
COPY_TRIES = 5
# How often directories of ended runs are searched for, while runs end.
SWEEP_SECONDS = 300.0
LEASE_OVER = "its wrapper has not renewed its lease for {seconds:g} seconds, and it is taken for dead"
STOP_WORDS = {
    FailureKind.CANCELLED: "cancelled before it began on the engine",
    FailureKind.INTERRUPTED: "interrupted before it began on the engine",
    FailureKind.TIMEOUT: "timed out before it began on the engine",
}


@dataclass(slots=True, eq=False)
class _Followed:
    """A placed run that this node follows, with the last contents of its records."""

    claim: Claim
    placed: Placement
    run: RunContext
    output: Output
    directory: RunDirectory
    # The token of the start; only the transaction that started the run and the run's directory know it.
    token: str | None
    handle: str | None
    state: PlacementState
    checkpoints: CheckpointLines
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    position: int = 0
    lease: str = ""
    # Readings of the monotonic clock: when the lease ends, when it was renewed, and when the renewal was stored.
    lease_over_at: float = 0.0
    renewed_at: float = 0.0
    stored_at: float = 0.0
    has_begun: bool = False
    checkpoint: str | None = None
    stopped_by: FailureKind | None = None
    asked_at: float | None = None
    absent_since: float | None = None
    absent_sights: int = 0
    pause: float = FIRST_PAUSE

    @property
    def spec(self) -> PlacementSpec:
        return self.placed.spec


class PlacedExecutor:
    """Runs claims on engines. `PlacedRunner` calls `run`; a call may be cancelled and repeated on any node."""

    stall_alarm_seconds: float | None = None

    def __init__(self, engine: EngineContext, outages: Outages, files: RunFiles, threads: Threads) -> None:
        self._clock = engine.clock
        self._chance = engine.chance
        self._job_types = engine.job_types
        self._outages = outages
        self._files = files
        self._threads = threads
        self._store: Store | None = None
        self._watches: dict[str, EngineWatch] = {}
        # Launched runs that have not begun: the placement, the token, and the reason to stop if there is one.
        self._expected: dict[str, tuple[Placement, str | None, FailureKind | None]] = {}
        self._followed: dict[str, _Followed] = {}
        # The engines' handles of runs that have ended, until what the engine stores of them is deleted.
        self._handles: dict[str, str] = {}
        # Since when a directory is known of a run that has ended, and when the next sweep is due, by monotonic time.
        self._left_since: dict[Path, float] = {}
        self._next_sweep = 0.0

    def open(self, store: Store) -> None:
        """Sets the store, and the engines of the configuration."""
        self._store = store
        for name, settings in self._job_types.engines.settings.items():
            self._watch(name, settings)

    def _watch(self, name: str, settings: EngineSettings) -> None:
        engine = self._job_types.engines.get(name)
        assert engine is not None
        watch = EngineWatch(name, engine, settings.poll_seconds, self._call, self._clock, self._outages)
        watch.store = self._store
        self._watches[name] = watch
        self._outages.set_probe(name, watch.probe)

    def problem(self, name: str) -> str | None:
        """Returns why an engine does not answer this node; None if the engine answers, or got no request yet."""
        watch = self._watches.get(name)
        return None if watch is None else watch.problem

    async def disown(self, placed: Placement, why: str) -> bool:
        """Writes into the records that a run is given up. Returns False if the run's wrapper has ended the run.

        If the records cannot be written, the operator's word alone decides.
        """
        directory = RunDirectory(_path(placed.spec, placed.run_id), placed.token_hash)
        self.wake(placed.run_id)
        try:
            return await self._call(lambda: directory.disown(why))
        except OSError as error:
            log.warning("run %s is given up, which its records do not say: %s", placed.run_id, error)
            return True

    async def sweep(self) -> None:
        """Deletes the directories that crashes and runs that were given up have left, if the last sweep was long ago.

        A wrapper that lives reads in its directory that its run was given up. So a directory is deleted only after it
        was there, of a run that had ended, for as long as a lease: then no wrapper lives that has lost it.
        """
        now = self._clock.monotonic()
        if now < self._next_sweep:
            return
        self._next_sweep = now + SWEEP_SECONDS
        for settings in self._job_types.engines.settings.values():
            names = await self._call(lambda s=settings: _directories(s.directory))  # type: ignore[misc]
            assert self._store is not None
            known = await self._store.read(partial(_known, names))
            for path in [settings.directory / name for name, has_ended in known.items() if has_ended]:
                if now - self._left_since.setdefault(path, now) >= settings.lease_seconds:
                    await self._call(lambda path=path: shutil.rmtree(path, ignore_errors=True))  # type: ignore[misc]
                    del self._left_since[path]

    # Calls of the runner and of the effects.

    def place(self, placed: Placement, token: str | None) -> None:
        """Notes the placement of a run to launch; the token is None if another process has started the run."""
        self._expected[placed.run_id] = placed, token, None

    def expect(self, run_id: str) -> None:
        """Does nothing: the runner calls it at each launch, and `place` has noted the placement already."""

    def forget(self, run_id: str) -> None:
        self._expected.pop(run_id, None)
        self._handles.pop(run_id, None)

    def stop(self, run_id: str, kind: FailureKind) -> None:
        """Requests the stop of a run. The first kind counts; the records say how the run ends."""
        followed = self._followed.get(run_id)
        if followed is not None:
            followed.stopped_by = followed.stopped_by or kind
            followed.wake.set()
        elif run_id in self._expected:
            placed, token, before = self._expected[run_id]
            self._expected[run_id] = placed, token, before or kind

    def wake(self, run_id: str) -> None:
        """Lets the executor read the records of a run at once."""
        if run_id in self._followed:
            self._followed[run_id].wake.set()

    def progress(self, run_id: str) -> tuple[float | None, str] | None:
        followed = self._followed.get(run_id)
        return None if followed is None else (followed.run.fraction, followed.run.text)

    async def run(
        self,
        claim: Claim,
        listen: Listener | None = None,
        given: Given = NOTHING_GIVEN,
        keep: Keep | None = None,
        set_session: SetSession | None = None,
    ) -> Outcome:
        """Follows a run until it has ended, and returns the outcome."""
        placed, token, kind = self._expected[claim.run_id]
        followed = await self._begin(claim, placed, token, given, keep)
        followed.stopped_by, followed.run.listen = kind, listen
        self._followed[claim.run_id] = followed
        try:
            outcome = await self._follow(followed)
            if followed.handle is not None:
                self._handles[claim.run_id] = followed.handle
            return await self._with_files(followed, outcome)
        finally:
            del self._followed[claim.run_id]
            self._forget_in_engine(followed)

    async def clean_up(self, run_id: str, placed: Placement) -> None:
        """Deletes the directory of a run whose end is stored. A wrapper that still lives then loses its lease."""
        directory = RunDirectory(_path(placed.spec, run_id), placed.token_hash)
        await self._call(directory.remove)
        watch, handle = self._watches.get(placed.spec.engine), self._handles.pop(run_id, placed.handle)
        if watch is not None and handle is not None and watch.problem is None:
            key = Key(run_id, handle)
            await watch.ask(lambda: watch.engine.forget(key))

    # Following one run.

    async def _begin(
        self, claim: Claim, placed: Placement, token: str | None, given: Given, keep: Keep | None
    ) -> _Followed:
        run = RunContext(
            claim.run_id, claim.job_id, claim.office_id, claim.job_type, claim.params, claim.attempt, self._files
        )
        run.log_cap = placed.spec.log_cap_bytes
        run.wall_time, run.now = self._clock.now, self._clock.monotonic
        run.keep_by(keep)
        if given.inputs:
            run.inputs = inputs_of(given.inputs, self._files)
        run.last_checkpoint, run.signals = given.checkpoint, given.signals
        # The executor reads the whole output again: the last lines that another process wrote may be incomplete.
        await self._call(self._files.log_paths(claim.run_id).remove)
        now = self._clock.monotonic()
        left = 0.0 if placed.lease_until is None else (placed.lease_until - self._clock.now()) / 1_000_000
        return _Followed(
            claim=claim,
            placed=placed,
            run=run,
            output=Output(run),
            directory=RunDirectory(_path(placed.spec, claim.run_id), placed.token_hash),
            token=token,
            handle=placed.handle,
            state=placed.state,
            checkpoints=CheckpointLines(run.keep_soon),
            renewed_at=now,
            lease_over_at=now + max(left, _first_watch(placed.spec)),
            has_begun=placed.claimed_at is not None,
        )

    async def _follow(self, one: _Followed) -> Outcome:
        while True:
            try:
                look = await self._call(lambda: one.directory.look(one.position))
                outcome = await self._step(one, look)
            except (Unavailable, OSError) as error:
                log.warning("run %s: %s; it goes on, and is looked at again", one.claim.run_id, error)
                outcome, look = None, Look()
            except Exception:  # A defect in this code must not end a run that goes on elsewhere.
                log.exception("run %s: following it failed; it is looked at again", one.claim.run_id)
                outcome, look = None, Look()
            if outcome is not None:
                return outcome
            if not look.output:
                await self._rest(one)

    async def _rest(self, one: _Followed) -> None:
        watch = self._watches.get(one.spec.engine)
        longest = 1.0 if watch is None else watch.poll_seconds
        one.pause = min(1.5 * one.pause, longest)
        try:
            await asyncio.wait_for(one.wake.wait(), one.pause)
        except TimeoutError:
            return
        one.wake.clear()
        one.pause = FIRST_PAUSE

    async def _step(self, one: _Followed, look: Look) -> Outcome | None:
        """Takes the step that the records require. Returns the outcome once the run has ended."""
        if look.output:
            one.output.write(look.output)
            one.position = look.position
        if look.checkpoint is not None and look.checkpoint != one.checkpoint and one.run.keep is not None:
            one.checkpoint = look.checkpoint
            one.checkpoints.write(look.checkpoint.encode() + b"\n")
        if not one.has_begun and look.claim is not None and look.claim["by"] == "wrapper":
            # Also of a run that has ended meanwhile: no answer says of it that it was never handed over.
            await self._note_claim(one)
            self._forget_in_engine(one)
        if look.end is not None:
            return None if look.output else await self._outcome(one, look.end)
        if look.error is not None:
            return await self._cannot_read(one, look.error)
        if look.claim is None:
            return await self._before_claim(one)
        if look.claim["by"] == "scheduler":
            kind = FailureKind(str(look.claim["why"]).partition(":")[0])
            return Outcome.failed(kind, str(look.claim["why"]).partition(": ")[2])
        return await self._after_claim(one, look)

    async def _outcome(self, one: _Followed, end: Mapping[str, Any]) -> Outcome:
        """Returns the outcome of a run whose end is written. If the engine ended it, the engine says why."""
        if end.get("stopped") != BY_ENGINE:
            return outcome_of(one.spec, end, one.output)
        if one.stopped_by is not None:  # The engine did so on our request.
            return outcome_of(one.spec, {**end, "stopped": one.stopped_by.value}, one.output)
        return outcome_of(one.spec, end, one.output, await self._cause(one))

    async def _cause(self, one: _Followed) -> Cause | None:
        """Returns why the engine has ended a run. Waits, because an engine may see the end later than the records."""
        watch = self._watches.get(one.spec.engine)
        over_at = self._clock.monotonic() + CAUSE_SECONDS
        if watch is None or one.handle is None:
            return None
        key = Key(one.claim.run_id, one.handle)
        while not watch.is_silent and self._clock.monotonic() < over_at:
            found = await watch.ask(lambda: watch.engine.observe([key]))
            seen = None if found is None else found.get(one.claim.run_id)
            if seen is None or seen.sight in (Sight.ENDED, Sight.ABSENT):
                return None if seen is None else seen.cause
            await self._clock.sleep(CAUSE_PAUSE)
        return None

    async def _cannot_read(self, one: _Followed, why: str) -> Outcome | None:
        """Waits until the storage answers: records that nobody can read are no proof that the run has ended."""
        one.lease_over_at = max(one.lease_over_at, self._clock.monotonic() + _first_watch(one.spec))
        if one.state is not PlacementState.UNKNOWN:
            log.error("the records of run %s cannot be read: %s", one.claim.run_id, why)
            await self._see(one, PlacementState.UNKNOWN)
        return None

    # Steps before a wrapper has claimed the run.

    async def _before_claim(self, one: _Followed) -> Outcome | None:
        request = await self._call(one.directory.request)
        if request is not None:
            one.token = str(request["token"])
        elif one.handle is not None or one.has_begun:
            return await self._cannot_read(one, f"there is no request in {one.directory.path}")
        else:
            await self._prepare(one)
        if one.stopped_by is not None:
            return await self._take(one, one.stopped_by, STOP_WORDS.get(one.stopped_by, "stopped"))
        most, waited = one.spec.start_timeout_seconds, (self._clock.now() - one.placed.placed_at) / 1_000_000
        if most is not None and waited >= most:
            error = f"the engine {one.spec.engine!r} did not start it within {most:g} seconds"
            return await self._take(one, FailureKind.TIMEOUT, error)
        watch = self._watches.get(one.spec.engine)
        if watch is None:
            return await self._cannot_read(one, f"this node has no engine {one.spec.engine!r}")
        if watch.is_silent:
            return None
        return await (self._submit(one, watch) if one.handle is None else self._look_there(one, watch))

    async def _prepare(self, one: _Followed) -> None:
        """Writes the request. A process that died before this had submitted nothing, so a new token takes over."""
        token = one.token
        if token is None:
            token = self._chance.secret()
            assert self._store is not None
            await self._store.write(lambda tx: placements.set_token(tx, one.claim.run_id, hash_of(token)))
            one.directory = RunDirectory(one.directory.path, hash_of(token))
        request = self._request(one, token)
        files = {f"told{TOLD[name]}": content for name, content in one.run.told().items()}
        await self._call(lambda: one.directory.prepare(request, files))
        one.token = token

    def _request(self, one: _Followed, token: str) -> dict[str, Json]:
        claim, spec, path = one.claim, one.spec, one.directory.path
        placing = self._job_types.placing(claim.job_type)
        settings = self._job_types.engines.settings.get(spec.engine)
        environment = {} if placing is None else dict(placing.environment())
        lease = spec.lease_seconds
        prefixes = () if settings is None else tuple(settings.variables)
        # An engine that assigns devices itself knows those of its machines; those of this node are others.
        devices = {name: value for name, value in claim.environment.items() if not name.startswith(prefixes)}
        return {
            "token": token,
            "argv": list(spec.argv),
            "cwd": spec.cwd,
            "env": {
                **environment,
                **devices,
                RUN_ID: claim.run_id,
                "NEXTSLOT_JOB_ID": claim.job_id,
                "NEXTSLOT_ATTEMPT": str(claim.attempt),
                "NEXTSLOT_ARTIFACTS": str(path / "artifacts"),
                **{name: str(path / f"told{TOLD[name]}") for name in one.run.told()},
            },
            "inherited": [*INHERITED, "LC_ALL"],
            "inherited_prefixes": list(prefixes),
            "stdin": orjson.dumps(claim.params).decode(),
            "timeout_seconds": spec.timeout_seconds,
            "silence_seconds": spec.silence_seconds,
            "grace_seconds": spec.grace_seconds,
            "log_cap_bytes": spec.log_cap_bytes,
            "patience_seconds": lease / 3,
            "renew_seconds": _renew_seconds(spec),
            "tag": tag_of(claim.run_id),
        }

    async def _submit(self, one: _Followed, watch: EngineWatch) -> Outcome | None:
        """Submits the run and stores its handle, unless the engine has the run already because an answer was lost."""
        run_id, settings = one.claim.run_id, self._job_types.engines.settings[one.spec.engine]
        assert self._store is not None
        if await self._store.read(lambda tx: placements.get(tx, run_id)) is None:
            # An operator gave the run up before it was submitted: it must not begin beside its retry.
            return Outcome.failed(FailureKind.CRASH, "it was given up before it was submitted")
        found = await watch.ask(lambda: watch.engine.find(run_id))
        if found is None:
            return None
        if not found:
            wrapper = await self._call(lambda: wrapper_archive.ship(_path(one.spec, run_id).parent))
            argv = (settings.python, "-I", str(wrapper), str(one.directory.path))
            what = Submission(
                run_id=run_id,
                directory=one.directory.path,
                argv=argv,
                options=one.spec.options,
                grace_seconds=one.spec.grace_seconds,
            )
            try:
                handle = await watch.ask(lambda: watch.engine.submit(what))
            except Refused as error:
                return await self._take(one, FailureKind.INVALID, f"the engine {watch.name!r} refuses it: {error}")
            if handle is None:
                return None
            found = [handle]
        one.handle = found[0]
        one.absent_since, one.absent_sights = None, 0
        watch.expect(run_id, one.handle)
        await self._see(one, PlacementState.QUEUED)
        return None

    async def _look_there(self, one: _Followed, watch: EngineWatch) -> Outcome | None:
        """Ends a run that the engine has lost, or has ended before its wrapper began."""
        assert one.handle is not None
        watch.expect(one.claim.run_id, one.handle)
        seen = await watch.see(one.claim.run_id)
        if seen is None:
            return None
        if seen.sight in (Sight.QUEUED, Sight.RUNNING):
            one.absent_since = None
            one.run.text = seen.words
            return None
        now = self._clock.monotonic()
        if one.absent_since is None:
            one.absent_since, one.absent_sights = now, 0
        one.absent_sights += 1
        if now - one.absent_since < ABSENT_SECONDS or one.absent_sights < FEWEST_SIGHTS:
            return None
        if seen.sight is Sight.ABSENT:
            log.warning("the engine %s has lost run %s, which is submitted again", watch.name, one.claim.run_id)
            one.handle = None
            await self._see(one, PlacementState.SUBMITTING)
            return None
        key = Key(one.claim.run_id, one.handle)
        words = (await watch.ask(lambda: watch.engine.logs(key, 0)) or b"").decode("utf-8", "replace").strip()
        error = f"the engine {watch.name!r} ended it before it began: {seen.words or 'no reason given'}"
        return await self._take(one, FailureKind.ERROR, f"{error}: {words[-500:]}" if words else error)

    async def _take(self, one: _Followed, kind: FailureKind, error: str) -> Outcome | None:
        """Ends a run that has not begun: the scheduler claims the run itself, so no wrapper can start it."""
        assert one.token is not None
        token = one.token
        if not await self._call(lambda: one.directory.take(token, f"{kind.value}: {error}")):
            return None  # A wrapper claimed first, and must be stopped.
        await self._stop_there(one)
        return Outcome.failed(kind, error)

    # Steps after a wrapper has claimed the run.

    async def _after_claim(self, one: _Followed, look: Look) -> Outcome | None:
        now = self._clock.monotonic()
        if look.lease != one.lease:
            one.lease, one.renewed_at, one.lease_over_at = look.lease, now, now + one.spec.lease_seconds
            await self._note_renewal(one, now)
        elif now >= one.lease_over_at:
            return await self.give_up(one, LEASE_OVER.format(seconds=one.spec.lease_seconds))
        elif now - one.renewed_at >= _first_watch(one.spec) and one.state is not PlacementState.UNKNOWN:
            await self._see(one, PlacementState.UNKNOWN)
        if one.stopped_by is not None:
            await self._ask_to_stop(one, one.stopped_by, now)
        return None

    async def _note_claim(self, one: _Followed) -> None:
        now = self._clock.now()
        until = now.after(one.spec.lease_seconds)

        def work(tx: Tx) -> None:
            placements.claim(tx, one.claim.run_id, now, until, one.spec.timeout_seconds)
            placements.see(tx, one.claim.run_id, one.spec.engine, PlacementState.RUNNING, one.handle)

        assert self._store is not None
        await self._store.write(work)
        one.state, one.has_begun = PlacementState.RUNNING, True
        # The claim is the first renewal: the wrapper may write its next one much later, if its storage fails.
        one.stored_at = one.renewed_at = self._clock.monotonic()
        one.lease_over_at = one.renewed_at + one.spec.lease_seconds

    async def _note_renewal(self, one: _Followed, now: float) -> None:
        if one.state is not PlacementState.RUNNING:
            await self._see(one, PlacementState.RUNNING)
        if now - one.stored_at >= min(STORE_RENEWAL_SECONDS, one.spec.lease_seconds / 4):
            one.stored_at = now
            until: Instant = self._clock.now().after(one.spec.lease_seconds)
            assert self._store is not None
            await self._store.write(lambda tx: placements.renew(tx, one.claim.run_id, until))

    async def _ask_to_stop(self, one: _Followed, kind: FailureKind, now: float) -> None:
        """Requests the stop from the wrapper and, after the grace time, from the engine too: the wrapper may hang."""
        if one.asked_at is None:
            await self._call(lambda: one.directory.ask_to_stop(kind.value, one.spec.grace_seconds))
            one.asked_at = now
        elif now - one.asked_at >= one.spec.grace_seconds + ENGINE_STOP_SECONDS:
            one.asked_at = now
            await self._stop_there(one)

    async def give_up(self, one: _Followed, why: str) -> Outcome | None:
        """Ends a run whose wrapper is presumed dead. A wrapper that lives reads the record and ends its processes."""
        assert one.token is not None or one.has_begun
        request = await self._call(one.directory.request)
        token = str(request["token"]) if request is not None else one.token or ""
        if not await self._call(lambda: one.directory.give_up(token, why)):
            return None  # The run has ended meanwhile.
        await self._stop_there(one)
        return Outcome.failed(FailureKind.CRASH, why)

    # Calls of the engine, the store and the file system.

    async def _stop_there(self, one: _Followed) -> None:
        """Requests the engine to end a run. The outcome does not depend on whether the engine does so."""
        watch = self._watches.get(one.spec.engine)
        if watch is None or watch.is_silent:
            return
        found = await watch.ask(lambda: watch.engine.find(one.claim.run_id)) or []
        for handle in dict.fromkeys([*found, *([one.handle] if one.handle else [])]):
            key = Key(one.claim.run_id, handle)
            await watch.ask(lambda key=key: watch.engine.stop(key, one.spec.grace_seconds))  # type: ignore[misc]

    def _forget_in_engine(self, one: _Followed) -> None:
        watch = self._watches.get(one.spec.engine)
        if watch is not None:
            watch.forget(one.claim.run_id)

    async def _see(self, one: _Followed, state: PlacementState) -> None:
        one.state = state
        assert self._store is not None
        await self._store.write(lambda tx: placements.see(tx, one.claim.run_id, one.spec.engine, state, one.handle))

    async def _with_files(self, one: _Followed, outcome: Outcome) -> Outcome:
        run_id = one.claim.run_id
        for attempt in range(1, COPY_TRIES + 1):
            try:
                await self._call(lambda: one.directory.copy_artifacts(self._files.artifacts_root(run_id)))
                break
            except OSError as error:
                one.run.log.error("the artifacts cannot be copied (%d of %d): %s", attempt, COPY_TRIES, error)
                await self._clock.sleep(1.0)
        await self._call(one.run.close)
        artifacts = await self._call(lambda: self._files.collect_artifacts(run_id))
        log_path = self._files.log_path(run_id) if one.run.has_log else None
        return replace(outcome, log_path=log_path, artifacts=artifacts)

    async def _call(self, call: Callable[[], T]) -> T:
        """Runs a blocking call in a thread, and raises what the call raises."""
        answer, error = await self._threads.run(lambda: _caught(call))
        if error is not None:
            raise error
        return answer  # type: ignore[return-value]


def _caught(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # The thread returns the exception; the caller raises it.
        return None, error


def _path(spec: PlacementSpec, run_id: str) -> Path:
    return Path(spec.directory) / run_id


def _known(names: list[str], tx: Tx) -> dict[str, bool]:
    return old_history.known_runs(tx, names)


def _directories(path: Path) -> list[str]:
    """Returns the names of the run directories; an empty list if the storage does not answer."""
    try:
        return [one.name for one in path.iterdir() if one.is_dir()]
    except OSError:
        return []


def _renew_seconds(spec: PlacementSpec) -> float:
    """Returns how often the wrapper renews its lease: at least sixty renewals fit into one lease."""
    return min(spec.lease_seconds / 60, 15.0)


def _first_watch(spec: PlacementSpec) -> float:
    """Returns how long the records must have been readable without a renewal before the lease can end."""
    return 4 * _renew_seconds(spec)

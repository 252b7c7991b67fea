"""OfficeQuotas: what an admin grants each office at most. They cap what an office may set for itself (spec 18.11).

Kept in memory as of the last commit, so that a request without a quota pays nothing; the checks that need the store
are made in the transaction that creates something.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from nextslot.domain import Json, Quotas, bounds
from nextslot.domain.declared_values import declared
from nextslot.engine.dispatch.limits_and_slots import Combination, NewLanes
from nextslot.engine.effects import QuotasChanged
from nextslot.engine.submit.queue_order import Created, NewWork
from nextslot.errors import Conflict, Forbidden, Invalid, NotFound, OverQuota, Problem, TooManyJobs
from nextslot.store.contract import Tx
from nextslot.store.tables import nodes, offices
from nextslot.store.tables import quotas as stored
from nextslot.system.instant import Instant

NAMES = tuple(one.name for one in declared(Quotas))
DEFAULTS = Quotas()
# Quotas that may exceed a concurrency limit.
ANY_NUMBER = ("queued_jobs", "body_bytes", "stored_bytes")
# How many jobs of an office may be created before its queue is counted again, unless an admin has set its quota.
COUNTED_EVERY = 1000
# The combinations of an office that has too many are counted again after this time, because all its lanes are read.
COUNTED_AGAIN_SECONDS = 1.0


class _ClassRoom(NamedTuple):
    """How many jobs an office may create before its combinations are counted again; and until when, at least, it has
    too many.
    """

    jobs: int
    until: Instant


_FULL = _ClassRoom(0, Instant(0))


class OfficeRoom:
    """What an office may still create in one transaction. The schedules that fire together share it."""

    def __init__(self, quotas: "OfficeQuotas", tx: Tx, office_id: str) -> None:
        self._office_id = office_id
        self._most = quotas.of(office_id)
        self._bytes = quotas.bytes_problem(office_id)
        self._jobs = self._most.queued_jobs - stored.open_chains(tx, office_id)
        self._classes = self._lanes = quotas.class_room(tx, office_id)
        if quotas.is_granted(office_id):
            self._lanes = self._most.lanes - stored.lanes(tx, office_id)
        self._given = 0
        # The combinations of type and resources that the new jobs need. They are counted only when there may be too
        # many.
        self._unasked: list[Callable[[], Iterable[Combination]]] = []
        self._new: set[Combination] = set()

    def take(self, number: int, combinations: Callable[[], Iterable[Combination]]) -> str | None:
        """Takes room for this many jobs. Returns why there is not enough, and then takes none; else None."""
        if self._bytes is not None:
            return self._bytes
        if self._given + number > self._jobs:
            return jobs_problem(self._office_id, self._most.queued_jobs)
        if self._given + number > min(self._classes, self._lanes):
            self._new.update(one for asked in self._unasked for one in asked())
            self._unasked = []
            new = self._new.union(combinations())
            classes = {one.class_key for one in new if one.is_new_class}
            if len(classes) > self._classes or sum(one.is_new_lane for one in new) > self._lanes:
                return lanes_problem(self._office_id, self._most.lanes)
            self._new = new
        else:
            self._unasked.append(combinations)
        self._given += number
        return None


class OfficeQuotas:
    def __init__(self) -> None:
        self._granted: Mapping[str, Quotas] = {}
        self._uncounted: Counter[str] = Counter()
        # Of the offices that have had more combinations than their quota allows. Those of ended jobs do not count, so
        # all that such an office uses again have to be counted.
        self._class_rooms: dict[str, _ClassRoom] = {}
        self._is_loaded = False
        # The stored bytes of each office at the last measurement; see `StoredBytes`.
        self.stored_bytes: Mapping[str, int] = {}
        # How often each quota has refused a request, for the metrics.
        self.refused: Counter[str] = Counter()

    def load(self, tx: Tx) -> None:
        """Reads the granted quotas, at the start and after another node has changed them."""
        self.use(_read(tx))
        if not self._is_loaded:
            most = min(self.of(office_id).lanes for office_id in ("", *self._granted))
            self._class_rooms = dict.fromkeys(stored.crowded(tx, most), _FULL)
            self._is_loaded = True

    def use(self, granted: Mapping[str, Quotas]) -> None:
        """Uses quotas whose change was committed."""
        self._granted = granted
        self._class_rooms = dict.fromkeys(self._class_rooms, _FULL)

    @property
    def are_classes_counted(self) -> bool:
        """Returns whether an office has had so many combinations that those which it uses again are counted."""
        return bool(self._class_rooms)

    @property
    def are_granted(self) -> bool:
        """Returns whether an admin has granted any office a quota. Until then, usage is not counted."""
        return bool(self._granted)

    @property
    def are_bytes_granted(self) -> bool:
        return any(one.stored_bytes for one in self._granted.values())

    def of(self, office_id: str | None) -> Quotas:
        return self._granted.get(office_id or "", DEFAULTS)

    def change(self, tx: Tx, office_id: str, given: Mapping[str, Json]) -> tuple[Quotas, Quotas]:
        """Grants an office other quotas; null restores the default. Returns (before, after)."""
        office = offices.get(tx, office_id)
        if office is None:
            raise NotFound("office", office_id)
        _refuse_wrong(given)
        before = _read(tx).get(office_id, DEFAULTS)
        values = {name: getattr(DEFAULTS, name) if value is None else value for name, value in given.items()}
        if "job_types" in values:
            values["job_types"] = tuple(values["job_types"])
        after: Quotas = replace(before, **values)
        if after.max_concurrent_jobs and not 0 < office.max_concurrent_jobs <= after.max_concurrent_jobs:
            raise Conflict(
                f"the office {office_id!r} has max_concurrent_jobs {office.max_concurrent_jobs}, which is more: "
                "lower it first"
            )
        stored.put(tx, office_id, {name: value for name, value in after.to_dict().items() if value is not None})
        nodes.settings_changed(tx)
        tx.cause(QuotasChanged(_read(tx)))
        return before, after

    def check_concurrency(self, office_id: str, max_concurrent_jobs: int) -> None:
        """Raises Forbidden if an office sets its own limit above its quota; 0 means no limit."""
        most = self.of(office_id).max_concurrent_jobs
        if most and not 0 < max_concurrent_jobs <= most:
            raise Forbidden(f"the office {office_id!r} may run at most {most} jobs at once: an admin grants more")

    def type_problem(self, office_id: str, job_types: Iterable[str]) -> str | None:
        """Returns why an office may not create jobs of these types; None if it may."""
        allowed = self.of(office_id).job_types
        denied = next((one for one in job_types if allowed and one not in allowed), None)
        problem = f"the office {office_id!r} may not make jobs of the type {denied!r}, only {', '.join(allowed)}"
        return None if denied is None else problem

    def check_batch(self, office_id: str | None, number: int) -> None:
        """Raises if a request with an office's key concerns more jobs than one of its transactions may change."""
        most = self.of(office_id).batch_jobs
        if office_id is not None and 0 < most < number:
            self.refused["batch_jobs"] += 1
            raise TooManyJobs(office_id, number, most)

    def check_resources(self, named: Sequence[tuple[str, Problem]]) -> None:
        """Raises Invalid if requests name undeclared resources and the office may not use those."""
        problems = [problem for office_id, problem in named if not self.of(office_id).own_resources]
        if problems:
            raise Invalid(problems)

    def check_created(self, tx: Tx, created: Sequence[Created]) -> None:
        """Raises if a work has created more than the quotas of its office allow."""
        for office_id in {one.office_id for one in created}:
            if (problem := self.bytes_problem(office_id)) is not None:
                raise OverQuota("stored_bytes", problem)
            if office_id in tx.local(NewLanes).by_office:
                self._check_lanes(tx, office_id)
            self._check_queue(tx, office_id, sum(one.number for one in created if one.office_id == office_id))

    def is_granted(self, office_id: str) -> bool:
        return office_id in self._granted

    def bytes_problem(self, office_id: str) -> str | None:
        """Returns why an office may create nothing: its files take too many bytes; None if they do not."""
        most, has = self.of(office_id).stored_bytes, self.stored_bytes.get(office_id, 0)
        problem = f"the office {office_id!r} may have {most:,} bytes of logs and artifacts, and has {has:,}"
        return problem if most and has >= most else None

    def class_room(self, tx: Tx, office_id: str) -> int:
        """Returns how many more combinations of type and resources an office may use; less than 0: it has too many."""
        most = self.of(office_id).lanes
        if office_id not in self._class_rooms and (kept := stored.classes(tx, office_id)) <= most:
            return most - kept
        return most - stored.live_classes(tx, office_id)

    def check_classes(self, tx: Tx, created: Sequence[Created], now: Instant) -> None:
        """Raises if a work gives an office too many combinations of type and resources. Dispatch compares those of jobs
        that have not ended, so many of them slow down every office. Checked even while no quota is granted.

        As long as all kept jobs have few combinations, only new ones are counted. An office that has had more may use
        old ones again: its jobs are counted, each as one combination, and when these could be too many, the lanes are.
        One request may so bring it above its quota once, by the combinations that it names.
        """
        new = tx.local(NewLanes).new_classes
        for office_id in {*new, *(one.office_id for one in created if one.office_id in self._class_rooms)}:
            number = sum(one.number for one in created if one.office_id == office_id)
            self._check_classes(tx, office_id, len(new.get(office_id, ())), number, now)

    def _check_classes(self, tx: Tx, office_id: str, new: int, number: int, now: Instant) -> None:
        most, known = self.of(office_id).lanes, self._class_rooms.get(office_id)
        if known is None and stored.classes(tx, office_id) <= most:
            return
        if known is not None and known.jobs >= max(new, number):
            self._class_rooms[office_id] = _ClassRoom(known.jobs - max(new, number), known.until)
            return
        left = -1
        if known is None or known.until <= now:
            left = most - stored.live_classes(tx, office_id)
            until = now if left >= 0 else now.after(COUNTED_AGAIN_SECONDS)
            self._class_rooms[office_id] = _ClassRoom(max(left - number, 0), until)
        if left < new:
            raise OverQuota("lanes", lanes_problem(office_id, most))

    def _check_lanes(self, tx: Tx, office_id: str) -> None:
        most = self.of(office_id).lanes
        if stored.lanes(tx, office_id) + len(tx.local(NewLanes).by_office[office_id]) > most:
            mixes = f"may have ready jobs of {most:,} different combinations of job type, role and resources"
            raise OverQuota("lanes", f"the office {office_id!r} {mixes}")

    def _check_queue(self, tx: Tx, office_id: str, number: int) -> None:
        self._uncounted[office_id] += number
        if office_id not in self._granted and self._uncounted[office_id] < COUNTED_EVERY:
            return
        self._uncounted[office_id] = 0
        most = self.of(office_id).queued_jobs
        new = sum(one.number for one in tx.local(NewWork).created if one.office_id == office_id)
        if stored.open_chains(tx, office_id) + new > most:
            raise OverQuota("queued_jobs", jobs_problem(office_id, most))


def jobs_problem(office_id: str, most: int) -> str:
    return f"the office {office_id!r} may have {most:,} jobs that have not ended"


def lanes_problem(office_id: str, most: int) -> str:
    return f"the office {office_id!r} may have {most:,} different combinations of job type and resources"


def _read(tx: Tx) -> dict[str, Quotas]:
    return {office_id: _quotas(stored) for office_id, stored in stored.all_of_them(tx).items()}


def _quotas(stored: Mapping[str, Json]) -> Quotas:
    known = {name: value for name, value in stored.items() if name in NAMES}
    if "job_types" in known:
        known["job_types"] = tuple(known["job_types"])
    return Quotas(**known)


def _refuse_wrong(given: Mapping[str, Json]) -> None:
    unknown = sorted(given.keys() - set(NAMES))
    if unknown:
        raise Invalid(f"is not a quota; use one of {', '.join(NAMES)}", field=unknown[0])
    for name, value in given.items():
        if value is None:
            continue
        if name == "job_types":
            if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
                raise Invalid("is not a list of job types", field=name)
        elif name == "own_resources":
            if type(value) is not bool:
                raise Invalid("is not true or false", field=name)
        elif (problem := (bounds.COUNT if name in ANY_NUMBER else bounds.LIMIT).problem(value)) is not None:
            raise Invalid(problem, field=name)

"""Limits and slots: how much room limits and nodes have for jobs that may start.

`Lanes` says which limits a job falls under. `TransactionCounters` holds the counters of those limits in one
transaction: it reads them once, changes them in memory and writes them once before the commit. If a job ends and the
next one of its kind starts, the changes cancel out and nothing is written. `Workers` are the numbered slots of this
node; each running job holds one (INV-003).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from nextslot.domain import Lane, Limit, Office, Outcome
from nextslot.domain.devices import NO_DEVICES, Devices, NodeDevices
from nextslot.domain.limits import (
    UNLIMITED,
    ConcurrencyPolicy,
    Limits,
    affinity_key,
    is_local,
    key_limit,
    office_key,
)
from nextslot.engine.effects import LanesLearned, SlotsChanged
from nextslot.store.contract import Tx
from nextslot.store.tables import devices, direct, lanes
from nextslot.store.tables.lanes import Bound, ClassFront, LaneCounts, LaneTally

from .rates import NO_RATES, Rates, TransactionBuckets

_NOTHING = LaneTally()
_NO_WAITS: Mapping[str, float] = {}
# The number of lanes that one query reads, in order; an office rarely has more lanes with ready jobs.
LANES_AT_ONCE = 16
# A transaction that has changed more lanes of one office writes them before it searches for the first of them.
MOST_IN_MEMORY = 200
# The largest number of lanes in the cache of a process.
MOST_KNOWN = 20_000
# What the number of a slot begins with in the `worker_id` of a run on an engine.
PLACED = "placed-"


class Combination(NamedTuple):
    """The lane that a job would have: the names of class and lane, and whether the office has them already."""

    class_key: str
    lane_key: str
    is_new_class: bool
    # Whether the lane has no ready jobs, or does not exist.
    is_new_lane: bool


class Lanes:
    def __init__(self, policy: ConcurrencyPolicy) -> None:
        self.policy = policy
        # A cache of lanes, filled from committed rows only. A lane never changes until it is deleted.
        self._known = LanesLearned({}, {})

    @property
    def affinity_waits(self) -> Mapping[str, float]:
        """Returns the resources with an affinity wait, and how long the next job in order may wait for each."""
        return getattr(self.policy, "affinity_waits", _NO_WAITS)

    @property
    def rates(self) -> Rates:
        """Returns the rates by limit: how many jobs may start, or how many tokens may be used, in a minute."""
        return getattr(self.policy, "rates", NO_RATES)

    def lane_for(
        self,
        tx: Tx,
        office: Office,
        role: str | None,
        job_type: str,
        resources: Mapping[str, int],
        affinity: str | None = None,
        limit_keys: Sequence[str] | None = None,
    ) -> int:
        """Returns the lane of a job with these properties, and stores the lane if it does not exist."""
        if affinity is not None and not any(resource in self.affinity_waits for resource in resources):
            affinity = None
        needs = str(sorted(resources.items())) + ("" if affinity is None else f" {affinity}")
        if limit_keys:
            needs += f" {sorted(limit_keys)}"
        wanted = (office.office_id, role, job_type, needs)
        known = self._known.by_limits.get(wanted) or tx.local(self._new_known).by_limits.get(wanted)
        if known is None:
            keys, local, shared, class_key = self._limits_of(office, role, job_type, resources, affinity, limit_keys)
            known = lanes.find(tx, office.office_id, class_key, local)
            if known is None:
                for key in keys:
                    lanes.add_limit(tx, key, self.policy.capacity(key, office))
                if not lanes.has_class(tx, office.office_id, class_key):
                    tx.local(NewLanes).new_classes.setdefault(office.office_id, set()).add(class_key)
                known = lanes.add(tx, office.office_id, job_type, resources, local, shared, class_key, affinity)
            tx.local(self._new_known).by_limits[wanted] = known
        return known

    def combination(
        self,
        tx: Tx,
        office: Office,
        role: str | None,
        job_type: str,
        resources: Mapping[str, int],
        limit_keys: Sequence[str] | None = None,
    ) -> Combination:
        """Returns which lane a job with these properties would have. Stores nothing."""
        _, local, _, class_key = self._limits_of(office, role, job_type, resources, None, limit_keys)
        lane_id = lanes.find(tx, office.office_id, class_key, local)
        is_new_class = lane_id is None and not lanes.has_class(tx, office.office_id, class_key)
        is_new_lane = lane_id is None or lanes.counts(tx, lane_id).first is None
        return Combination(class_key, f"{class_key} {sorted(local)}", is_new_class, is_new_lane)

    def _limits_of(
        self,
        office: Office,
        role: str | None,
        job_type: str,
        resources: Mapping[str, int],
        affinity: str | None = None,
        limit_keys: Sequence[str] | None = None,
    ) -> tuple[Mapping[str, int], dict[str, int], dict[str, int], str]:
        """Returns the limits of a job: all keys, the needs within the office, the shared needs, and the class."""
        keys = self.policy.keys(office.office_id, role, job_type, resources)
        if affinity is not None:
            keys = {**keys, affinity_key(office.office_id, affinity): 1}
        if limit_keys:
            keys = {**keys, **{key_limit(office.office_id, name): 1 for name in limit_keys}}
        local = {key: units for key, units in keys.items() if is_local(key)}
        shared = {key: units for key, units in keys.items() if not is_local(key)}
        class_key = lanes.class_key(job_type, resources, shared, keys.get(office_key(office.office_id), 0))
        return keys, local, shared, class_key

    def lane(self, tx: Tx, lane_id: int) -> Lane:
        known = self._known.by_id.get(lane_id) or tx.local(self._new_known).by_id.get(lane_id)
        if known is None:
            known = tx.local(self._new_known).by_id[lane_id] = lanes.get(tx, lane_id)
        return known

    def counters(self, tx: Tx) -> "TransactionCounters":
        return tx.local(self._new_counters)

    def buckets(self, tx: Tx) -> TransactionBuckets | None:
        """Returns the buckets of the rates in a transaction; None if no limit has a rate."""
        return tx.local(self._new_buckets) if self.rates else None

    def _new_buckets(self, tx: Tx) -> TransactionBuckets:
        return TransactionBuckets(tx, self.rates)

    def _new_counters(self, tx: Tx) -> "TransactionCounters":
        return TransactionCounters(tx, self)

    def _new_known(self, tx: Tx) -> LanesLearned:
        known = LanesLearned({}, {})
        tx.cause(known)
        return known

    def learn(self, by_id: Mapping[int, Lane], by_limits: Mapping[tuple[str, str | None, str, str], int]) -> None:
        """Adds the lanes of a committed transaction to the cache."""
        if len(self._known.by_id) + len(self._known.by_limits) > MOST_KNOWN:
            self._known = LanesLearned({}, {})
        self._known.by_id.update(by_id)
        self._known.by_limits.update(by_limits)

    def forget(self) -> None:
        """Empties the cache after a commit, here or on another node, that has deleted lanes."""
        self._known = LanesLearned({}, {})


class NewLanes:
    """The lanes that a transaction adds to offices, to check the quotas of these offices before the commit."""

    def __init__(self, tx: Tx) -> None:
        # By office, the lanes that had no ready job before this transaction.
        self.by_office: dict[str, set[int]] = {}
        # By office, the combinations of type and resources that are new to it.
        self.new_classes: dict[str, set[str]] = {}


class OfficeCounters:
    """The first lanes of one office with ready jobs, and the lanes that this transaction has changed."""

    def __init__(
        self,
        office_id: str,
        is_paused: bool,
        callers: Counter[int],
        turn: int,
        aging_seconds: float | None,
        counts: dict[int, LaneCounts],
    ) -> None:
        self.office_id = office_id
        self.is_paused = is_paused
        # The period after which a ready job gets a step; None if the jobs of the office do not age.
        self.aging_seconds = aging_seconds
        # How many direct callers wait in each lane.
        self.callers = callers
        self.turn = turn
        self.stored_turn = turn
        self.lanes: dict[int, LaneCounts] = {}
        # The values that the database has for each lane: (ready, is_open, turn, first).
        self.stored: dict[int, tuple[int, bool, int, Bound | None]] = {}
        self.know(counts)
        # The lanes that were not read yet, by class; None until a search needs a lane behind the first ones.
        self.unread: dict[str, ClassFront] | None = {} if len(counts) < LANES_AT_ONCE else None
        # How many lanes this transaction has read in search of an open one, and whether it has begun anew since.
        self.searched = 0
        self.is_begun_anew = False

    @property
    def waiting(self) -> list[int]:
        return [lane_id for lane_id, counts in self.lanes.items() if counts.ready > 0]

    def bound(self, lane_id: int) -> Bound:
        """Returns the place of the first ready job of a lane, or a place before that job."""
        first = self.lanes[lane_id].first
        assert first is not None
        return first

    def know(self, counts: Mapping[int, LaneCounts]) -> None:
        for lane_id, one in counts.items():
            if lane_id not in self.lanes:
                self.lanes[lane_id] = one
                self.stored[lane_id] = (one.ready, one.is_open, one.turn, one.first)


class TransactionCounters:
    def __init__(self, tx: Tx, lanes_: Lanes) -> None:
        self._tx = tx
        self._lanes = lanes_
        self._offices: dict[str, OfficeCounters] = {}
        # By limit key: the stored limits that were read, the units that this transaction has taken, and the room left.
        self._limits: dict[str, Limit] = {}
        self._units: dict[str, int] = {}
        self._room: dict[str, int] = {}
        self._tallies: dict[int, LaneTally] = {}
        # Whether this transaction freed shared units, so that jobs of other offices may start too.
        self.is_freed = False
        # Whether the other nodes received the same notification and look for work too. Without this check, full nodes
        # with waiting jobs would wake each other without end.
        self.is_announced = False

    @property
    def offices(self) -> Iterable[OfficeCounters]:
        return self._offices.values()

    @property
    def is_touched(self) -> bool:
        return bool(self._offices) or self.is_freed

    @property
    def has_changes(self) -> bool:
        """Returns whether this transaction may change the number of jobs in the queue."""
        return self.is_touched or bool(self._tallies)

    def office(self, office_id: str) -> OfficeCounters:
        """Returns the counters of an office, and reads them on the first call."""
        known = self._offices.get(office_id)
        if known is None:
            # Another policy may share what no stored limit shows, so each of its transactions runs alone.
            self._tx.enter(office_id if type(self._lanes.policy) is Limits else None)
            is_paused, callers, turn, aging, counts = lanes.of_office(self._tx, office_id, LANES_AT_ONCE)
            waiting = direct.waiting_lanes(self._tx, office_id) if callers else Counter[int]()
            known = self._offices[office_id] = OfficeCounters(office_id, is_paused, waiting, turn, aging, counts)
        return known

    def caller_leaves(self, office_id: str, lane_id: int) -> None:
        """Counts one waiting caller less. The row has changed already, so counters read later are right."""
        if office_id in self._offices:
            self._offices[office_id].callers[lane_id] -= 1
        else:
            self.office(office_id)

    def is_closed(self, lane: Lane) -> bool:
        """Returns whether the lane may start nothing: its office is paused, or a direct caller waits for its limits."""
        return self.office(lane.office_id).is_paused or self.is_behind_caller(lane)

    def is_emptied(self, lane: Lane) -> bool:
        """Returns whether this transaction has ended the last ready job of a lane that is stored as open."""
        known = self._offices.get(lane.office_id)
        return known is not None and lane.lane_id in known.lanes and known.lanes[lane.lane_id].ready <= 0

    def is_behind_caller(self, lane: Lane) -> bool:
        """Returns whether a direct caller of the office waits for a limit that the lane falls under too (DEC-004)."""
        return self._is_behind_caller(self.office(lane.office_id), lane.needs)

    def is_class_closed(self, lane: Lane) -> bool:
        """Returns whether `is_closed` holds for every lane of the class in this office."""
        office = self.office(lane.office_id)
        return office.is_paused or self._is_behind_caller(office, lane.class_needs)

    def _is_behind_caller(self, office: OfficeCounters, needs: Mapping[str, int]) -> bool:
        callers = office.callers
        return bool(callers) and any(
            self._share_a_limit(needs, self._lanes.lane(self._tx, lane_id)) for lane_id in +callers
        )

    def _share_a_limit(self, needs: Mapping[str, int], other: Lane) -> bool:
        common = needs.keys() & other.needs.keys()
        self.know(common)
        return any(self._limits[key].capacity for key in common)

    def include_all_offices(self) -> None:
        """Includes every office with waiting jobs in the dispatch round of this transaction."""
        for office_id in lanes.waiting_offices(self._tx):
            self.office(office_id)
        self.is_freed = True

    def add_ready(self, lane_id: int, bound: Bound, jobs: int = 1) -> None:
        """Counts jobs of a lane that became ready; `bound` is the place of the first of these jobs."""
        counts = self._counts(lane_id)
        if counts.ready == 0 or counts.first is None:
            counts.first = bound
            office_id = self._lanes.lane(self._tx, lane_id).office_id
            self._tx.local(NewLanes).by_office.setdefault(office_id, set()).add(lane_id)
        else:
            counts.first = min(counts.first, bound)
        counts.ready += jobs

    def remove_ready(self, lane_id: int) -> None:
        """Counts a job of a lane that is no longer ready."""
        self._counts(lane_id).ready -= 1

    def lower(self, lane_id: int, bound: Bound) -> None:
        """Records the new place of a ready job if that place is before the first job of the lane."""
        counts = self._counts(lane_id)
        if counts.first is None or bound < counts.first:
            counts.first = bound

    def _counts(self, lane_id: int) -> LaneCounts:
        office = self.office(self._lanes.lane(self._tx, lane_id).office_id)
        counts = office.lanes.get(lane_id)
        if counts is None:
            counts = lanes.counts(self._tx, lane_id)
            office.know({lane_id: counts})
        return counts

    def ready(self, lane_id: int) -> int:
        """Returns how many jobs of a lane are ready."""
        return self._counts(lane_id).ready

    def unread(self, office: OfficeCounters) -> dict[str, ClassFront]:
        """Returns, by class, the lanes with ready jobs that were not read yet; usually none."""
        if len(office.lanes) > MOST_IN_MEMORY + len(office.unread or ()):
            self._write_lanes(office)
            self._write_tallies()
            office.lanes, office.stored, office.unread = {}, {}, None
            office.is_begun_anew = True
        if office.unread is None:
            office.unread, opened = lanes.classes_of(self._tx, office.office_id)
            office.know(opened)
        return office.unread

    def read_more(self, office: OfficeCounters, class_key: str) -> list[int]:
        """Reads the next lanes of a class. Returns the ones that this transaction had not read before."""
        assert office.unread is not None
        place = office.unread.pop(class_key).place
        found = lanes.of_class(self._tx, office.office_id, class_key, place, LANES_AT_ONCE + 1)
        if len(found) > LANES_AT_ONCE:
            lane_id, counts = found.popitem()
            assert counts.first is not None
            office.searched += LANES_AT_ONCE
            if office.searched <= lanes.MOST_SEARCHED:
                office.unread[class_key] = ClassFront(lane_id, (*counts.first, lane_id))
        new = [lane_id for lane_id in found if lane_id not in office.lanes]
        office.know(found)
        self.know({key for lane_id in new for key in self._lanes.lane(self._tx, lane_id).needs})
        return new

    def tally(self, lane_id: int) -> LaneTally:
        known = self._tallies.get(lane_id)
        if known is None:
            known = self._tallies[lane_id] = LaneTally()
        return known

    def start(self, lane: Lane) -> None:
        """Counts a starting job of this lane in its limits and their rates."""
        self.take(lane)
        if (buckets := self._lanes.buckets(self._tx)) is not None:
            buckets.take(lane)

    def use_tokens(self, lane: Lane, outcome: Outcome) -> None:
        """Takes the tokens that a run of this lane has used from the buckets of the lane."""
        if (buckets := self._lanes.buckets(self._tx)) is not None:
            buckets.take_tokens(lane, outcome)

    def take(self, lane: Lane) -> None:
        """Counts a running job of this lane in its limits."""
        self._use(lane, 1)

    def give_back(self, lane: Lane) -> None:
        """Counts an ended job of this lane out of its limits."""
        self._use(lane, -1)
        self.office(lane.office_id)
        self.is_freed = True

    def room(self, needs: Mapping[str, int], held: Mapping[str, int] | None = None) -> int:
        """Returns how many jobs with these needs could start now, apart from the units that are held for others."""
        self.know(needs)
        room = self._room
        if held:
            return min(((room[key] - held.get(key, 0)) // units for key, units in needs.items()), default=UNLIMITED)
        return min((room[key] // units for key, units in needs.items()), default=UNLIMITED)

    def has_room(self, needs: Mapping[str, int], held: Mapping[str, int]) -> bool:
        """Returns whether one job with these needs could start now. A round calls it for each lane at each start."""
        room = self._room
        for key, units in needs.items():
            if key not in room:
                self.know(needs)
            if room[key] - held.get(key, 0) < units:
                return False
        return True

    def could_ever_fit(self, needs: Mapping[str, int]) -> bool:
        """Returns whether a job with these needs could start if nothing else ran."""
        self.know(needs)
        room = self._lanes.policy.room
        return all(room(key, self._limits[key].capacity, 0) >= units for key, units in needs.items())

    def know(self, limit_keys: Iterable[str]) -> None:
        """Reads, in one statement, the given limits that this transaction has not read yet."""
        missing = [key for key in limit_keys if key not in self._room]
        if missing:
            for key, limit in lanes.limits(self._tx, missing).items():
                self._limits[key] = limit
                self._measure(key)

    def forget_limits(self) -> None:
        """Forgets the limits, so that they are read again: this transaction has entered another office."""
        self._limits, self._room = {}, {}
        if (buckets := self._lanes.buckets(self._tx)) is not None:
            buckets.forget()

    def has_news(self) -> bool:
        """Returns whether this transaction may let other nodes start something that they could not start before."""
        return self._tx.is_alone or any(
            units < 0 and (key not in self._limits or self._limits[key].capacity) for key, units in self._units.items()
        )

    def save(self) -> None:
        """Writes the counters that have changed."""
        for office in self._offices.values():
            self._save_office(office)
        self._write_tallies()
        # Always in one order, to avoid deadlocks: transactions about other offices may count the same shared limits.
        for key, units in sorted(self._units.items()):
            if units:
                lanes.use(self._tx, key, units)
        self._limits, self._room = {}, {}

    def _write_tallies(self) -> None:
        for lane_id, tally in self._tallies.items():
            if tally != _NOTHING:
                lanes.tally(self._tx, lane_id, tally)
        self._tallies.clear()

    def _measure(self, limit_key: str) -> None:
        limit = self._limits[limit_key]
        used = limit.used + self._units.get(limit_key, 0)
        self._room[limit_key] = self._lanes.policy.room(limit_key, limit.capacity, used)

    def _use(self, lane: Lane, sign: int) -> None:
        for key, units in lane.needs.items():
            self._units[key] = self._units.get(key, 0) + sign * units
            if key in self._room:
                self._measure(key)

    def _save_office(self, office: OfficeCounters) -> None:
        opened = self._opened(office)
        for lane_id, counts in office.lanes.items():
            counts.is_open = lane_id in opened
            if counts.is_open:
                counts.turn = office.turn
        self._write_lanes(office)
        if office.turn != office.stored_turn:
            lanes.take_turn(self._tx, office.office_id, office.turn)
        # These refer to the transaction and it to them: thousands of lanes would stay until a full garbage collection.
        office.lanes, office.stored, office.unread = {}, {}, None

    def _opened(self, office: OfficeCounters) -> set[int]:
        """Returns, for each class, one lane from which the office's own limits let a job start. Keeps the lane that was
        open before, if it can still be open."""
        chosen: dict[str, int] = {}
        if office.searched > lanes.MOST_SEARCHED and office.is_begun_anew:  # The last of several searches was short.
            office.searched, office.unread = 0, None
        unread = self.unread(office) if office.unread is None else office.unread
        for lane_id in sorted(office.waiting, key=lambda lane_id: not office.lanes[lane_id].is_open):
            self._open(office, lane_id, chosen)
        for class_key in [key for key in unread if key not in chosen]:
            front = self._lanes.lane(self._tx, unread[class_key].lane_id)
            while class_key in unread and class_key not in chosen and self._is_class_open(office, front):
                for lane_id in self.read_more(office, class_key):
                    self._open(office, lane_id, chosen)
        return set(chosen.values())

    def _open(self, office: OfficeCounters, lane_id: int, chosen: dict[str, int]) -> None:
        lane = self._lanes.lane(self._tx, lane_id)
        if lane.class_key in chosen or self.is_closed(lane) or not self.has_room(lane.local, {}):
            return
        if self._are_rates_open(lane.local):
            chosen[lane.class_key] = lane_id

    def _is_class_open(self, office: OfficeCounters, front: Lane) -> bool:
        own = {key: units for key, units in front.class_needs.items() if key in front.local}
        is_open = not self.is_class_closed(front) and self.has_room(own, {})
        return is_open and self._are_rates_open(own)

    def _are_rates_open(self, limit_keys: Mapping[str, int]) -> bool:
        buckets = self._lanes.buckets(self._tx)
        return buckets is None or buckets.are_open(limit_keys)

    def _write_lanes(self, office: OfficeCounters) -> None:
        """Writes the changed lanes. Writes their places apart, because a start mostly does not change them."""
        for lane_id, counts in office.lanes.items():
            ready, is_open, turn, first = office.stored[lane_id]
            if counts.ready != ready:
                self.tally(lane_id).ready = counts.ready - ready
            if counts.ready == 0:
                counts.first, counts.is_open = None, False
            if counts.first != first or counts.is_open != is_open or counts.turn != turn:
                lanes.place(self._tx, lane_id, counts)


class HeldDevices:
    """The named devices of this node that are in use in one transaction, each with the worker that holds the device."""

    def __init__(self, by_device: dict[tuple[str, str], str]) -> None:
        self.by_device = by_device


class Workers:
    """The numbered slots of this node: a cache of the `worker_id` of the running jobs.

    Each transaction changes its own copy, and the commit updates the cache (`SlotsChanged`). The database refuses two
    running jobs with one worker.

    A run on an engine uses nothing of this node: it has a slot `placed-N`, here the negative number -N, and `most` does
    not count it.
    """

    def __init__(
        self,
        node: str,
        most: int = 0,
        resources: Mapping[str, int] | None = None,
        devices: NodeDevices | None = None,
    ) -> None:
        """Allows at most `most` runs at once (0: no limit), and no more units than this machine has."""
        self.node = node
        self.most = most
        self.resources = dict(resources or {})
        # The resources of this node whose units are named devices. The database knows which devices are in use.
        self.devices = devices or NodeDevices()
        # Devices on which processes of other programs compute, as `GpuWatch` last saw them; no run gets these devices.
        self.busy_devices: Mapping[tuple[str, str], str] = {}
        # The resources that any node lists. A node that does not list such a resource has no units of it.
        self.counted: Set[str] = self.resources.keys()
        self._elsewhere: Mapping[str, int] = {}
        self._types_elsewhere: Set[str] = frozenset()
        self._taken: set[int] = set()
        self._used: Counter[str] = Counter()
        self._lowest = 1

    def know_others(self, resources: Mapping[str, int], job_types: Set[str]) -> None:
        """Stores what other live nodes offer: the most units of each resource on one node, and all job types."""
        self.counted = self.resources.keys() | resources.keys()
        self._elsewhere, self._types_elsewhere = resources, job_types

    def runs_elsewhere(self, job_type: str) -> bool:
        return job_type in self._types_elsewhere

    def could_ever_fit(self, lane: Lane) -> bool:
        """Returns whether some node could run a job of the lane if nothing else ran."""
        return all(
            units <= max(self.resources.get(resource, 0), self._elsewhere.get(resource, 0))
            for resource, units in lane.resources.items()
            if resource in self.counted
        )

    @property
    def is_full(self) -> bool:
        """Returns whether this node runs as many jobs as it is allowed to."""
        return bool(self.most) and _local(self._taken) >= self.most

    def makes_room(self, tx: Tx) -> bool:
        """Returns whether this transaction ends the state in which this node is full. The node must then look for the
        work of which others notified it while it was full."""
        if not self.is_full or not self._types_elsewhere:
            return False
        change = tx.local(self._new_change)
        return _local((self._taken - change.freed) | change.taken) < self.most

    def has_room(self, tx: Tx, lane: Lane, is_placed: bool = False) -> bool:
        """Returns whether this node can run one more job of the lane, or hand it to an engine."""
        if not self.most and not self.counted:
            return True
        change = tx.local(self._new_change)
        if self.most and not is_placed and _local((self._taken - change.freed) | change.taken) >= self.most:
            return False
        return all(
            self._used[resource] + change.units[resource] + units <= self.resources.get(resource, 0)
            for resource, units in lane.resources.items()
            if resource in self.counted
        ) and all(len(names) >= lane.resources[resource] for resource, names in self._free_devices(tx, lane).items())

    def assign(self, tx: Tx, worker_id: str, lane: Lane) -> Devices:
        """Stores which named devices a starting worker holds for the lane. Returns the devices by resource."""
        free = self._free_devices(tx, lane)
        chosen = {resource: names[: lane.resources[resource]] for resource, names in free.items()}
        if chosen:
            devices.hold(tx, self.node, worker_id, chosen)
            held = tx.local(self._held_devices).by_device
            held.update(((resource, name), worker_id) for resource, names in chosen.items() for name in names)
        return chosen

    def _free_devices(self, tx: Tx, lane: Lane) -> Devices:
        """Returns the devices that a run of the lane could get, by resource; the database says which are in use."""
        named = self.devices.names.keys() & lane.resources.keys() if self.devices.names else ()
        if not named:
            return NO_DEVICES
        held = tx.local(self._held_devices).by_device
        return {
            resource: tuple(
                name
                for name in self.devices.names[resource]
                if (resource, name) not in held and (resource, name) not in self.busy_devices
            )
            for resource in named
        }

    def not_held(self, tx: Tx, seen: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
        """Returns the devices with processes on them that no run of this node holds."""
        held = tx.local(self._held_devices).by_device
        return {device: words for device, words in seen.items() if device not in held}

    def missing_devices(self, tx: Tx, lane: Lane) -> dict[tuple[str, str], str]:
        """Returns the devices in use by other programs, of resources with too few free ones for a run of the lane."""
        short = {name for name, free in self._free_devices(tx, lane).items() if len(free) < lane.resources[name]}
        return {device: words for device, words in self.busy_devices.items() if device[0] in short}

    def _release_devices(self, tx: Tx, worker_id: str) -> None:
        devices.release(tx, worker_id)
        held = tx.local(self._held_devices)
        held.by_device = {device: holder for device, holder in held.by_device.items() if holder != worker_id}

    def _held_devices(self, tx: Tx) -> HeldDevices:
        return HeldDevices(devices.held(tx, self.node))

    def take(self, tx: Tx, lane: Lane, is_placed: bool = False) -> str:
        """Takes the lowest slot that is free in this transaction. Returns the worker id."""
        change = tx.local(self._new_change)
        slot, step = (-1, -1) if is_placed else (min([self._lowest, *(one for one in change.freed if one > 0)]), 1)
        while (slot in self._taken and slot not in change.freed) or slot in change.taken:
            slot += step
        self._take(change, slot, lane)
        return f"{self.node}/slot-{slot}" if slot > 0 else f"{self.node}/slot-{PLACED}{-slot}"

    def follows(self, worker_id: str | None) -> bool:
        """Returns whether this is a worker of this node that follows a run on an engine."""
        return (self._slot(worker_id) or 0) < 0

    def hold(self, tx: Tx, worker_id: str, lane: Lane) -> None:
        """Counts the slot of a job that was running before this process counted slots."""
        slot = self._slot(worker_id)
        if slot is not None:
            self._take(tx.local(self._new_change), slot, lane)

    def free(self, tx: Tx, worker_id: str | None, lane: Lane) -> None:
        slot = self._slot(worker_id)
        # For a run that this process did not start, nothing says whether its resources had named devices.
        if worker_id and (lane.resources.keys() & self.devices.names.keys() if slot in self._taken else lane.resources):
            self._release_devices(tx, worker_id)
        if slot not in self._taken:
            return  # This process never counted a slot of another node or of an earlier incarnation.
        change = tx.local(self._new_change)
        change.freed.add(slot)
        if self.counted:
            change.units.subtract(lane.resources)

    def _slot(self, worker_id: str | None) -> int | None:
        """Returns the number of the slot; None for a slot of another node."""
        node, _, slot = (worker_id or "").rpartition("/slot-")
        if node != self.node:
            return None
        return -int(slot.removeprefix(PLACED)) if slot.startswith(PLACED) else int(slot)

    def _take(self, change: SlotsChanged, slot: int, lane: Lane) -> None:
        change.freed.discard(slot)
        change.taken.add(slot)
        if self.counted:
            change.units.update(lane.resources)

    def forget(self) -> None:
        """Frees all slots: a new incarnation of the node runs nothing."""
        self._taken, self._lowest = set(), 1
        self._used.clear()

    def _new_change(self, tx: Tx) -> SlotsChanged:
        change = SlotsChanged(self.node, set(), set(), Counter())
        tx.cause(change)
        return change

    def apply(self, node: str, taken: set[int], freed: set[int], units: Counter[str]) -> None:
        """Updates the slots in memory after a commit."""
        self._taken -= freed
        self._taken |= taken
        self._used.update(units)
        self._lowest = min([self._lowest, *(slot for slot in freed if slot > 0)])
        while self._lowest in self._taken:
            self._lowest += 1


def _local(slots: Set[int]) -> int:
    """Returns how many of the slots run something on this node."""
    return sum(slot > 0 for slot in slots)

"""The locks of offices, which decide which transactions of several nodes may run at the same time.

A transaction either writes alone, or holds the locks of the offices about which it decides. Offices that share a limit
form a group with one lock, so that the counters of a limit are read and changed by one transaction at a time. A limit
that is not set restricts nothing, so several transactions may change its counter at once: each adds to the stored
value.

A transaction that writes alone holds the lock for writing exclusively; the others hold it shared. A change that joins
or splits groups (a limit that is set, the first job that needs one) is stored by a transaction that writes alone and
increments the version of the settings. Each transaction reads that version once it has its locks, so it knows whether
they are still the right ones.
"""

from collections.abc import Iterable, Mapping

from nextslot.domain.limits import is_local
from nextslot.store.contract import Tx
from nextslot.store.tables import column_codec, lanes, nodes

# How many transactions write alone after one that had to be repeated, this one included.
ALONE_AFTER = 50
# The statements allowed in a transaction that does not write alone. Each reads and changes only rows of offices, lanes
# and jobs that the transaction has locked, or rows of its own node, or only adds to a counter. `lanes.outlook` and
# `lanes.first_open` also read other offices; their results are read again when such an office is locked.
CONFINED = frozenset(
    {
        "events.append",
        "failures.count",
        "failures.see",
        "jobs.ending_facts",
        "jobs.fail",
        "jobs.firsts",
        "jobs.heads",
        "jobs.pass_over",
        "jobs.start",
        "jobs.stop",
        "jobs.succeed",
        "lanes.classes_of",
        "lanes.counts",
        "lanes.first_open",
        "lanes.get",
        "lanes.next_open",
        "lanes.of_class",
        "lanes.of_office",
        "lanes.outlook",
        "lanes.place",
        "lanes.take_turn",
        "lanes.tally",
        "limits.get_many",
        "limits.pauses",
        "limits.use",
        "rates.get_many",
        "rates.put",
        "rollups.count",
        "runs.begin",
        "runs.finish",
        "search.add_error",
    }
)

# Steps from class to class in an index, because an office may have thousands of lanes of one class.
_SHARED = """
with recursive classes(office_id, class_key) as (
    (select office_id, class_key from lanes order by office_id, class_key limit 1)
    union all
    select following.office_id, following.class_key from classes cross join lateral (
        select lanes.office_id, lanes.class_key from lanes
        where (lanes.office_id, lanes.class_key) > (classes.office_id, classes.class_key)
        order by lanes.office_id, lanes.class_key limit 1
    ) following
)
select distinct classes.office_id, limits.limit_key
from classes cross join lateral json_object_keys(cast(classes.class_key as json) -> 'limits') as needed(limit_key)
join limits on limits.limit_key = needed.limit_key and limits.capacity <> 0
"""


class NotConfined(Exception):
    """Raised in a transaction that needs more than it has locked. The store repeats it as one that writes alone. The
    next transactions write alone too, because they probably need the same.
    """

    def __init__(self, what: str, alone: int | None = None) -> None:
        self.alone = ALONE_AFTER if alone is None else alone
        super().__init__(what)


class OfficeGroups:
    """The groups of offices that share a limit, as of a version of the settings. A group has the name of its first
    office.
    """

    def __init__(self, shared: Iterable[tuple[str, str]] = ()) -> None:
        self._shared = frozenset(shared)
        self._names = _named(self._shared)

    @classmethod
    def read(cls, tx: Tx) -> "OfficeGroups":
        return cls((office_id, key) for office_id, key in tx.select(_SHARED, {}))

    def of(self, office_id: str) -> str:
        return self._names.get(office_id, office_id)

    def shares(self, office_id: str, limit_key: str) -> bool:
        return (office_id, limit_key) in self._shared


def _named(shared: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Returns for each office the first office of its group: limits connect them, directly or through others."""
    members: dict[str, set[str]] = {}
    for office_id, limit_key in shared:
        members.setdefault(limit_key, set()).add(office_id)
    names: dict[str, str] = {}
    for offices in members.values():
        joined = {names.get(office_id, office_id) for office_id in offices}
        if len(joined) > 1:
            name = min(joined)
            names |= {one: name for one, known in names.items() if known in joined}
            names |= dict.fromkeys(offices, name)
    return names


class SharingChanges:
    """Collects the changes of a transaction that writes alone to who shares a limit."""

    def __init__(self) -> None:
        self._is_resized = False
        self._new: list[tuple[str, list[str]]] = []

    def note(self, statement: str, values: Mapping[str, object]) -> None:
        """Notes the changes that a statement makes."""
        if statement == "lanes.add":
            self._new.append((str(values["office_id"]), list(column_codec.loads(str(values["shared"])))))
        elif statement == "limits.resize" and not is_local(str(values["limit_key"])):
            self._is_resized = True

    def store(self, tx: Tx, groups: OfficeGroups | None) -> None:
        """If the groups have changed, makes every node read them again."""
        if self._is_resized or (self._new and self._has_new(tx, groups)):
            nodes.settings_changed(tx)

    def _has_new(self, tx: Tx, groups: OfficeGroups | None) -> bool:
        limits = lanes.limits(tx, {key for _, keys in self._new for key in keys})
        return any(
            limits[key].capacity and (groups is None or not groups.shares(office_id, key))
            for office_id, keys in self._new
            for key in keys
        )

"""The core's tables as values, for the reads of an extension. What changes them is in `Host`."""

from nextslot.store.tables import aliases, column_codec, deliveries, events, groups, jobs, offices, runs

__all__ = ["aliases", "column_codec", "deliveries", "events", "groups", "jobs", "offices", "runs"]

"""What offline commands of an extension may use: databases of other programs, read-only.

`nextslot.cli.session.run_offline` gives such a command the extension's `Attached`.
"""

from nextslot.store.maintenance.other_databases import opened as other_database

__all__ = ["other_database"]

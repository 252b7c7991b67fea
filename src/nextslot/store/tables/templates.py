"""Templates: converts rows to values and back, one function per statement."""

from collections.abc import Iterable

from nextslot.domain import Template
from nextslot.store.contract import Tx

from . import column_codec
from .rows import TEMPLATES


def insert(tx: Tx, template: Template) -> None:
    tx.execute("templates.insert", **TEMPLATES.named(template))


def update(tx: Tx, template: Template) -> None:
    tx.execute("templates.update", **TEMPLATES.changed(template))


def get(tx: Tx, template_id: str) -> Template | None:
    row = tx.row("templates.get", template_id=template_id)
    return None if row is None else TEMPLATES.value(row)


def get_many(tx: Tx, template_ids: Iterable[str]) -> dict[str, Template]:
    found = map(TEMPLATES.value, tx.rows("templates.get_many", template_ids=column_codec.key_set(template_ids)))
    return {template.template_id: template for template in found}


def by_name(tx: Tx, office_id: str, name: str) -> str | None:
    """Returns the id of the office's current template with this name."""
    row = tx.row("templates.by_name", office_id=office_id, name=name)
    return None if row is None else row[0]


def page(tx: Tx, before: str, limit: int, office_id: str | None = None) -> list[Template]:
    """Returns a page of templates, the newest first, below an id; of one office or of all."""
    found = tx.rows("templates.page", before=before, limit=limit, office_id=office_id or "")
    return [TEMPLATES.value(row) for row in found]

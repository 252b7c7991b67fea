"""Templates: rows to values and back, one function a statement."""

from collections.abc import Iterable

from nextslot.domain import Template
from nextslot.store.contract import Row, Tx
from nextslot.system.clock import Instant

from . import column_codec


def insert(tx: Tx, template: Template) -> None:
    tx.execute("templates.insert", **_values(template), created_at=template.created_at)


def update(tx: Tx, template: Template) -> None:
    tx.execute("templates.update", **_values(template))


def get(tx: Tx, template_id: str) -> Template | None:
    row = tx.row("templates.get", template_id=template_id)
    return None if row is None else _template(row)


def get_many(tx: Tx, template_ids: Iterable[str]) -> dict[str, Template]:
    found = map(_template, tx.rows("templates.get_many", template_ids=column_codec.key_set(template_ids)))
    return {template.template_id: template for template in found}


def by_name(tx: Tx, name: str) -> str | None:
    """The id of the one that has this name now."""
    row = tx.row("templates.by_name", name=name)
    return None if row is None else row[0]


def page(tx: Tx, before: str, limit: int) -> list[Template]:
    """The newest first, from an id downwards."""
    return [_template(row) for row in tx.rows("templates.page", before=before, limit=limit)]


def _values(template: Template) -> dict[str, object]:
    return {
        "template_id": template.template_id,
        "name": template.name,
        "job_type": template.job_type,
        "params": column_codec.dumps(template.params),
        "priority": template.priority,
        "timeout_seconds": template.timeout_seconds,
        "retry_policy": column_codec.optional(template.retry_policy),
        "resources": column_codec.optional(template.resources),
        "webhook": column_codec.optional(template.webhook),
        "description": template.description,
        "archived_at": template.archived_at,
    }


def _template(row: Row) -> Template:
    return Template(
        template_id=row[0],
        name=row[1],
        job_type=row[2],
        params=column_codec.loads(row[3]),
        priority=row[4],
        timeout_seconds=row[5],
        retry_policy=column_codec.parsed(row[6]),
        resources=column_codec.parsed(row[7]),
        webhook=column_codec.parsed(row[8]),
        description=row[9],
        created_at=Instant(row[10]),
        archived_at=column_codec.instant(row[11]),
    )

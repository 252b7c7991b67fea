"""The inbox, requests of other programs that are not jobs yet: one function a statement."""

from typing import NamedTuple

from nextslot.store.contract import Tx


class Waiting(NamedTuple):
    """A request as its program stored it: nothing of it was checked, but that both texts are JSON objects."""

    job_id: str
    job_type: str
    params: str
    options: str
    sent_by: str


def newest(tx: Tx) -> str:
    return next(str(row[0]) for row in tx.rows("inbox.newest"))


def page(tx: Tx, after: str, newest: str, limit: int) -> list[Waiting]:
    return [Waiting(*row) for row in tx.rows("inbox.page", after=after, newest=newest, limit=limit)]


def waits(tx: Tx, job_id: str) -> bool:
    """Returns whether the request for this job is still in the inbox."""
    return tx.row("inbox.waits", job_id=job_id) is not None


def delete(tx: Tx, job_id: str) -> bool:
    """Returns False if another node has taken this request in."""
    return tx.execute("inbox.delete", job_id=job_id) > 0

"""The caller of a request; services pass it down the write path with every change."""

from .audit import Actor
from .declared_values import Value


class RequestContext(Value):
    """The caller of one request. The default is a caller in Python, whom the audit log does not name."""

    # The audit log names this caller for a change, with its action and target.
    actor: Actor | None = None
    # A read: a change is refused, because the audit log could name no caller for it.
    is_read_only: bool = False
    # A creating request that is sent again with this key gets its first answer.
    idempotency_key: str | None = None
    # The office that the caller's key is for; None for every office.
    office_id: str | None = None
    # The types of work that the caller's key may make; none: all.
    job_types: tuple[str, ...] = ()
    # The span of the request. New jobs are linked to it in memory; it is not stored.
    trace: object = None

    @property
    def asked_by(self) -> str | None:
        """Returns the caller's name; None for a caller in Python."""
        return None if self.actor is None else self.actor.name


PYTHON = RequestContext()

"""The caller of a request. Services pass it down the write path with every change."""

from .audit import Actor
from .declared_values import Value


class RequestContext(Value):
    """Describes the caller of one request. The default is a caller in Python, whom the audit log does not name."""

    # The audit log names this caller for a change, with its action and target.
    actor: Actor | None = None
    # Whether the request only reads. Changes are then refused, because the audit log could name no caller for them.
    is_read_only: bool = False
    # The idempotency key. A creating request that is sent again with this key gets its first answer.
    idempotency_key: str | None = None
    # The office of the caller's key; None if the key is for every office.
    office_id: str | None = None
    # The job types that the caller's key may create; empty means all.
    job_types: tuple[str, ...] = ()
    # The span of the request. New jobs are linked to it in memory; it is not stored.
    trace: object = None

    @property
    def asked_by(self) -> str | None:
        """Returns the caller's name; None for a caller in Python."""
        return None if self.actor is None else self.actor.name


PYTHON = RequestContext()

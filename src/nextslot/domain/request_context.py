"""Who asks, and how: the value that is handed down the write path with every change."""

from .declared_values import Value
from .keys import Actor


class RequestContext(Value):
    """The caller of one request. The layer that receives the request makes this value, and hands it to the services.

    The default is a caller in Python: the audit log does not name it.
    """

    # Whom the audit log names for a change, with the action and the target.
    actor: Actor | None = None
    # The request only reads: a change in its name is refused, since nobody would be named for it.
    is_read_only: bool = False
    # The sender may send this creating request again: the answer is then what it made the first time.
    idempotency_key: str | None = None
    # The request's span, as the tracer knows it. New jobs are linked to it in memory; it is not stored.
    trace: object = None

    @property
    def asked_by(self) -> str | None:
        """Returns the caller's name; None for a caller in Python."""
        return None if self.actor is None else self.actor.name

    @property
    def office_id(self) -> str | None:
        """Returns the office that the caller's key is for; None for every office."""
        return None if self.actor is None else self.actor.office_id


PYTHON = RequestContext()

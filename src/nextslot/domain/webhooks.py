"""Webhook subscriptions, deliveries and their attempts."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Generic

from nextslot.system.instant import Instant

from .declared_values import At, Id, Internal, Says, Value


class DeliveryStatus(StrEnum):
    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    FAILED = "FAILED"


class Webhook(Value, Generic[At]):
    """A subscription: the events of an office, or of all, that go to a URL. Its secrets are stored separately."""

    webhook_id: Id
    url: str
    events: tuple[str, ...]
    office_id: str | None = None
    enabled: bool = True
    disabled_reason: str | None = None
    # Until then the secret before the last rotation signs too.
    old_secret_until: Annotated[At | None, Says("Until then the secret before signs too")] = None
    created_by: str | None = None
    created_at: At


class Attempt(Value, Generic[At]):
    """One attempt to deliver: the answer, or why there was none."""

    number: int
    attempted_at: At
    duration_seconds: float
    status_code: int | None = None
    error: str | None = None
    answer: Annotated[
        str | None,
        Says("The first bytes of the answer; as the status code and the error, for keys with the scope `operate` only"),
    ] = None
    retry_after_seconds: float | None = None


class DeliveryFields(Value, Generic[At]):
    """One webhook message to one URL, with its attempts. `delivery_id` is its `webhook-id`."""

    delivery_id: Id
    url: str
    event: str
    seq: int
    status: DeliveryStatus
    created_at: At
    office_id: str | None = None
    job_id: str | None = None
    next_attempt_at: At | None = None
    finished_at: At | None = None
    reason: str | None = None


class Delivery(DeliveryFields[Instant]):
    """A message, with its content and its signers."""

    WORKED_OUT = ("webhook_id",)

    # `server`, and the ids of subscriptions, whose secrets sign it.
    signers: Internal[tuple[str, ...]]
    is_own: Internal[bool]
    body: Internal[str]
    headers: Internal[Mapping[str, str]]
    # Attempts of this round; sending it again by hand begins a new round.
    tries: Internal[int] = 0
    attempts: tuple[Attempt, ...] = ()

    @property
    def webhook_id(self) -> str | None:
        """Returns the first subscription among the signers."""
        return next((one for one in self.signers if one != "server"), None)

"""Webhooks: who is told of what, and each message on its way."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from nextslot.system.clock import Instant


class DeliveryStatus(StrEnum):
    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A subscription: which events of which office (none: of all) go to a URL. Its secrets are kept elsewhere."""

    webhook_id: str
    url: str
    events: tuple[str, ...]
    office_id: str | None = None
    enabled: bool = True
    disabled_reason: str | None = None
    # Until then the secret before the last rotation signs too.
    old_secret_until: Instant | None = None
    created_by: str | None = None
    created_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to deliver: what was answered, or why nothing was."""

    number: int
    attempted_at: Instant
    duration_seconds: float
    status_code: int | None = None
    error: str | None = None
    answer: str | None = None
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One webhook message to one URL, with its attempts. `delivery_id` is its `webhook-id`."""

    delivery_id: str
    url: str
    event: str
    seq: int
    status: DeliveryStatus
    # Whose secrets sign it: `server`, and subscriptions by id.
    signers: tuple[str, ...]
    is_own: bool
    body: str
    headers: Mapping[str, str]
    created_at: Instant
    office_id: str | None = None
    job_id: str | None = None
    # Attempts of this round: sending it again by hand begins a new one.
    tries: int = 0
    next_attempt_at: Instant | None = None
    finished_at: Instant | None = None
    reason: str | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def webhook_id(self) -> str | None:
        """The first subscription that it is for."""
        return next((one for one in self.signers if one != "server"), None)

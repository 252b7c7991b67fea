"""Webhook subscriptions, deliveries and their attempts."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Generic
from urllib.parse import urlsplit

from nextslot.system.instant import Instant

from .bounds import Json
from .declared_values import At, Id, Internal, Later, Says, ShownAs, Value

# Formats for people, which every webhook may have; engine/webhooks/chat_formats.py writes them.
CHAT_FORMATS = ("slack", "discord", "ntfy")
# How the message for each chat begins. Messages in JSON begin with their type.
_CHAT_MESSAGE = re.compile(r'\{"(text|content|topic)":')
# Replaces the hidden part of a URL.
HIDDEN = "…"


def without_secret(url: str) -> str:
    """Returns a chat's URL without the end of its path and its query: anybody who knows these can write to the chat."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path.rstrip('/').rpartition('/')[0]}/{HIDDEN}"


def _shown(webhook: Mapping[str, Json]) -> Mapping[str, Json]:
    is_chat = webhook.get("format") in CHAT_FORMATS
    return {**webhook, "url": without_secret(webhook["url"])} if is_chat else webhook


def _jobs_shown(jobs: tuple[Mapping[str, Json], ...]) -> list[Mapping[str, Json]]:
    return [{**job, "webhook": _shown(job["webhook"])} if job.get("webhook") else job for job in jobs]


# The webhook that gets the messages about a job, a template or an office.
WebhookSetting = Annotated[Mapping[str, Json] | None, ShownAs(_shown)]
# The jobs of a template, each with the fields that the caller gave.
JobSettings = Annotated[tuple[Mapping[str, Json], ...] | None, ShownAs(_jobs_shown)]


class DeliveryStatus(StrEnum):
    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    FAILED = "FAILED"


class Webhook(Value, Generic[At]):
    """A subscription: events of an office, or of all offices, that go to a URL. Its secrets are stored separately."""

    webhook_id: Id
    url: str
    events: tuple[str, ...]
    office_id: str | None = None
    enabled: bool = True
    disabled_reason: str | None = None
    # Until this time the secret before the last rotation still signs.
    old_secret_until: Later[Annotated[At | None, Says("Until then the previous secret signs too")]] = None
    created_by: str | None = None
    created_at: At
    format: Annotated[str | None, Says(f"Of {', '.join(CHAT_FORMATS)}; null: signed JSON for programs")] = None

    def to_dict(self) -> dict[str, Json]:
        """Returns the JSON form; the URL of a chat is shown without its secret part."""
        return dict(_shown(super().to_dict()))


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

    def to_dict(self) -> dict[str, Json]:
        """Returns the JSON form; the URL of a chat is shown without its secret part."""
        found = super().to_dict()
        if _CHAT_MESSAGE.match(self.body):
            found["url"] = without_secret(self.url)
        return found

    # `server` or the ids of subscriptions: their secrets sign the message.
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

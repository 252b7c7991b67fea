"""WebhookService: stores webhook messages in the same transaction as the change they report (DEC-009).

Code that ends something calls it right after noting its event; `store` puts the messages into the outbox at the end of
the transaction, when the events have their numbers. It sends nothing: `delivery_worker` does, after the commit. The
subscriptions are kept in memory, so that a transaction without subscribers pays nothing. They are read at the start and
after every change, and a change takes effect with its commit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from nextslot.domain import (
    DEFAULT_OFFICE,
    Delivery,
    DeliveryStatus,
    Direct,
    DirectStatus,
    Group,
    Job,
    Json,
    RunStatus,
    Webhook,
    json_form,
    webhook_signature,
)
from nextslot.domain import webhook_delivery as policy
from nextslot.domain.addresses import origin
from nextslot.domain.signals import LINK_SECONDS, Link, link_token, read_link
from nextslot.domain.webhook_delivery import SERVER, Target
from nextslot.engine.effects import Deliver, SubscribersChanged, WebhooksConfigured
from nextslot.engine.events.event_log import EventLog
from nextslot.errors import Conflict, Invalid, NotFound, Problem
from nextslot.store.contract import Tx
from nextslot.store.tables import column_codec, deliveries, direct, groups, jobs, keys, nodes, offices, runs, webhooks
from nextslot.store.tables.webhooks import Secrets
from nextslot.system.instant import Instant
from nextslot.system.randomness import Chance

from .chat_formats import chat_message

MOST_SUBSCRIPTIONS = 100
DISABLED = "disabled by hand"
GONE = "the endpoint answered 410 Gone"
DELETED = "its subscription was deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """How webhooks are sent. The secrets of offices derive from `secret`; without it, one is generated and stored."""

    secret: str | None = field(default=None, repr=False)
    allow_private: bool = True
    # Whether private addresses are allowed only until the first key exists: from then on callers may be strangers.
    is_private_until_keyed: bool = False
    timeout_seconds: float = 10.0
    concurrency: int = 64
    # The address of this server for people; None: notices have no links.
    public_url: str | None = None


@dataclass(frozen=True, slots=True)
class Listeners:
    """The receivers of events as of the last commit: subscriptions, webhooks of offices, and their secrets."""

    subscriptions: Sequence[Webhook] = ()
    offices: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    secrets: Mapping[str, Secrets] = field(default_factory=dict)
    has_keys: bool = False

    def of(self, office_id: str | None) -> list[Webhook]:
        return [one for one in self.subscriptions if one.office_id is None or one.office_id == office_id]


class FormattedMessage(NamedTuple):
    """A message in another format: its event, its whole body, and its headers."""

    event: str
    body: Mapping[str, Json]
    headers: Mapping[str, str]


class MessageFormat(Protocol):
    """Another form of the messages that a job or a group sends to its own webhook: `{"format": NAME, …}`.

    An extension adds one with `add_format`. Both methods return None if the webhook has not subscribed to this end.
    """

    # The names that `events` of such a webhook may contain.
    words: Sequence[str]

    def of_job(self, tx: Tx, job: Job, status: RunStatus, now: Instant) -> FormattedMessage | None:
        """Returns the message about the end of a chain; `job` is its last job."""

    def of_group(self, tx: Tx, group: Group, webhook: Mapping[str, Json], now: Instant) -> FormattedMessage | None:
        """Returns the message about the end of a group; `webhook` is the group's own."""


# Returns the content of a message about a job for an office's own webhook, in the words of the office API.
OfficeWords = Callable[[Tx, Job], Mapping[str, Json]]


class _Message(NamedTuple):
    """A delivery whose event has no number yet: `events` is how many events its transaction had noted by then."""

    delivery: Delivery
    content: Mapping[str, Json]
    # Whether `content` is the whole body.
    is_formatted: bool
    events: int


class _Outbox:
    def __init__(self, tx: Tx) -> None:
        self.messages: list[_Message] = []


class WebhookService:
    def __init__(self, chance: Chance, events: EventLog, settings: WebhookSettings) -> None:
        problem = None if settings.secret is None else webhook_signature.secret_problem(settings.secret)
        if problem is not None:
            raise Invalid(problem, field="webhooks.secret")
        self.settings = settings
        self._chance = chance
        self._events = events
        self._listeners = Listeners()
        self._server_secret = settings.secret or ""
        self._formats: dict[str, MessageFormat] = {}
        self._office_words: OfficeWords | None = None

    def add_format(self, name: str, format_: MessageFormat) -> None:
        """Sends the messages to webhooks with `"format": name` in this form from now on."""
        self._formats[name] = format_

    def use_office_words(self, words: OfficeWords) -> None:
        """Sends the messages about jobs to the webhooks of offices in the words of the office API from now on."""
        self._office_words = words

    @property
    def format_words(self) -> Mapping[str, Sequence[str]]:
        """Returns the words of each format, for the checks of requests."""
        return {name: one.words for name, one in self._formats.items()}

    def load(self, tx: Tx) -> None:
        """Reads subscriptions and secrets at the start, before anything can end, and after changes by another node."""
        self._listeners = _read(tx)
        self._server_secret = self._signing(tx, self.settings)

    def configure(self, tx: Tx, settings: WebhookSettings) -> None:
        """Changes the settings and reads the offices again, effective with this commit."""
        self._reload_listeners(tx)
        tx.cause(WebhooksConfigured(settings, self._signing(tx, settings)))

    def use(self, settings: WebhookSettings, server_secret: str) -> None:
        """Uses settings whose change was committed."""
        self.settings, self._server_secret = settings, server_secret

    @property
    def allow_private(self) -> bool:
        """Returns whether a webhook may go to a loopback or private address now."""
        is_over = self.settings.is_private_until_keyed and self._listeners.has_keys
        return self.settings.allow_private and not is_over

    def note_key(self) -> None:
        """Remembers after a commit that a key exists."""
        self._listeners = replace(self._listeners, has_keys=True)

    def use_listeners(self, listeners: Listeners) -> None:
        """Uses subscriptions whose change was committed."""
        self._listeners = listeners

    def _signing(self, tx: Tx, settings: WebhookSettings) -> str:
        """Returns the secret that signs the messages of jobs and offices: the configured one, or one that is generated
        and stored."""
        stored = settings.secret or webhooks.server_secret(tx)
        if stored is None:
            stored = webhook_signature.secret_of(self._chance.secret())
            webhooks.keep_server_secret(tx, stored)
        return stored

    # Events that cause messages.

    def job_changed(
        self, tx: Tx, job_id: str, office_id: str, has_own: bool, events: Sequence[str], now: Instant
    ) -> None:
        """Adds the messages about a job that has ended or stalled. `has_own`: whether the job has its own webhook. Does
        nothing if nobody receives them."""
        listeners = self._listeners
        if not has_own and not self._has_listeners(office_id):
            return
        job = jobs.get(tx, job_id)
        assert job is not None
        format_ = self._format_of(job.webhook)
        own = job.webhook if format_ is None else None
        office, subscribed = listeners.offices.get(office_id), listeners.of(office_id)
        apart = self._office_words is not None
        wanted = [
            (event, target)
            for event in events
            for target in policy.targets(event, own, office, subscribed, in_office_words=apart)
        ]
        status = policy.chain_end(events)
        message = None if format_ is None or status is None else format_.of_job(tx, job, status, now)
        if message is not None or any(target.is_own for _, target in wanted):
            deliveries.mark_pending(tx, job_id)
            job = job._replace(webhook_status="pending")
        if message is not None and job.webhook is not None:
            self._add_formatted(tx, message, job.webhook, now, office_id, job_id)
        contents = {words: self._content(tx, job, words) for words in {one.in_office_words for _, one in wanted}}
        for event, target in wanted:
            self._add(tx, event, target, contents[target.in_office_words], now, office_id, job_id)

    def _content(self, tx: Tx, job: Job, in_office_words: bool) -> Mapping[str, Json]:
        words = self._office_words
        return words(tx, job) if in_office_words and words is not None else _job_content(tx, job, self._link(job))

    def _link(self, job: Job) -> str | None:
        """Returns the signed link for the answer to the job's signal; None if it has no signal or the server no public
        address."""
        if job.awaiting is None or job.asked_at is None or self.settings.public_url is None:
            return None
        expires_at = job.answer_by or job.asked_at.after(LINK_SECONDS)
        token = link_token(self._server_secret, Link(job.job_id, job.awaiting["name"], expires_at))
        return f"{self.settings.public_url.rstrip('/')}/signal/{token}"

    def read_link(self, token: str) -> Link | None:
        return read_link(self._server_secret, token)

    def group_finished(self, tx: Tx, group: Group, now: Instant) -> None:
        own, _ = groups.webhook(tx, group.group_id)
        format_ = self._format_of(own)
        message = None if format_ is None or own is None else format_.of_group(tx, group, own, now)
        if message is not None and own is not None:
            # The group's row stores which message went to its own webhook.
            groups.told(tx, group.group_id, self._add_formatted(tx, message, own, now, group.office_id))
        office_id, content = group.office_id, {"group": group.to_dict()}
        self._notify(tx, "group.finished", office_id, content, now, own if format_ is None else None)

    def _format_of(self, webhook: Mapping[str, Json] | None) -> MessageFormat | None:
        """Returns the format of a webhook. Returns None if its extension is disabled: the webhook then gets the usual
        messages."""
        return None if webhook is None else self._formats.get(webhook.get("format", ""))

    def schedule_skipped(
        self, tx: Tx, office_id: str, schedule: Mapping[str, Json], occurrence: Mapping[str, Json], now: Instant
    ) -> None:
        """Adds the messages about skipped occurrences; both arguments have the form of `json_form`."""
        content = {"schedule": schedule, "occurrence": occurrence}
        self._notify(tx, "schedule.skipped", office_id, content, now)

    def direct_ended(self, tx: Tx, ended: Direct, now: Instant) -> None:
        """Adds a message to the request's own webhook; none if the caller left before the work began."""
        if ended.status is DirectStatus.CANCELLED:
            return
        own = direct.webhook(tx, ended.run_id)
        event = f"direct.{ended.status.lower()}"
        for target in policy.targets(event, own, None, (), policy.DIRECT_EVENTS):
            self._add(tx, event, target, {"direct": ended.to_dict()}, now, ended.office_id)

    def direct_stalled(self, tx: Tx, stalled: Direct, now: Instant) -> None:
        """Adds the messages about a stalled direct request to those webhooks that want stalls of jobs."""
        self._notify(tx, "job.stalled", stalled.office_id, {"direct": stalled.to_dict()}, now)

    def store(self, tx: Tx) -> None:
        """Puts the messages into the outbox at the end of a transaction, with the numbers of their events."""
        if tx.local(offices.Touched).is_touched:
            self._reload_listeners(tx)
        messages = tx.local(_Outbox).messages
        if not messages:
            return
        before = self._events.last_number_before(tx)
        deliveries.insert(tx, [_numbered(one, before + one.events) for one in messages])
        self._send_soon(tx, [one.delivery.url for one in messages], messages[0].delivery.created_at)

    def _has_listeners(self, office_id: str) -> bool:
        return bool(self._listeners.subscriptions) or office_id in self._listeners.offices

    def _notify(
        self,
        tx: Tx,
        event: str,
        office_id: str,
        content: Mapping[str, Json],
        now: Instant,
        own: Mapping[str, Json] | None = None,
    ) -> None:
        office, subscribed = self._listeners.offices.get(office_id), self._listeners.of(office_id)
        for target in policy.targets(event, own, office, subscribed, policy.GROUP_EVENTS):
            self._add(tx, event, target, content, now, office_id)

    def _add(
        self,
        tx: Tx,
        event: str,
        target: Target,
        content: Mapping[str, Json],
        now: Instant,
        office_id: str | None,
        job_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        if target.chat is not None:
            url, content = chat_message(target.chat, target.url, event, content)
            target, headers = target._replace(url=url), {}
        delivery = Delivery(
            delivery_id=self._chance.new_id(),
            url=target.url,
            event=event,
            seq=0,
            status=DeliveryStatus.PENDING,
            signers=target.signers,
            is_own=target.is_own,
            body="",
            headers=dict(headers or {}),
            created_at=now,
            office_id=office_id,
            job_id=job_id,
            next_attempt_at=now,
        )
        message = _Message(delivery, content, headers is not None, self._events.noted(tx))
        tx.local(_Outbox).messages.append(message)
        return delivery.delivery_id

    def _add_formatted(
        self,
        tx: Tx,
        message: FormattedMessage,
        webhook: Mapping[str, Json],
        now: Instant,
        office_id: str,
        job_id: str | None = None,
    ) -> str:
        target = Target(webhook["url"], (SERVER,), is_own=True)
        return self._add(tx, message.event, target, message.body, now, office_id, job_id, message.headers)

    def _send_soon(self, tx: Tx, urls: Iterable[str], now: Instant) -> None:
        tx.announce("deliveries")
        tx.cause(Deliver(frozenset(origin(url) for url in urls), now))

    # Subscriptions.

    def create(self, tx: Tx, fields: Mapping[str, Json], created_by: str | None, now: Instant) -> tuple[Webhook, str]:
        """Creates a subscription. Returns it with its secret, which is shown only once."""
        events = tuple(policy.RUN_EVENTS if fields["events"] is None else fields["events"])
        about = {"webhook_id": self._chance.new_id(), "created_by": created_by, "created_at": now}
        webhook = Webhook(**{**fields, **about, "events": events})
        self._check(tx, webhook)
        if webhooks.count(tx, webhook.office_id) >= MOST_SUBSCRIPTIONS:
            whose = "all offices" if webhook.office_id is None else f"the office {webhook.office_id!r}"
            raise Conflict(f"there are already {MOST_SUBSCRIPTIONS:,} subscriptions for {whose}: delete one first")
        secret = webhook_signature.secret_of(self._chance.secret())
        webhooks.insert(tx, webhook, secret)
        self._reload_listeners(tx)
        return webhook, secret

    def change(self, tx: Tx, webhook_id: str, changes: Mapping[str, Json], now: Instant) -> tuple[Webhook, Webhook]:
        """Changes `url`, `events`, `office_id`, `format` or `enabled`. Returns (before, after). Disabling ends its
        pending deliveries."""
        unknown = sorted(changes.keys() - {"url", "events", "office_id", "format", "enabled"})
        if unknown or not changes:
            problem = "cannot be changed" if unknown else "nothing to change was given"
            raise Invalid(f"{problem}; give url, events, office_id, format or enabled", *unknown[:1])
        before = self.subscription(tx, webhook_id)
        values = dict(changes)
        if isinstance(values.get("events"), list):
            values["events"] = tuple(values["events"])
        if "enabled" in values:
            if not isinstance(values["enabled"], bool):
                raise Invalid("is neither true nor false; give one of them", field="enabled")
            values["disabled_reason"] = None if values["enabled"] else before.disabled_reason or DISABLED
        after = replace(before, **values)
        self._check(tx, after)
        webhooks.update(tx, after)
        if before.enabled and not after.enabled:
            deliveries.give_up(tx, webhook_id, f"its subscription was {DISABLED}", now)
        self._reload_listeners(tx)
        return before, after

    def delete(self, tx: Tx, webhook_id: str, now: Instant) -> Webhook:
        """Deletes a subscription. Pending deliveries to it alone end FAILED; past deliveries stay stored."""
        webhook = self.subscription(tx, webhook_id)
        deliveries.give_up(tx, webhook_id, DELETED, now)
        webhooks.delete(tx, webhook_id)
        self._reload_listeners(tx)
        return webhook

    def rotate_secret(self, tx: Tx, webhook_id: str, now: Instant) -> tuple[Webhook, str]:
        """Replaces the secret. For a day the old one signs too, so that the receiver can switch."""
        self.subscription(tx, webhook_id)
        secret = webhook_signature.secret_of(self._chance.secret())
        webhooks.rotate(tx, webhook_id, secret, now.after(webhook_signature.ROTATION_SECONDS))
        self._reload_listeners(tx)
        return self.subscription(tx, webhook_id), secret

    def test(self, tx: Tx, webhook_id: str, now: Instant) -> str:
        """Adds a test message, even to a disabled subscription. Returns the delivery's id."""
        webhook = self.subscription(tx, webhook_id)
        target = Target(webhook.url, (webhook_id,), is_own=False, chat=webhook.format)
        content = {"webhook": webhook.to_dict()}
        return self._add(tx, policy.TEST_EVENT, target, content, now, webhook.office_id)

    def subscription(self, tx: Tx, webhook_id: str) -> Webhook:
        webhook = webhooks.get(tx, webhook_id)
        if webhook is None:
            raise NotFound("webhook", webhook_id)
        return webhook

    def gone(self, tx: Tx, webhook_id: str, now: Instant) -> None:
        """Disables a subscription, because its endpoint answered 410 (Gone)."""
        webhook = webhooks.get(tx, webhook_id)
        if webhook is not None and webhook.enabled:
            webhooks.update(tx, replace(webhook, enabled=False, disabled_reason=f"{GONE} on {now}"))
            deliveries.give_up(tx, webhook_id, f"its subscription was disabled: {GONE}", now)
            self._reload_listeners(tx)

    def refuse_wrong(self, field: str, webhook: Mapping[str, Json], events: Sequence[str]) -> None:
        """Raises Invalid if a request's own webhook is invalid; `events` are the allowed event names."""
        problems = list(policy.problems(field, webhook, events, self.allow_private, self.format_words))
        if problems:
            raise Invalid(problems)

    def _check(self, tx: Tx, webhook: Webhook) -> None:
        problems = [
            *policy.url_problems("url", webhook.url, self.allow_private),
            *policy.event_problems("events", webhook.events, policy.EVENTS),
            *policy.chat_problems("", {"url": webhook.url, "format": webhook.format}),
        ]
        if webhook.office_id is not None and not isinstance(webhook.office_id, str):
            problems.append(Problem("office_id", "is not a text; give the office's id"))
        if problems:
            raise Invalid(problems)
        if webhook.office_id is not None and offices.get(tx, webhook.office_id) is None:
            raise NotFound("office", webhook.office_id)

    def _reload_listeners(self, tx: Tx) -> None:
        """Reads the subscriptions again, effective with the commit: a rolled back change has no effect."""
        nodes.settings_changed(tx)
        tx.cause(SubscribersChanged(_read(tx)))

    # Deliveries.

    def redeliver(self, tx: Tx, delivery_id: str, now: Instant) -> Delivery:
        """Starts a new round of attempts for the same message, with the same `webhook-id`."""
        found = deliveries.get(tx, delivery_id)
        if found is None:
            raise NotFound("delivery", delivery_id)
        if SERVER not in found.signers and not any(webhooks.get(tx, one) for one in found.signers):
            raise Conflict(f"delivery {delivery_id} cannot be signed: {DELETED}, with its secret")
        if not deliveries.send_again(tx, delivery_id, now):
            raise Conflict(f"delivery {delivery_id} is PENDING: wait for its next attempt at {found.next_attempt_at}")
        if found.is_own and found.job_id is not None:
            deliveries.mark_job(tx, found.job_id)
        self._send_soon(tx, [found.url], now)
        again = deliveries.get(tx, delivery_id)
        assert again is not None
        return again

    def secret(self, office_id: str) -> str:
        """Returns the secret that signs the webhooks of an office and of its jobs."""
        return webhook_signature.secret_for(self._server_secret, office_id)

    def secrets_of(self, delivery: Delivery, now: Instant) -> list[str]:
        """Returns the secrets that sign a message now; none if its subscriptions are gone."""
        found = []
        for signer in delivery.signers:
            if signer == SERVER:
                found.append(self.secret(delivery.office_id or DEFAULT_OFFICE))
            elif (own := self._listeners.secrets.get(signer)) is not None:
                found.append(own.secret)
                if own.old_secret is not None and own.old_until is not None and now < own.old_until:
                    found.append(own.old_secret)
        return found


class SilentWebhooks(WebhookService):
    """Drops all messages, for a forecast: it simulates events but sends nothing."""

    def __init__(self, chance: Chance, events: EventLog) -> None:
        super().__init__(chance, events, WebhookSettings())

    def job_changed(
        self, tx: Tx, job_id: str, office_id: str, has_own: bool, events: Sequence[str], now: Instant
    ) -> None:
        pass

    def group_finished(self, tx: Tx, group: Group, now: Instant) -> None:
        pass

    def direct_ended(self, tx: Tx, ended: Direct, now: Instant) -> None:
        pass

    def schedule_skipped(
        self, tx: Tx, office_id: str, schedule: Mapping[str, Json], occurrence: Mapping[str, Json], now: Instant
    ) -> None:
        pass


def _read(tx: Tx) -> Listeners:
    return Listeners(webhooks.enabled(tx), webhooks.offices(tx), webhooks.secrets(tx), keys.has_admin(tx))


def _job_content(tx: Tx, job: Job, link: str | None = None) -> dict[str, Json]:
    """Returns job and run as `GET /api/jobs/{job_id}` shows them now, and the link that answers its signal."""
    attempt = 1 if job.retry_of is None else 1 + len(jobs.failures_before(tx, job.chain_id, job.job_id))
    run = runs.of_job(tx, job.job_id)
    content = {"job": json_form.job(job, attempt), "run": None if run is None else run.to_dict()}
    return content if link is None else {**content, "link": link}


def _numbered(message: _Message, seq: int) -> Delivery:
    delivery, body = message.delivery, message.content
    if not message.is_formatted:
        about = {"event": delivery.event, "delivery_id": delivery.delivery_id, "seq": seq}
        body = {**about, "timestamp": json_form.time(delivery.created_at), **message.content}
    return replace(delivery, seq=seq, body=column_codec.dumps(body))

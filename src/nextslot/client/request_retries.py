"""Decides whether and when the client repeats a request, and which error a failed answer becomes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from nextslot.errors import NextslotError

from . import problems
from .requests import Lost, Reply, Request

if TYPE_CHECKING:
    from .transports import Transport

T = TypeVar("T")

# The pause before the first repetition; each one after it is twice as long.
FIRST_PAUSE_SECONDS = 0.25
# A server that requires a longer pause counts as not available.
LONGEST_PAUSE_SECONDS = 30.0
DEFAULT_RETRIES = 4
# These retries take three minutes in total.
PATIENT_RETRIES = 12


@dataclass(frozen=True, slots=True)
class RequestRetries:
    """How often the client repeats a request that is safe to repeat; `url` is for error messages."""

    url: str
    retries: int = DEFAULT_RETRIES

    def patient(self) -> "RequestRetries":
        """Returns a policy for long waits after a first answer, with retries that outlast a restart of the server."""
        return replace(self, retries=max(self.retries, PATIENT_RETRIES))

    def pause(self, failures: int, reply: Reply | Lost, request: Request) -> float | None:
        """Returns the pause before the next repetition; None if the request must not be repeated again."""
        # The server carried out nothing of a request that it refused with 429.
        is_refused = isinstance(reply, Reply) and reply.status == 429
        if not (request.is_repeatable or is_refused) or failures > self.retries:
            return None
        usual: float = min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS)
        if isinstance(reply, Lost):
            return usual
        asked = reply.headers.get("retry-after", "")
        if reply.status not in (429, 503) or not asked.isdecimal() or int(asked) > LONGEST_PAUSE_SECONDS:
            return None
        return max(usual, float(asked))

    def unknown(self, reply: Reply | Lost, request: Request) -> NextslotError:
        """Makes the error for a request that may have arrived at one of its attempts, but got no answer at the last."""
        refused = self.refusal(reply)
        if request.method == "GET" or not (isinstance(reply, Lost) or reply.status == 503):
            return refused
        why = reply.reason if isinstance(reply, Lost) else str(refused)
        return problems.OutcomeUnknown(self.url, why, request.path, request.headers.get("Idempotency-Key"))

    def refusal(self, reply: Reply | Lost) -> NextslotError:
        return (
            problems.NoAnswer(self.url, reply.reason)
            if isinstance(reply, Lost)
            else problems.error_of(reply.status, reply.json())
        )


async def asked(transport: "Transport", retries: RequestRetries, request: Request, read: Callable[[Reply], T]) -> T:
    """Sends a request, repeats it where this is safe, and returns the answer as `read` converts it."""
    failures, may_have_arrived = 0, False
    while True:
        reply = await transport.send(request)
        if isinstance(reply, Reply) and reply.status < 400:
            if (note := reply.headers.get("x-note")) is not None and transport.on_note is not None:
                transport.on_note(note)
            return read(reply)
        failures += 1
        may_have_arrived |= isinstance(reply, Lost) and reply.may_have_arrived
        pause = retries.pause(failures, reply, request)
        if pause is None:
            raise retries.unknown(reply, request) if may_have_arrived else retries.refusal(reply)
        await transport.sleep(pause)

"""Converts the API's errors into exceptions: the classes of `nextslot.errors`, found by `code`."""

from collections.abc import Iterator, Mapping
from typing import Any

from nextslot import errors
from nextslot.errors import DependencyCycle, Invalid, NextslotError, Problem, SlotBusy, TooManyJobs, Unavailable


class Rejected(NextslotError):
    """An error for which this library has no class; `code` and `status` identify it."""

    def __init__(self, code: str, detail: str, data: Mapping[str, object]) -> None:
        self.code = code
        self._data = data
        super().__init__(detail)

    def data(self) -> Mapping[str, object]:
        return self._data


class NoAnswer(Unavailable):
    """No server answers at the address, or the connection broke, at the last allowed attempt."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(self.sentence("give its address"))

    def sentence(self, address: str) -> str:
        """Returns the problem and its remedy; `address` says how to set another address."""
        if "certificate verify failed" in self.reason:
            return f"{self.url} is not trusted ({self.reason}); name the authority's PEM file in NEXTSLOT_CA"
        return f"no server answers at {self.url} ({self.reason}); start one with `nextslot serve`, or {address}"


class OutcomeUnknown(NoAnswer):
    """The connection broke after a changing request may have arrived, so the server may have carried it out."""

    def __init__(self, url: str, reason: str, path: str, idempotency_key: str | None) -> None:
        super().__init__(url, reason)
        self.path = path
        self.idempotency_key = idempotency_key
        self.args = (f"{self.problem}; {self._remedy()}",)

    @property
    def problem(self) -> str:
        return f"{self.url} may have carried the request out, but its answer was lost ({self.reason})"

    def _remedy(self) -> str:
        if self.idempotency_key is None:
            return "check whether it did before you send the request again"
        return f"send it again with idempotency_key={self.idempotency_key!r}, which makes nothing twice"


_STANDARD = frozenset({"type", "title", "status", "detail", "code"})


def error_of(status: int, body: Any) -> NextslotError:
    """Makes the exception for a problem document, or for another answer, such as a proxy's page."""
    problem: Mapping[str, Any] = body if isinstance(body, dict) and "code" in body else {}
    code = str(problem.get("code", f"http_{status}"))
    detail = str(
        problem.get("detail") or f"the server answered {status}, and did not say why; is it a nextslot server?"
    )
    kind = _KINDS.get(code)
    if kind is None:
        data = {name: value for name, value in problem.items() if name not in _STANDARD}
        error: NextslotError = Rejected(code, detail, data)
    else:
        error = _made(kind, detail, problem)
    error.status = status
    return error


def _made(kind: type[NextslotError], detail: str, problem: Mapping[str, Any]) -> NextslotError:
    """Makes an error with the server's sentence. Bypasses the constructor, which would write its own sentence."""
    error = kind.__new__(kind, detail)
    if isinstance(error, Invalid):
        said = [Problem(str(one.get("field", "")), str(one.get("problem", ""))) for one in problem.get("errors") or ()]
        error.problems = said or [Problem("", detail)]
    if isinstance(error, DependencyCycle):
        error.cycle = [str(one) for one in problem.get("cycle") or ()]
    if isinstance(error, TooManyJobs):
        error.most = int(problem.get("most") or 0)
    if isinstance(error, SlotBusy):
        error.ahead = int(problem.get("ahead") or 0)
    return error


def _kinds(root: type[NextslotError]) -> Iterator[type[NextslotError]]:
    """Yields a class before its subclasses, because the first class with a code is used for it."""
    yield root
    for below in root.__subclasses__():
        yield from _kinds(below)


_KINDS: dict[str, type[NextslotError]] = {}
for _kind in _kinds(NextslotError):
    if _kind.__module__ == errors.__name__ and _kind is not NextslotError:
        _KINDS.setdefault(_kind.code, _kind)

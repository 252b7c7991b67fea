"""Verbs that are written once: a descriptor that gives a call to the blocking client and a coroutine to the other.

A verb of a subject makes a plan. Which way the plan is carried out is the subject's type parameter, so type checkers
know both: `Client.submit(…)` is a `Job`, `AsyncClient.submit(…)` is awaited for one.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from .operations import (
    Give,
    Operation,
    Reply,
    Request,
    RequestRetries,
    StreamOperation,
    asked,
)
from .values import ClientValue, Page

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A", bound=ClientValue)


class Blocking:
    """Carries plans out and blocks meanwhile."""

    def run(self, plan: Operation[T]) -> T:
        raise NotImplementedError

    def stream(self, plan: StreamOperation[T]) -> Generator[T, None, None]:
        raise NotImplementedError


class Awaited:
    """Carries plans out on the running event loop."""

    async def run(self, plan: Operation[T]) -> T:
        raise NotImplementedError

    def stream(self, plan: StreamOperation[T]) -> AsyncGenerator[T, None]:
        raise NotImplementedError


Way = TypeVar("Way", bound=Blocking | Awaited)


class Subject(Generic[Way]):
    """Verbs about one thing."""

    def __init__(self, way: Way, retries_policy: RequestRetries) -> None:
        self._way = way
        self._retries_policy = retries_policy

    def _ask(self, request: Request, read: Callable[[Any], T]) -> Operation[T]:
        return asked(self._retries_policy, request, lambda reply: read(reply.json()))

    def _do(self, request: Request) -> Operation[None]:
        return asked(self._retries_policy, request, lambda reply: None)

    def _page(self, request: Request, kind: type[A]) -> Operation[Page[A]]:
        return asked(self._retries_policy, request, functools.partial(page_of, kind))


def page_of(kind: type[A], reply: Reply) -> Page[A]:
    json = reply.json()
    return Page(tuple(kind.read(one) for one in json["items"]), json.get("next_cursor"), json)


def each(page: Callable[[str | None], Operation[Page[T]]]) -> StreamOperation[T]:
    """The items of all pages."""
    cursor: str | None = None
    while True:
        found = yield from page(cursor)
        for item in found.items:
            yield Give(item)
        cursor = found.next_cursor
        if cursor is None:
            return


class verb(Generic[P, T]):  # noqa: N801 - read as a keyword
    def __init__(self, make: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        self.make = make
        functools.update_wrapper(self, make)  # type: ignore[arg-type]

    @overload
    def __get__(self, subject: None, owner: type) -> Self: ...
    @overload
    def __get__(self, subject: Subject[Blocking], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, subject: Subject[Awaited], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, subject: Any, owner: type) -> Any:
        return self if subject is None else _bound(self.make, subject, subject._way.run)


class stream_verb(Generic[P, T]):  # noqa: N801
    def __init__(self, make: Callable[Concatenate[Any, P], StreamOperation[T]]) -> None:
        self.make = make
        functools.update_wrapper(self, make)  # type: ignore[arg-type]

    @overload
    def __get__(self, subject: None, owner: type) -> Self: ...
    @overload
    def __get__(self, subject: Subject[Blocking], owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, subject: Subject[Awaited], owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, subject: Any, owner: type) -> Any:
        return self if subject is None else _bound(self.make, subject, subject._way.stream)


def _bound(make: Callable[..., Any], subject: Any, carry_out: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def call(*arguments: Any, **options: Any) -> Any:
        return carry_out(make(subject, *arguments, **options))

    return call

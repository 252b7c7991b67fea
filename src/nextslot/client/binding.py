"""Methods that are written once for both clients: a coroutine that `Client` runs to its end, and `AsyncClient` awaits.

A coroutine of a verb waits only for its transport. The methods of a blocking transport never suspend, so the first step
of such a coroutine is also its last. The type parameter of a subject is its transport, so type checkers know both
clients: `Client.submit(…)` returns a `Job`, `AsyncClient.submit(…)` returns an awaitable of one.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from .request_retries import RequestRetries, asked
from .requests import Reply, Request, get, paged, texts
from .values import ClientValue, Page

if TYPE_CHECKING:
    from .transports import AsyncTransport, BlockingTransport, Transport

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=ClientValue)
Way = TypeVar("Way", bound="Transport")

Operation = Coroutine[Any, Any, T]
StreamOperation = AsyncGenerator[T, None]

# The largest page that a server returns.
WHOLE_PAGE = 500


class verb(Generic[P, T]):  # noqa: N801 - read as a keyword
    """Makes a method from a coroutine function: `Client` calls the method, `AsyncClient` awaits it."""

    def __init__(self, make: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        self.make = make
        functools.update_wrapper(self, make)  # type: ignore[arg-type]

    @overload
    def __get__(self, subject: None, owner: type) -> Self: ...
    @overload
    def __get__(self, subject: "Subject[BlockingTransport]", owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, subject: "Subject[AsyncTransport]", owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, subject: Any, owner: type) -> Any:
        return self if subject is None else _bound(self.make, subject, finish)


class stream_verb(Generic[P, T]):  # noqa: N801
    """Makes a method from an async generator function: in `Client`, the method is a plain generator."""

    def __init__(self, make: Callable[Concatenate[Any, P], StreamOperation[T]]) -> None:
        self.make = make
        functools.update_wrapper(self, make)  # type: ignore[arg-type]

    @overload
    def __get__(self, subject: None, owner: type) -> Self: ...
    @overload
    def __get__(self, subject: "Subject[BlockingTransport]", owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, subject: "Subject[AsyncTransport]", owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, subject: Any, owner: type) -> Any:
        return self if subject is None else _bound(self.make, subject, finish_each)


def _bound(make: Callable[..., Any], subject: Any, finish: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def call(*arguments: Any, **options: Any) -> Any:
        operation = make(subject, *arguments, **options)
        return finish(operation) if subject._transport.is_blocking else operation

    return call


def finish(operation: Operation[T]) -> T:
    """Runs a coroutine that never suspends, and returns its result."""
    try:
        operation.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    operation.close()
    raise RuntimeError("a blocking transport has suspended")


def finish_each(operation: StreamOperation[T]) -> Generator[T, None, None]:
    """Yields the items of an async generator that never suspends."""
    try:
        while True:
            try:
                item = finish(operation.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        finish(operation.aclose())


class Subject(Generic[Way]):
    """The verbs of one subject."""

    def __init__(self, transport: Way, retries: RequestRetries) -> None:
        self._transport = transport
        self._retries = retries

    def _ask(self, request: Request, read: Callable[[Any], T]) -> Operation[T]:
        return asked(self._transport, self._retries, request, lambda reply: read(reply.json()))

    def _put(self, path: str, office_id: str | None, body: Any, read: Callable[[Any], T]) -> Operation[tuple[T, bool]]:
        """Puts a thing by its name, and returns whether it is new. Repeating the request has no further effect."""
        query = texts({"office_id": office_id})
        request = Request(method="PUT", path=path, query=query, body=body, is_repeatable=True)
        return asked(self._transport, self._retries, request, lambda reply: (read(reply.json()), reply.status == 201))

    def _do(self, request: Request) -> Operation[None]:
        return asked(self._transport, self._retries, request, lambda reply: None)

    def _items(self, request: Request, kind: type[V]) -> Operation[tuple[V, ...]]:
        return self._ask(request, lambda json: tuple(kind.read(one) for one in json["items"]))

    def _page(self, kind: type[V], path: str, limit: int, cursor: str | None, **query: Any) -> Operation[Page[V]]:
        request = get(path, {**query, **paged(limit, cursor)})
        return asked(self._transport, self._retries, request, functools.partial(_page_of, kind))

    async def _each(self, kind: type[V], path: str, **query: Any) -> StreamOperation[V]:
        """Yields the items of all pages."""
        cursor: str | None = None
        while True:
            found = await self._page(kind, path, WHOLE_PAGE, cursor, **query)
            for item in found.items:
                yield item
            cursor = found.next_cursor
            if cursor is None:
                return


class Collection(Subject[Way], Generic[Way, V]):
    """The verbs of one kind of things, which one path lists."""

    PATH: ClassVar[str]
    KIND: ClassVar[Any]

    @stream_verb
    def list(self) -> StreamOperation[V]:
        return self._each(self.KIND, self.PATH)

    @verb
    def page(self, limit: int = 50, cursor: str | None = None) -> Operation[Page[V]]:
        return self._page(self.KIND, self.PATH, limit, cursor)


def _page_of(kind: type[V], reply: Reply) -> Page[V]:
    json = reply.json()
    return Page(tuple(kind.read(one) for one in json["items"]), json.get("next_cursor"), json)

"""Refuses requests for foreign hosts, from foreign pages, or with NUL in their address, before they reach a route.

A page in a browser can send requests to a scheduler on localhost, by its name or by one that the page's owner lets
point there (DNS rebinding). So the Host must be ours, and an unsafe request that names an Origin must name ours.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from .auth import SAFE
from .problems import problem

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class Admission:
    """Which hosts and origins the guard accepts."""

    # Host names besides the local ones and plain addresses; "*" is any.
    allowed_hosts: tuple[str, ...] = ()
    # Origins besides our own whose pages may send requests.
    allowed_origins: tuple[str, ...] = ()
    is_loopback: bool = True

    def serves(self, host: str) -> bool:
        name = host_name(host)
        if name in LOCAL_NAMES or name in self.allowed_hosts or "*" in self.allowed_hosts:
            return True
        # No DNS name can be rebound to a plain address, and a server that other machines can reach needs a key anyway.
        return not self.is_loopback and _is_address(name)

    def takes_from(self, origin: str, host: str) -> bool:
        return origin.partition("://")[2].lower() == host.lower() or origin in self.allowed_origins


class Guard:
    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await problem(*refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        if "\0" in scope["path"] or b"%00" in scope["query_string"] or b"\0" in scope["query_string"]:
            return 422, "invalid", "the address has a NUL character; remove it"
        # If several headers have the name, the first one counts; only one Host is allowed.
        headers = dict(reversed(scope["headers"]))
        host = _text(headers, b"host")
        if len(headers) < len(scope["headers"]) and sum(name == b"host" for name, _ in scope["headers"]) > 1:
            return 400, "malformed", "the request has several Host headers; send one"
        if not self._admission.serves(host):
            detail = f"this server does not answer to the name {host!r}; [server] allowed_hosts can add it"
            return 403, "forbidden_host", detail
        if scope["method"] in SAFE:
            return None
        origin = _text(headers, b"origin") if b"origin" in headers else None
        if origin is not None and not self._admission.takes_from(origin, host):
            detail = f"pages of {origin!r} may not change anything here; [server] allowed_origins can add it"
            return 403, "forbidden_origin", detail
        if origin is None and headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            return (
                403,
                "forbidden_origin",
                "a page of another site sent the request, but only pages of this server may change anything",
            )
        return _body_refusal(headers)


def _body_refusal(headers: Mapping[bytes, bytes]) -> tuple[int, str, str] | None:
    encoding = _text(headers, b"content-encoding", "identity").lower()
    if encoding != "identity":
        return (
            415,
            "unsupported_media_type",
            f"the body has the content-encoding {encoding!r}, which is not accepted; send it uncompressed",
        )
    has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
    kind = _text(headers, b"content-type").partition(";")[0].strip().lower()
    if has_body and kind != "application/json":
        return 415, "unsupported_media_type", f"the body has the content-type {kind!r}; send JSON as application/json"
    return None


def _text(headers: Mapping[bytes, bytes], name: bytes, default: str = "") -> str:
    found = headers.get(name)
    return default if found is None else found.decode("latin-1")


def host_name(host: str) -> str:
    """Returns a Host header without its port."""
    name, _, port = host.lower().rpartition(":")
    return name if port.isdecimal() and name else host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True

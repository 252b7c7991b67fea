"""Decides which URLs a webhook may have, and to which addresses it may connect. No name is resolved here.

`webhook_delivery` checks a URL when it is given, `engine/webhooks/http_sender.py` each address before it connects.
"""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from urllib.parse import SplitResult, urlsplit

from .bounds import must_be

MAX_URL = 2000

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_BRACKETED = re.compile(r"\[[^\[\]]*:[^\[\]]*\](:[0-9]+)?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")

# The addresses at which clouds give out the credentials of a machine; other such addresses are link-local.
_METADATA = {
    ipaddress.ip_address(text) for text in ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")
}
_NEVER = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "169.254.0.0/16",  # link-local, and with it most clouds' metadata
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "198.18.0.0/15",  # benchmarks
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "::/128",  # unspecified
        "100::/64", "100:0:0:1::/64",  # discard, and the dummy prefix
        "2001:db8::/32", "3fff::/20",  # documentation
        "5f00::/16",  # segment routing inside a site: releases of Python differ about whether it is public
        "fe80::/10", "fec0::/10",  # link-local, site-local
        "ff00::/8",  # multicast
    )
]  # fmt: skip
_PRIVATE = [
    ipaddress.ip_network(text)
    for text in (
        "127.0.0.0/8", "::1/128",  # loopback
        "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16",
        "100.64.0.0/10",  # shared by a provider's customers
        "fc00::/7",
        "64:ff9b:1::/48",  # translation inside a site
        "2002::/16",  # 6to4, given up long ago: releases of Python differ about whether it is public
    )
]  # fmt: skip
# Addresses that lead to the IPv4 address in their last 32 bits: translation and compatibility.
_EMBEDDING = [ipaddress.IPv6Network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96")]


def url_problem(url: object, allow_private: bool) -> str | None:
    """Says what is wrong with a URL, or None; its host name is not resolved."""
    if not isinstance(url, str):
        return must_be(url, "a URL such as https://example.org/hook")
    if found := re.search(r"[^!-~]|[\\<>\"]", url):
        return f"contains {found[0]!r}; a URL must be plain ASCII: write such characters as %XX, host names as xn--…"
    if len(url) > MAX_URL:
        return f"has {len(url):,} characters; a URL must have at most {MAX_URL:,}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not a URL that can be read; it must be like https://example.org/hook"
    if parts.scheme not in ("http", "https"):
        return f"has the scheme {parts.scheme!r}; a URL must begin with http:// or https://"
    if "@" in parts.netloc:
        return "has a user or password; remove it: the signature says who sends"
    if port == 0 or parts.netloc.endswith(":"):
        return "has no valid port; a port must be from 1 to 65535"
    if parts.fragment or url.endswith("#"):
        return "has a fragment (#…); remove it"
    return _host_problem(parts, allow_private)


def _host_problem(parts: SplitResult, allow_private: bool) -> str | None:
    host = parts.hostname or ""
    if "[" in parts.netloc:
        return _literal_problem(host if _BRACKETED.fullmatch(parts.netloc) else parts.netloc, allow_private)
    name = host.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        # Some programs read `2130706433`, `0x7f.1` and `0177.0.0.1` as 127.0.0.1: accept only the usual spelling.
        return _literal_problem(name, allow_private)
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return f"has the host {host!r}, which is not a host name; check its spelling"
    if labels[-1] == "localhost" and not allow_private:
        return "is a loopback address, which `[webhooks] allow_private` does not allow here"
    return None


def _literal_problem(text: str, allow_private: bool) -> str | None:
    if "%" in text:
        return "has an address with a zone (%…), which differs from machine to machine; remove the zone"
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return f"has {text!r}, which is not an address; IPv4 is four numbers from 0 to 255 without leading zeros"
    return address_problem(address, allow_private)


def address_problem(address: Address, allow_private: bool) -> str | None:
    """Says why a webhook must not connect to this address, or None."""
    meanings = list(_meanings(address))
    if any(one in _METADATA or _is_in(one, _NEVER) for one in meanings):
        return f"{address} is link-local, multicast, reserved or a cloud's metadata: never allowed"
    private = [one for one in meanings if _is_in(one, _PRIVATE)]
    if any(not one.is_global for one in meanings if one not in private):
        return f"{address} is not a public address: never allowed"
    if private and not allow_private:
        return f"{address} is loopback or private: not allowed here (`[webhooks] allow_private`)"
    return None


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


def _meanings(address: Address) -> Iterator[Address]:
    """Yields the address itself, or the IPv4 addresses that it may lead to."""
    if not isinstance(address, ipaddress.IPv6Address):
        yield address
        return
    if address.scope_id is not None:
        address = ipaddress.IPv6Address(int(address))
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
        return
    yield address
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if address != ipaddress.IPv6Address("::1") and any(address in network for network in _EMBEDDING):
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def network(text: object) -> Network | None:
    """Reads an address or a network such as `10.0.0.0/8`; None if it is neither."""
    try:
        return ipaddress.ip_network(text) if isinstance(text, str) else None
    except ValueError:
        return None


def is_among(host: str, networks: Sequence[str]) -> bool:
    """Returns whether an address is in one of the networks."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return _is_in(address, [one for text in networks if (one := network(text)) is not None])


def is_loopback(host: str) -> bool:
    """Returns whether a server that listens on this host can be reached from its own machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def origin(url: str) -> str:
    """Returns scheme, host and port. All URLs of one origin are slow or dead together."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = (parts.hostname or "").removesuffix(".")
    return f"{parts.scheme}://[{host}]:{port}" if ":" in host else f"{parts.scheme}://{host}:{port}"

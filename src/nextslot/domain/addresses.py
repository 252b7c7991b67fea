"""Where webhooks may go: which URLs are taken, and which addresses are connected to. Pure; no name is resolved here.

`policy.webhooks` asks when a URL is given, `engine.endpoints` again for the address that it is about to connect to.
"""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from urllib.parse import SplitResult, urlsplit

MAX_URL = 2000

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_BRACKETED = re.compile(r"\[[^\[\]]*:[^\[\]]*\](:[0-9]+)?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")

# Clouds answer with credentials of the machine here. Most are link-local; these are not.
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
        "100::/64",  # discard
        "2001:db8::/32", "3fff::/20",  # documentation
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
    """What is wrong with a URL as far as can be told without resolving its name."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or re.search(r"[\s\\<>\"]", url):
        return "a URL in plain ASCII (write other characters as %XX, and such names as xn--…)"
    if len(url) > MAX_URL:
        return f"a URL has at most {MAX_URL:,} characters"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "not a URL that can be read"
    if parts.scheme not in ("http", "https"):
        return "a URL that begins with http:// or https://"
    if "@" in parts.netloc:
        return "a URL must not carry a user or password: the signature says who sends"
    if port == 0 or parts.netloc.endswith(":"):
        return "a port is from 1 to 65535"
    if parts.fragment or url.endswith("#"):
        return "a URL to send to has no fragment (#…)"
    return _host_problem(parts, allow_private)


def _host_problem(parts: SplitResult, allow_private: bool) -> str | None:
    host = parts.hostname or ""
    if "[" in parts.netloc:
        return _literal_problem(host if _BRACKETED.fullmatch(parts.netloc) else parts.netloc, allow_private)
    name = host.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        # `2130706433`, `0x7f.1` and `0177.0.0.1` mean 127.0.0.1 to some: only the usual spelling is taken.
        return _literal_problem(name, allow_private)
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return f"{host!r} is not a name of a host"
    if labels[-1] == "localhost" and not allow_private:
        return "loopback addresses are not allowed here (`[webhooks] allow_private`)"
    return None


def _literal_problem(text: str, allow_private: bool) -> str | None:
    if "%" in text:
        return "an address with a zone (%…) means something else on every machine"
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return f"{text!r} is not an address: IPv4 is four numbers from 0 to 255 without leading zeros"
    return address_problem(address, allow_private)


def address_problem(address: Address, allow_private: bool) -> str | None:
    """Why this address must not be connected to; None if it may."""
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
    """The address, and the IPv4 addresses that it may stand for."""
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


def origin(url: str) -> str:
    """Who is at the other end: scheme, host and port. What is dead or slow is so for all URLs of one origin."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = (parts.hostname or "").removesuffix(".")
    return f"{parts.scheme}://[{host}]:{port}" if ":" in host else f"{parts.scheme}://{host}:{port}"

"""Where webhooks may go: which URLs are taken and which addresses are connected to."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextslot.domain.addresses import (
    MAX_URL,
    address_problem,
    origin,
    url_problem,
)

NEVER = [
    *("0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "224.0.0.1", "239.255.255.255", "240.0.0.1"),
    *("255.255.255.255", "192.0.2.1", "198.51.100.7", "203.0.113.9", "198.18.0.1", "192.0.0.192", "192.88.99.1"),
    *("168.63.129.16", "100.100.100.200", "::", "fe80::1", "febf::1", "fec0::1", "ff02::1", "2001:db8::1", "100::1"),
    *("fd00:ec2::254", "3fff::1", "100:0:0:1::1"),
    # The same in other clothes: mapped, compatible, translated, tunnelled.
    *("::ffff:169.254.169.254", "::169.254.169.254", "64:ff9b::169.254.169.254", "::ffff:0:169.254.169.254"),
    *("2002:a9fe:a9fe::", "64:ff9b:1::a9fe:a9fe", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "::ffff:0.0.0.0"),
]
PRIVATE = [
    *("127.0.0.1", "127.255.0.9", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "::1"),
    *("fc00::1", "fd12:3456::1", "::ffff:127.0.0.1", "::ffff:10.1.2.3", "64:ff9b::10.0.0.1", "2002:0a00:0001::"),
    *("::10.0.0.1", "::127.0.0.1"),
]
PUBLIC = [
    "93.184.216.34",
    "8.8.8.8",
    "172.32.0.1",
    "100.128.0.1",
    "2606:2800:220:1::1",
    "64:ff9b::8.8.8.8",
    "::8.8.8.8",
]


@pytest.mark.parametrize("text", NEVER)
def test_link_local_metadata_multicast_and_reserved_addresses_are_never_allowed(text: str) -> None:
    address = ipaddress.ip_address(text)

    assert "never allowed" in (address_problem(address, allow_private=True) or "")
    assert "never allowed" in (address_problem(address, allow_private=False) or "")


@pytest.mark.parametrize("text", PRIVATE)
def test_loopback_and_private_addresses_are_allowed_only_where_it_is_said(text: str) -> None:
    address = ipaddress.ip_address(text)

    assert address_problem(address, allow_private=True) is None
    assert "allow_private" in (address_problem(address, allow_private=False) or "")


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_allowed(text: str) -> None:
    assert address_problem(ipaddress.ip_address(text), allow_private=False) is None


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_the_same_in_ipv6_clothes(address: ipaddress.IPv4Address) -> None:
    mapped = ipaddress.IPv6Address(f"::ffff:{address}")
    translated = ipaddress.IPv6Address(f"64:ff9b::{address}")

    for allow_private in (True, False):
        is_refused = address_problem(address, allow_private) is not None
        assert (address_problem(mapped, allow_private) is not None) == is_refused
        assert (address_problem(translated, allow_private) is not None) == is_refused


@given(st.ip_addresses())
def test_what_is_not_public_is_refused_where_private_is_not_allowed(address: ipaddress.IPv4Address) -> None:
    if not address.is_global:
        assert address_problem(address, allow_private=False) is not None


@pytest.mark.parametrize(
    "url",
    [
        *(None, 5, "", "example.com", "/hook", "ftp://example.com/", "file:///etc/passwd", "javascript:alert(1)"),
        *("http://", "http:///hook", "http://:80/", "http://example.com:0/", "http://example.com:99999/"),
        *("http://example.com:x/", "http://example.com:/", "http://user@example.com/", "http://user:pw@example.com/"),
        *("http://@example.com/", "http://example.com/#top", "http://example.com/ hook", "http://exa mple.com/"),
        *(
            "http://example.com\\@evil.example/",
            "http://exämple.com/",
            "http://example.com/\n",
            "http://example.com/\0",
        ),
        *("http://-bad-.example/", "http://a..b/", "http://" + "a" * 64 + ".example/", "http://[::1", "http://[::1]x/"),
        *("http://example.com/" + "x" * 2000, "http://[fe80::1%25eth0]/", "http://[::1%lo]/", "http://[127.0.0.1]/"),
        # IPv4 in spellings that some libraries read as 127.0.0.1 and others do not.
        *("http://2130706433/", "http://0x7f000001/", "http://0x7f.1/", "http://0177.0.0.1/", "http://127.1/"),
        *("http://127.0.0.01/", "http://1.2.3.4.5/", "http://256.1.1.1/", "http://0x/"),
    ],
)
def test_what_is_no_clear_web_address_is_refused(url: object) -> None:
    assert url_problem(url, allow_private=True) is not None


@pytest.mark.parametrize(
    "url",
    [
        *("http://169.254.169.254/", "http://[::ffff:169.254.169.254]/", "http://0.0.0.0:8000/", "http://[fe80::1]/"),
        *("http://169.254.169.254./", "https://224.0.0.1/", "http://[64:ff9b::a9fe:a9fe]/"),
    ],
)
def test_a_forbidden_address_is_refused_when_it_is_given(url: str) -> None:
    assert "never allowed" in (url_problem(url, allow_private=True) or "")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://127.0.0.1/",
            "http://localhost/",
            "http://localhost.:8000/",
            "http://LOCALHOST/",
            "http://a.localhost/",
        ),
        *("http://[::1]:9000/x", "http://10.1.2.3/", "http://192.168.0.1/hook", "http://127.0.0.1./"),
    ],
)
def test_a_private_address_is_refused_when_it_is_given_unless_it_is_allowed(url: str) -> None:
    assert url_problem(url, allow_private=True) is None
    assert "allow_private" in (url_problem(url, allow_private=False) or "")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://example.com",
            "https://example.com/hook?a=1&b=%20",
            "http://example.com:8080/x",
            "HTTPS://example.com/",
        ),
        *("http://xn--exmple-cua.com/", "http://hooks_1.example.com/", "http://93.184.216.34/", "http://3com.example/"),
        *("http://[2606:2800:220:1::1]:443/", "http://a/", "http://example.com./", "https://example.com/a@b"),
    ],
)
def test_a_usual_web_address_is_taken(url: str) -> None:
    assert url_problem(url, allow_private=False) is None


@given(st.text())
def test_any_text_is_judged_without_breaking(url: str) -> None:
    for prefix in ("", "http://", "http://[", "http://1."):
        url_problem(prefix + url, allow_private=False)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.com/a", "http://example.com:80"),
        ("https://EXAMPLE.com./b?c", "https://example.com:443"),
        ("http://example.com:8080/", "http://example.com:8080"),
        ("http://[::1]:9/x", "http://[::1]:9"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, expected: str) -> None:
    assert origin(url) == expected


def test_a_url_and_a_name_may_be_as_long_as_they_may_be() -> None:
    url = "http://example.com/"
    name = ".".join(["a" * 63] * 3 + ["b" * 61])

    assert url_problem(url.ljust(MAX_URL, "x"), allow_private=False) is None
    assert "at most" in (url_problem(url.ljust(MAX_URL + 1, "x"), allow_private=False) or "")
    assert len(name) == 253
    assert url_problem(f"http://{name}/", allow_private=False) is None
    assert "not a host name" in (url_problem(f"http://{name}b/", allow_private=False) or "")


def test_an_address_means_the_same_in_any_zone() -> None:
    address = ipaddress.ip_address("fd00:ec2::254%eth0")

    assert "never allowed" in (address_problem(address, allow_private=True) or "")

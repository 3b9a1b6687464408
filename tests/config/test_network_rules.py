"""Which destinations the list of a sandbox allows."""

from __future__ import annotations

import pytest

from agentrl.config.network_rules import NetworkRules, split_port

RULES = NetworkRules(["example.org", "api.example.net:8443", "*.Example.com", "192.0.2.1:9000", "[::1]:7000"])


@pytest.mark.parametrize(
    ("destination", "why"),
    [
        ("example.org:443", ""),
        ("EXAMPLE.org.:80", ""),
        ("example.org:22", "is allowed at 80 and 443 only"),
        ("api.example.net:8443", ""),
        ("api.example.net:443", "is allowed at 8443 only"),
        ("deep.below.example.com:443", ""),
        ("example.com:443", "is not listed"),
        ("badexample.com:443", "is not listed"),
        ("example.org.evil.net:443", "is not listed"),
        ("sub.example.org:443", "is not listed"),
        ("192.0.2.1:9000", ""),
        ("[::ffff:192.0.2.1]:9000", ""),
        ("192.0.2.2:9000", "is not listed"),
        ("[0:0::1]:7000", ""),
        ("0x7f.1:80", "is not listed"),
        ("2130706433:80", "is not listed"),
        ("[2606:4700::1111%.example.com]:443", "is not listed"),
    ],
)
def test_only_listed_destinations_are_allowed(destination: str, why: str) -> None:
    host, port = split_port(destination)
    assert port is not None
    assert RULES.refused(host, port) == why


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fd00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "64:ff9b::a00:1",
        "fec0::1",
    ],
)
def test_listed_name_does_not_lead_to_an_address_that_is_not_public(address: str) -> None:
    assert RULES.refused_address("example.org", address, 443, of_this_host=False).startswith("leads to ")


def test_public_address_of_a_listed_name_is_allowed_unless_it_is_of_this_host() -> None:
    for address in ("1.1.1.1", "2606:4700::1111"):
        assert RULES.refused_address("example.org", address, 443, of_this_host=False) == ""
        assert "an address of this host" in RULES.refused_address("example.org", address, 443, of_this_host=True)


def test_address_that_is_listed_itself_is_allowed_for_its_names_also() -> None:
    rules = NetworkRules(["wiki.local", "10.0.0.5", "localhost:8080"])
    assert rules.refused_address("wiki.local", "10.0.0.5", 443, of_this_host=False) == ""
    assert rules.refused_address("wiki.local", "10.0.0.6", 443, of_this_host=False)
    assert rules.refused_address("localhost", "127.0.0.1", 8080, of_this_host=True) == ""
    assert rules.refused_address("wiki.local", "127.0.0.1", 8080, of_this_host=True)
    assert rules.refused_address("localhost", "127.0.0.1", 80, of_this_host=True)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "*",
        "*.",
        "a b",
        "http://example.org",
        "example.org:0",
        "example.org:70000",
        "example.org:x",
        "ex*mple.org",
        "*.*.org",
        "127.1",
        "[::1",
        "-a.org",
        "example.org/path",
    ],
)
def test_entry_that_is_no_host_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is no host|is no address|has no valid port"):
        NetworkRules([entry])

"""Decides which network destinations the list of a sandbox allows. Pure, and light: the network proxy imports it.

Entries are `example.org`, `example.org:8443`, `*.example.org` for every name below it, or an address.

Invariants:
- An entry without a port allows the ports 80 and 443.
- A name that resolves to an address of this host or of a network that is not public needs that address in the list too.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

WEB_PORTS = (80, 443)
_NAME = re.compile(r"(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_MOST_NAME_CHARS = 253
_LOCAL_NAME = "localhost"
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""Addresses of IPv6 that a gateway translates to IPv4."""
_SPECIAL = tuple(
    map(ipaddress.ip_network, ("192.88.99.0/24", "64:ff9b:1::/48", "100::/8", "2001::/23", "3fff::/20", "5f00::/16"))
)
"""Special ranges that some versions of Python do not know. Some of them embed private addresses."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Destination:
    """One entry of the list."""

    host: str
    """A name, `*.` and a name, or an address in its usual form."""
    ports: tuple[int, ...]

    @staticmethod
    def parsed(text: str) -> Destination:
        """The destination of an entry. Raises ValueError."""
        host, port = split_port(text.strip())
        address = address_of(host)
        if address is None and (not _NAME.fullmatch(host) or len(host) > _MOST_NAME_CHARS or host == "*"):
            raise ValueError(f"{text!r} is no host; allowed are example.org, example.org:8443 and *.example.org")
        if address is None and host.rpartition(".")[2].isdigit():
            raise ValueError(f"{text!r} is no address: write its usual form, such as 192.0.2.1")
        return Destination(host if address is None else str(address), WEB_PORTS if port is None else (port,))

    def allows(self, host: str, port: int) -> bool:
        if port not in self.ports:
            return False
        return host.endswith(self.host[1:]) if self.host.startswith("*.") else host == self.host


class NetworkRules:
    """The list of one tool server."""

    def __init__(self, entries: Iterable[str]) -> None:
        """`entries` is the list of the sandbox. Raises ValueError."""
        self._allowed = tuple(Destination.parsed(entry) for entry in entries)

    def refused(self, host: str, port: int) -> str:
        """Why this destination is refused; empty if its name is allowed. `host` is in the form that `split_port`
        returns."""
        if "%" in host:
            # The zone of an address is free text, so it could end like a listed name.
            return "is not listed"
        address = address_of(host)
        host = host if address is None else str(address)
        if any(entry.allows(host, port) for entry in self._allowed):
            return ""
        if ports := sorted(
            {port for entry in self._allowed if entry.allows(host, entry.ports[0]) for port in entry.ports}
        ):
            return f"is allowed at {' and '.join(map(str, ports))} only"
        return "is not listed"

    def refused_address(self, host: str, address: str, port: int, *, of_this_host: bool) -> str:
        """Why a connection to this address of an allowed host is refused; empty if it is allowed."""
        found = address_of(address)
        if found is None:
            return "has no address"
        if any(entry.allows(str(found), port) for entry in self._allowed):
            return ""
        if found.is_loopback and any(entry.allows(_LOCAL_NAME, port) for entry in self._allowed):
            return "" if host == _LOCAL_NAME else f"leads to {found}, an address of this host"
        if of_this_host or found.is_loopback or found.is_unspecified:
            return f"leads to {found}, an address of this host"
        if not is_public(found):
            return f"leads to {found}, which is not a public address"
        return ""


def split_port(text: str) -> tuple[str, int | None]:
    """Host and port of `HOST:PORT`, in lower case and without a final dot. Raises ValueError."""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is no host")
        port = rest[1:]
    elif text.count(":") > 1:
        host, rest, port = text, "", ""
    else:
        host, rest, port = text.partition(":")
    if rest and not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16):
        raise ValueError(f"{text!r} has no valid port; write HOST or HOST:PORT, without http://")
    return host.lower().removesuffix("."), int(port) if rest else None


def address_of(text: str) -> Address | None:
    try:
        return plain_address(ipaddress.ip_address(text))
    except ValueError:
        return None


def plain_address(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1] or address


def is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address.is_site_local:
        return False
    if any(address in network for network in _SPECIAL):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved

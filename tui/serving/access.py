"""Decides which requests may see the console; pure.

Invariants:
- A request without the token of the printed address, or the cookie that replaces it, gets no information.
- A page of another origin, or a host name that was made to lead here (DNS rebinding), gets nothing.
- Secrets are compared in constant time.
"""

from __future__ import annotations

import enum
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl.errors import UsageError

TOKEN = "token"
NEEDS_ADDRESS = "Open the address that `agentrl tui --serve` has printed, with its token."
WRONG_TOKEN = "This token does not belong to this console."
WRONG_NAME = "This host name does not belong to this console."
WRONG_ORIGIN = "This console does not answer pages of another origin."


class Decision(enum.Enum):
    REFUSED = enum.auto()
    REDIRECTED = enum.auto()
    """The token is right: a cookie replaces it, and it leaves the address."""
    ALLOWED = enum.auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    decision: Decision
    why: str = ""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie_name(self) -> str:
        """The name has the port, because cookies do not distinguish ports and a host may serve two consoles."""
        return f"agentrl-console-{self.port}"

    @property
    def names(self) -> frozenset[str]:
        return frozenset(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    def judge(
        self, *, host: str, origin: str | None, token: str | None, cookies: Mapping[str, str], is_socket: bool
    ) -> Verdict:
        if host.lower() not in self.names:
            return Verdict(Decision.REFUSED, WRONG_NAME)
        # A browser names the origin of the page that opens a socket; a socket without one is refused.
        if (is_socket or origin is not None) and origin != f"http://{host.lower()}":
            return Verdict(Decision.REFUSED, WRONG_ORIGIN)
        if token is not None and not is_socket:
            right = secrets.compare_digest(token.encode(), self.token.encode())
            return Verdict(Decision.REDIRECTED) if right else Verdict(Decision.REFUSED, WRONG_TOKEN)
        shown = cookies.get(self.cookie_name, "")
        if secrets.compare_digest(shown.encode(errors="replace"), self.cookie.encode()):
            return Verdict(Decision.ALLOWED)
        return Verdict(Decision.REFUSED, NEEDS_ADDRESS)


def address(listen: str) -> tuple[str, int]:
    """The host and port to listen on, on this host only. Raises UsageError."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{listen!r} is not an address.", hint="Write 127.0.0.1:8766; port 0 takes any free port.")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise UsageError(
            f"The console is served on this host only, and {host} is not on it.",
            hint="From elsewhere: ssh -L PORT:127.0.0.1:PORT HOST",
        )
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise UsageError(f"Browsers do not treat {host} as this host.", hint="127.0.0.1, ::1 or localhost")
    return ("127.0.0.1" if host == "localhost" else host), int(port)

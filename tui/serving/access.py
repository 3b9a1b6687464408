"""Who may come in: pure.

Invariants: nothing is told to whom does not show the token, as part of the address that was printed, or the cookie that
it is changed for; a page of somebody else, or a name that was made to lead here, opens nothing; secrets
are compared in a time that tells nothing of them.
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
WRONG_TOKEN = "This token is not that of this console."
WRONG_NAME = "This console is not asked under a name of its own."
WRONG_ORIGIN = "This console does not answer to pages of others."


class Decision(enum.Enum):
    REFUSED = enum.auto()
    CHANGED = enum.auto()
    """The token is right: it becomes a cookie, and leaves the address."""
    IN = enum.auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    way: Decision
    why: str = ""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie_name(self) -> str:
        """Cookies know no ports, and there may be two consoles."""
        return f"agentrl-console-{self.port}"

    @property
    def names(self) -> frozenset[str]:
        return frozenset(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    def judge(
        self, *, host: str, origin: str | None, token: str | None, cookies: Mapping[str, str], is_socket: bool
    ) -> Verdict:
        if host.lower() not in self.names:
            return Verdict(Decision.REFUSED, WRONG_NAME)
        # A browser names the page that opens a socket; without it, nobody knows whose it is.
        if (is_socket or origin is not None) and origin != f"http://{host.lower()}":
            return Verdict(Decision.REFUSED, WRONG_ORIGIN)
        if token is not None and not is_socket:
            right = secrets.compare_digest(token.encode(), self.token.encode())
            return Verdict(Decision.CHANGED) if right else Verdict(Decision.REFUSED, WRONG_TOKEN)
        shown = cookies.get(self.cookie_name, "")
        if secrets.compare_digest(shown.encode(errors="replace"), self.cookie.encode()):
            return Verdict(Decision.IN)
        return Verdict(Decision.REFUSED, NEEDS_ADDRESS)


def address(listen: str) -> tuple[str, int]:
    """Where to listen, on this host only. UsageError."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{listen!r} is no address.", hint="Such as 127.0.0.1:8766; port 0 is any that is free.")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise UsageError(
            f"The console is served on this host only, and {host} is beyond it.",
            hint="From elsewhere: ssh -L PORT:127.0.0.1:PORT HOST",
        )
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise UsageError(
            f"{host} is not an address that browsers know as this host.", hint="127.0.0.1, ::1 or localhost"
        )
    return ("127.0.0.1" if host == "localhost" else host), int(port)

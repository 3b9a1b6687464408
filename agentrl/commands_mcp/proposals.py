"""Effects that an assistant was shown, until one is executed or expires. Pure: the caller gives the time.

Invariants: a proposal is taken once; its request id is its own, so a repeated execution is the same request to the
coordinator; an expired proposal is never executed; at most `MOST` are kept, the newest ones.
"""

from __future__ import annotations

import dataclasses

from agentrl.errors import UnknownNameError
from agentrl.protocol.effects import Consent
from agentrl.protocol.message_base import Args

KEPT_S = 600.0
MOST = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    command: str
    args: Args
    consent: Consent
    expires_at: float


class Proposals:
    def __init__(self) -> None:
        self._kept: dict[str, Proposal] = {}

    def add(self, id: str, command: str, args: Args, consent: Consent, now: float) -> None:
        self._kept[id] = Proposal(command, args, consent, now + KEPT_S)
        for oldest in list(self._kept)[:-MOST]:
            del self._kept[oldest]

    def take(self, id: str, now: float) -> Proposal:
        """Raises UnknownNameError if there is no such proposal, or no longer."""
        found = self._kept.pop(id, None)
        if found is None:
            raise UnknownNameError(f"There is no proposal {id[:60]!r}, or it was executed.", hint="Propose it again.")
        if now >= found.expires_at:
            raise UnknownNameError(f"The proposal {id!r} has expired.", hint="Propose the command again.")
        return found

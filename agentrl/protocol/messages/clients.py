"""Between a client and the coordinator, in both directions."""

from __future__ import annotations

import msgspec

from agentrl.protocol.effects import Consent
from agentrl.protocol.message_base import Message


class ClientHello(Message, tag="client_hello", frozen=True):
    major: int
    minor: int
    run: str = ""
    """Empty: any run."""
    who: str = ""
    """user@host, for the audit. Over tcp the name of the key is used instead."""
    version: str = ""


class Request(Message, tag="request", frozen=True):
    """A command or query. The caller chooses the id; a repeated id is answered and not executed again."""

    id: str
    name: str
    args: msgspec.Raw = msgspec.Raw(b"\x80")
    deadline_ct: float | None = None
    """The coordinator refuses a request that arrives after this time on its clock."""
    dry_run: bool = False
    """Only preview the effect: the answer is a `Consent`."""
    consent: Consent | None = None
    """From a preview. The command is refused if its effect is now worse than the one that the caller accepted."""


class Reply(Message, tag="reply", frozen=True):
    id: str
    result: msgspec.Raw = msgspec.Raw(b"\xc0")


class ErrorReply(Message, tag="error", frozen=True):
    id: str
    code: int
    message: str
    hint: str = ""
    consent: Consent | None = None
    """The effect that the command would have now, if it was refused because of the consent that came with it."""


class SnapshotRow(Message, tag="row", frozen=True):
    """One row of a snapshot, in answer to the query `snapshot`."""

    id: str
    key: str
    value: msgspec.Raw


class SnapshotEnd(Message, tag="snapshot_end", frozen=True):
    """Closes a snapshot: apply the feed from `seq + 1` on."""

    id: str
    epoch: str
    seq: int

"""What is asked of the data plane, and what is answered. The steward serves all of it.

Invariants: a row is a document of the store with its own names, less what is only for machines (tokens, manifests);
its times are UTC; a list goes on behind the last row that was seen, so pages neither repeat nor skip one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentrl.protocol.knob import KnobValue
from agentrl.protocol.message_base import Args


class ListRows(Args, frozen=True):
    """-> Page"""

    filter: str = ""
    """In the language of `agentrl.filters`."""
    sort: str = ""
    """Fields with commas, `-` before one for descending; empty: by id."""
    after: str = ""
    """What the page before gave, or the id of a row."""
    limit: int = 100


class Page(msgspec.Struct, frozen=True, omit_defaults=True):
    rows: tuple[dict[str, Any], ...] = ()
    after: str = ""
    """Ask for what is behind it; empty at the end."""


class ShowOne(Args, frozen=True):
    """-> Story"""

    id: str


class Story(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing with everything that belongs to it."""

    document: dict[str, Any]
    records: tuple[dict[str, Any], ...] = ()
    """Rows as in lists."""
    more_records: int = 0
    """How many are not told here; the list has them."""
    related: dict[str, Any] = {}
    """What else a person asks next, by name."""


class ShowRecord(Args, frozen=True):
    """-> RecordStory"""

    id: str
    after_turn: int = -1
    limit: int = 100
    """Turns."""
    chars: int = 4000
    """Of each text; what is longer keeps both ends. 0 leaves all of it."""


class RecordStory(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record, turn by turn."""

    record: dict[str, Any]
    task: dict[str, Any]
    ending: dict[str, Any]
    """The one reason why it ended: `outcome`, `class`, `error`, and a `sentence`."""
    turns: tuple[dict[str, Any], ...] = ()
    """With the model call and the tool calls of each."""
    under_way: tuple[dict[str, Any], ...] = ()
    """Calls that belong to no turn yet."""
    attempts: tuple[dict[str, Any], ...] = ()
    """All attempts at the same seat, this one among them."""
    training: dict[str, Any] = {}
    """Advantage, trained tokens and versions, and the steps that trained it."""
    more_turns: bool = False


class RecordTokens(Args, frozen=True):
    """-> TokenPart"""

    id: str
    start: int = 0
    """Tokens before it are on the caller's side already."""
    limit: int = 5000


class TokenStretch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Neighbouring tokens of one segment of a token tree, all of them or those that a part has."""

    segment: int
    """Its place, depth first."""
    parent: int
    """The segment before it; -1 at the root."""
    kind: str
    """`model` generated it, or it came from the `environment`."""
    call: str
    turn: int = -1
    """The turn of that call; -1 while it belongs to none."""
    trains: bool = False
    offset: int = 0
    """Tokens of the segment that stand before these."""
    ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    """One for each id, empty where a character goes on; none at all where nobody knows the tokenizer."""
    log_probs: tuple[float, ...] = ()
    """Of generated tokens."""
    versions: tuple[tuple[int, int], ...] = ()
    """Runs of (version, count)."""


class TokenPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a record's tokens, every token once, in the order of the tree."""

    stretches: tuple[TokenStretch, ...] = ()
    next: int | None = None
    """Where the next part starts; none behind the last one."""
    total: int = 0
    note: str = ""
    """What is not told, and why."""


class ExportRecords(Args, frozen=True):
    """-> ExportPart"""

    filter: str = ""
    after: str = ""
    """The id of the last record that is complete on the caller's side."""
    offset: int = 0
    """Bytes of the line behind it that the caller has already."""
    limit: int = 0
    """At most so many records in the answer; 0 for as many as fit."""


class ExportPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stretch of JSON lines, each a whole trajectory. A line that is too long for one answer goes on in the next."""

    data: bytes = b""
    after: str = ""
    offset: int = 0
    records: int = 0
    """Lines that end in this part."""
    end: bool = False


class ToolErrors(Args, frozen=True):
    """-> list[ToolErrorGroup], the most frequent first."""

    filter: str = ""
    """Fields are those of tool calls; a call that could not be read has the status `malformed`."""
    limit: int = 50


class ToolErrorSample(msgspec.Struct, frozen=True, omit_defaults=True):
    record: str
    call: str
    """The tool call, or the turn in which it could not be read."""
    text: str = ""


VARIES = "…"
"""Stands in a group for what differs among its errors."""


class ToolErrorGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Errors that say the same, but for numbers and names."""

    server: str
    tool: str
    status: str
    error_class: str
    message: str
    count: int
    first_at: float = 0.0
    last_at: float = 0.0
    samples: tuple[ToolErrorSample, ...] = ()


class Accounting(Args, frozen=True):
    """-> AccountReport"""


class AccountProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    what: str
    count: int
    examples: tuple[str, ...] = ()


class AccountReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sums over everything that there is, and what does not agree."""

    tasks: dict[str, dict[str, int]] = {}
    """By purpose and status."""
    records: dict[str, dict[str, int]] = {}
    """By purpose and status."""
    seats: dict[str, int] = {}
    steps: dict[str, int] = {}
    trained_records: int = 0
    outcomes: dict[str, int] = {}
    """Ended attempts by class."""
    problems: tuple[AccountProblem, ...] = ()
    balanced: bool = True


class Staleness(Args, frozen=True):
    """-> StalenessReport"""


class BoundPreview(msgspec.Struct, frozen=True, omit_defaults=True):
    """What another bound would void now."""

    bound: int
    voids_ready: int = 0
    voids_under_way: int = 0


class DurationShare(msgspec.Struct, frozen=True):
    """A quarter of the records that recent steps trained or could have, by how long they took."""

    from_s: float
    to_s: float
    records: int
    dropped: int
    """Those that were too old when their group could have been trained."""


class StalenessReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far what is ready and under way lies behind the newest version, all of it counted at one time."""

    bound: int
    version: int | None = None
    """The newest."""
    ready: dict[int, int] = {}
    """Records by age, in publications, of their oldest trained token."""
    under_way: dict[int, int] = {}
    """The same of those that have not ended."""
    previews: tuple[BoundPreview, ...] = ()
    dropped: tuple[DurationShare, ...] = ()
    """The shortest records first."""
    counted_at: float = 0.0


class RequeueTasks(Args, frozen=True):
    """Sample tasks again, in their next round."""

    ids: tuple[str, ...]
    note: str = ""


class AddTasks(Args, frozen=True):
    """Rows of a file become tasks of an environment, behind what is queued."""

    environment: str
    file: str
    """On the steward's host."""


class PinCheckpoint(Args, frozen=True):
    """Keep it, whatever retention says."""

    id: str


class UnpinCheckpoint(Args, frozen=True):
    id: str


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a command did that a unit served."""

    lines: tuple[str, ...] = ()
    result: dict[str, KnobValue] = {}

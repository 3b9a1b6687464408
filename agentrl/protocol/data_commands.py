"""Arguments and results of the questions about data that the steward answers. What changes data is in `data_changes`.

Invariants: a row has the field names of its document, without what is only for programs (tokens, manifests); its times
are UTC; a page begins after the last row of the page before, so pages neither repeat nor skip rows.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from agentrl.protocol.knob import KnobValue
from agentrl.protocol.message_base import Args
from agentrl.protocol.words import PROGRAM, option


class ListRows(Args, frozen=True):
    """-> Page"""

    filter: str = ""
    """A query in the language of `agentrl.filters`."""
    sort: str = ""
    """Fields separated by commas; `-` before a field means descending. Empty sorts by id."""
    after: str = ""
    """The `after` of the previous page, or the id of a row."""
    limit: Annotated[int, option("--limit", "-n", metavar="N")] = 100


class ListCalls(ListRows, frozen=True):
    """-> Page, of tool calls."""

    error: str = ""
    """Only the calls that `tool_errors` counts under this message with the same filter. If there is no such message,
    those counted under messages that contain it."""


class Page(msgspec.Struct, frozen=True, omit_defaults=True):
    rows: tuple[dict[str, Any], ...] = ()
    after: str = ""
    """Pass it on to get the next page; empty after the last one."""


class ShowOne(Args, frozen=True):
    """-> Story"""

    id: str


class Story(msgspec.Struct, frozen=True, omit_defaults=True):
    """One document with everything that belongs to it."""

    document: dict[str, Any]
    records: tuple[dict[str, Any], ...] = ()
    """Rows as in lists."""
    more_records: int = 0
    """How many records are left out here; `records list` has them."""
    related: dict[str, Any] = {}
    """Related facts, by name."""


class ShowRecord(Args, frozen=True):
    """-> RecordStory"""

    id: str
    after_turn: int = -1
    limit: Annotated[int, option("--limit", "-n", metavar="N")] = 100
    """Turns."""
    chars: int = 4000
    """Characters of each text; a longer text keeps both ends. 0 means no limit."""
    marks: Annotated[bool, PROGRAM] = False
    """Texts keep the marks of their images (`agentrl.tokens.image_marks`) instead of words for them."""


class RecordStory(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record, turn by turn."""

    record: dict[str, Any]
    task: dict[str, Any]
    ending: dict[str, Any]
    """The one reason why it ended: `outcome`, `class`, `error`, and a `sentence`."""
    turns: tuple[dict[str, Any], ...] = ()
    """Each with its model call and tool calls."""
    under_way: tuple[dict[str, Any], ...] = ()
    """Calls without a turn yet."""
    attempts: tuple[dict[str, Any], ...] = ()
    """All attempts at the same seat, including this one."""
    training: dict[str, Any] = {}
    """Advantage, trained tokens and versions, and the steps that trained it."""
    more_turns: bool = False
    trace: str = ""
    """The id of its trace in log lines and spans."""


class ReadImage(Args, frozen=True):
    """-> ImagePart"""

    typed: ClassVar[bool] = False
    id: str
    """The SHA-256 of its bytes, as marks and exports name it."""
    offset: int = 0
    """How many of its bytes the caller has already."""


class ImagePart(msgspec.Struct, frozen=True, omit_defaults=True):
    data: bytes = b""
    length: int = 0
    """Bytes of the whole image."""
    format: str = ""
    """Such as `png`; empty if no process decoded it yet."""


class ShowCall(Args, frozen=True):
    """-> CallStory"""

    id: str
    chars: int = 4000
    """Characters of each text; a longer text keeps both ends. 0 means no limit."""


class CallStory(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call, and what it belongs to."""

    call: dict[str, Any]
    """Its row, with arguments and result."""
    record: dict[str, Any]
    turn: dict[str, Any]
    """The turn that made it, without its tool calls."""
    session: tuple[dict[str, Any], ...] = ()
    """All calls of its session, in their order, including this one."""
    replays: tuple[dict[str, Any], ...] = ()
    """The results of its replays, the oldest first."""


class RecordTokens(Args, frozen=True):
    """-> TokenPart"""

    typed: ClassVar[bool] = False
    id: str
    start: int = 0
    """The first token to send."""
    limit: int = 5000


class TokenStretch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Adjacent tokens of one segment of a token tree: the whole segment, or what fits into one part."""

    segment: int
    """Its place, depth first."""
    parent: int
    """The segment that it continues; -1 for the root."""
    kind: str
    """`model` generated it, or it came from the `environment`."""
    call: str
    turn: int = -1
    """The turn of that call; -1 if it has none yet."""
    trains: bool = False
    offset: int = 0
    """How many tokens of the segment come before these."""
    ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    """One per id, empty if the character continues; no texts at all if the tokenizer is unknown."""
    log_probs: tuple[float, ...] = ()
    """The log-probs of the generated tokens."""
    versions: tuple[tuple[int, int], ...] = ()
    """Runs of (version, count)."""


class TokenPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the tokens of a record: each token once, in the order of the tree."""

    stretches: tuple[TokenStretch, ...] = ()
    next: int | None = None
    """Where the next part starts; None after the last one."""
    total: int = 0
    note: str = ""
    """What is missing, and why."""


class ExportRecords(Args, frozen=True):
    """-> ExportPart"""

    typed: ClassVar[bool] = False
    filter: str = ""
    form: Literal["trajectories", "dataset"] = "trajectories"
    """`dataset`: rows that a dataset and demonstrations are read from."""
    after: str = ""
    """The id of the last record that the caller has completely."""
    offset: int = 0
    """How many bytes of the next line the caller has already."""
    limit: int = 0
    """The most records in the answer; 0 means as many as fit."""


class ExportPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the JSON lines, one per trajectory. A line that is too long for one answer continues in the next."""

    data: bytes = b""
    after: str = ""
    offset: int = 0
    records: int = 0
    """Lines that end in this part."""
    end: bool = False


class ToolErrors(Args, frozen=True):
    """-> list[ToolErrorGroup], the most frequent first."""

    filter: str = ""
    """A query on fields of tool calls. A call that could not be parsed has the status `malformed`."""
    limit: Annotated[int, option("--limit", "-n", metavar="N")] = 50


class ToolErrorSample(msgspec.Struct, frozen=True, omit_defaults=True):
    record: str
    call: str
    """The tool call, or the model call in which it could not be parsed."""
    text: str = ""
    turn: int | None = None


MALFORMED = "malformed"
"""The status of text that could not be parsed as a tool call, so no tool was called."""
VARIES = "…"
"""Replaces the parts in which the messages of a group differ."""


class ToolErrorGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Errors with the same message apart from numbers and names."""

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
    """Sums over all documents, and what does not agree."""

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
    """How many records another bound would make too old now."""

    bound: int
    voids_ready: int = 0
    voids_under_way: int = 0


class DurationShare(msgspec.Struct, frozen=True):
    """A quarter of the records that recent steps trained or could have trained, by duration."""

    from_s: float
    to_s: float
    records: int
    dropped: int
    """Records that were too old when their group could have been trained."""


class StalenessReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ages of records that are ready or under way, all counted at one time."""

    bound: int
    version: int | None = None
    """The newest version."""
    ready: dict[int, int] = {}
    """Records by age, in publications, of their oldest trained token."""
    under_way: dict[int, int] = {}
    """The same for records that have not ended."""
    previews: tuple[BoundPreview, ...] = ()
    dropped: tuple[DurationShare, ...] = ()
    """The shortest records first."""
    counted_at: float = 0.0


class PastPreview(Args, frozen=True):
    """-> PastChange"""

    typed: ClassVar[bool] = False
    name: str
    """A knob that looks back."""
    value: KnobValue
    now: dict[str, KnobValue] = msgspec.field(default_factory=dict)
    """The present values of the knobs that look back."""


class PastChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """What another value of a knob would have changed over the last batches."""

    sentence: str
    counts: dict[str, float] = {}


class ListReviews(Args, frozen=True):
    """-> Page, of records without a verdict that a person should look at: suspicious ones, then random ones."""

    filter: str = ""
    limit: Annotated[int, option("--limit", "-n", metavar="N")] = 20

"""Arguments and results of the commands that the steward serves.

Invariants: a row has the field names of its document, without what is only for programs (tokens, manifests); its times
are UTC; a page begins after the last row of the page before, so pages neither repeat nor skip rows.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.message_base import Args


class ListRows(Args, frozen=True):
    """-> Page"""

    filter: str = ""
    """A query in the language of `agentrl.filters`."""
    sort: str = ""
    """Fields separated by commas; `-` before a field means descending. Empty sorts by id."""
    after: str = ""
    """The `after` of the previous page, or the id of a row."""
    limit: int = 100


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
    limit: int = 100
    """Turns."""
    chars: int = 4000
    """Characters of each text; a longer text keeps both ends. 0 means no limit."""


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
    """What its replays came to, the oldest first."""


class RecordTokens(Args, frozen=True):
    """-> TokenPart"""

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
    """Of the generated tokens."""
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
    limit: int = 50


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


class RequeueTasks(Args, frozen=True):
    """Sample tasks again, in their next round."""

    ids: tuple[str, ...]
    note: str = ""


class ChooseRecords(Args, frozen=True):
    """The records that an operator changes, by name or by a filter."""

    ids: tuple[str, ...] = ()
    filter: str = ""
    """Of the list of records, if no record is named."""
    made_by: str = ""
    """A sampler or an engine: only the records that it worked on."""
    note: str = ""
    since_canary: bool = False
    """Only what this engine generated since it passed its last canary."""

    def problem(self) -> str:
        if self.since_canary and not self.made_by:
            return "The canary is that of an engine: name it by --made-by."
        if self.ids and (self.filter or self.made_by):
            return "Name records, or find them by --filter and --made-by."
        return "" if self.ids or self.filter or self.made_by else "Name records, or find them by --filter or --made-by."


class ExcludeRecords(ChooseRecords, frozen=True):
    """Keep scored records out of training. The baselines of their groups are computed again without them."""


class RequeueRecords(ChooseRecords, frozen=True):
    """Attempt the seats of records again that failed, or were abandoned, excluded or cancelled. If their group is
    closed, the whole task is sampled again."""


class CancelRecords(ChooseRecords, frozen=True):
    """End records that have not ended. Their episodes stop, and their seats stay empty."""


class RescoreRecords(ChooseRecords, frozen=True):
    """Score scored records again. The baselines of their groups are computed again."""

    scorer: str = ""
    """Another scorer than those of the tasks."""


class ReviewRecords(ChooseRecords, frozen=True):
    """Note a verdict on records."""

    verdict: Literal["good", "bad", "golden", "none"] = "none"
    """`none` removes it."""


class ListReviews(Args, frozen=True):
    """-> Page, of records without a verdict that a person should look at: suspicious ones, then random ones."""

    filter: str = ""
    limit: int = 20


class RollBack(Args, frozen=True):
    """Go on from an earlier checkpoint, in a new lineage."""

    to: str
    """The id of a checkpoint, a version, or `best`: the checkpoint with the best evaluation."""
    note: str = ""
    """Why; an execution needs it."""
    keep_knobs: bool = False
    """Leave scientific knobs as they are. Otherwise they get the values from before the checkpoint."""


class RollbackPreview(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of the steward to a preview of `rollback`."""

    effect: Effect
    settings: dict[str, KnobValue] = {}
    """The values of scientific knobs before the checkpoint."""
    trained_at: float = 0.0
    """When the last step before the checkpoint was committed, for the scientific knobs that it does not contain."""


class AddTasks(Args, frozen=True):
    """Rows of a file become tasks of an environment, at the end of its queue."""

    environment: str
    file: str
    """A path on the host of the steward."""


MOST_REPLAYS = 1000


class ReplayCalls(Args, frozen=True):
    """Execute recorded tool calls again, in sessions of their own, and compare the results."""

    calls: tuple[str, ...] = ()
    """Ids of at most MOST_REPLAYS tool calls. Exactly one of `calls` and `filter` is given."""
    filter: str = ""
    """A query on failed tool calls, the newest first."""
    most: int = 50
    """With `filter`: at most this many calls."""
    times: int = 1
    server: str = ""
    """Another server to run them on; empty means the one on which each ran."""
    edit: dict[str, Any] | None = None
    """Other arguments, for a single call."""
    allow: tuple[str, ...] = ()
    """Tools with effects outside of the session that may run, as `server.tool`."""
    despite_differences: bool = False
    """Run the call even if an earlier call, which rebuilds the session, returns something else than then."""
    then: str = ""
    """`fork`: fork the records of calls that work now."""
    note: str = ""

    def problem(self) -> str:
        if bool(self.calls) == bool(self.filter):
            return "replay needs either ids of tool calls or a filter."
        if self.edit is not None and len(set(self.calls)) != 1:
            return "Edited arguments belong to one call; name exactly one."
        if self.then not in ("", "fork"):
            return "What follows a replay can only be `fork`."
        if not 1 <= self.times <= 20:
            return "A call is replayed 1 to 20 times."
        if len(self.calls) > MOST_REPLAYS:
            return f"One command replays at most {MOST_REPLAYS} calls, and {len(self.calls)} are named."
        return "" if 1 <= self.most <= MOST_REPLAYS else f"One command replays 1 to {MOST_REPLAYS} calls."


class ForkRecords(Args, frozen=True):
    """Go on from a place in a record, or from the results of replays."""

    target: str = ""
    """A record, RECORD/TURN to sample that turn again, or a tool call to go on behind it."""
    replays: tuple[str, ...] = ()
    """Instead: ids of replays, whose results take the places of the recorded ones, or of operations."""
    result: str | None = None
    """What the tool call shall have returned."""
    message: str | None = None
    """What the user shall have said at the beginning."""
    times: int = 0
    """How many records go on from there; 0: as the rules say."""
    note: str = ""

    def problem(self) -> str:
        if bool(self.target) == bool(self.replays):
            return "Name a record or one of its tool calls, or replays."
        if self.result is not None and self.message is not None:
            return "Edit either the result of a call or the message."
        if self.replays and (self.result is not None or self.message is not None):
            return "A fork from a replay has the result of the replay."
        if self.message is not None and not self.message.strip():
            return "The message of a fork must not be empty."
        return "" if 0 <= self.times <= 64 else "A record is forked 1 to 64 times."


class KeepReplays(Args, frozen=True):
    """Note that replays were looked at, and that their records stay as they are."""

    ids: tuple[str, ...]
    note: str = ""


class ExcludeReplayed(Args, frozen=True):
    """Exclude the records of replays from training."""

    ids: tuple[str, ...]
    note: str = ""


class StopReplays(Args, frozen=True):
    """Hold queued replays back. Those that run end."""

    ids: tuple[str, ...]
    """Ids of replays, or beginnings of the ids of operations."""

    def problem(self) -> str:
        return _problem_of_names(self.ids)


class ContinueReplays(Args, frozen=True):
    """Let replays go on that were held back."""

    ids: tuple[str, ...]

    def problem(self) -> str:
        return _problem_of_names(self.ids)


def _problem_of_names(ids: tuple[str, ...]) -> str:
    return "" if ids and all(ids) else "Name replays or operations; `agentrl replays list` shows them."


class PinCheckpoint(Args, frozen=True):
    """Exempt a checkpoint from retention."""

    id: str


class UnpinCheckpoint(Args, frozen=True):
    id: str


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a command that a unit executed."""

    lines: tuple[str, ...] = ()
    result: dict[str, KnobValue] = {}
    under_way: str = ""
    """How far it is, if it is not done; the coordinator sends the command again until it is."""

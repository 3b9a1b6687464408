"""Arguments and results of the commands that change the data of a run: tasks, records, replays, forks, checkpoints.

Invariant: a command names what it changes, by ids or by a query; what is impossible is refused with a sentence before
anything is changed.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.message_base import Args
from agentrl.protocol.words import Since, argument, option, rest


class RequeueTasks(Args, frozen=True):
    """Sample tasks again, in their next round."""

    ids: Annotated[tuple[str, ...], rest("TASK")]
    note: Annotated[str, option("--note", metavar="TEXT")] = ""

    def title(self, seen: object = None) -> str:
        return f"sample {_few(self.ids, 'tasks')} again"


class ChooseRecords(Args, frozen=True):
    """The records that an operator changes, by name or by a filter."""

    time_of_since: ClassVar[str] = "finished_at"  # what `--since TIME` is compared with
    ids: Annotated[tuple[str, ...], rest("RECORD")] = ()
    filter: Annotated[str, option("--filter", metavar="QUERY")] = ""
    """A query on the list of records, used if no record is named."""
    made_by: Annotated[str, option("--made-by", metavar="UNIT")] = ""
    """A sampler or an engine: only the records that it worked on."""
    note: Annotated[str, option("--note", metavar="TEXT")] = ""
    since_canary: Annotated[bool, option("--since", metavar="TIME", form=Since())] = False
    """Only records for which this engine generated text after it passed its last canary."""

    def problem(self) -> str:
        if self.since_canary and not self.made_by:
            return "The canary is that of an engine: name it by --made-by."
        if self.ids and (self.filter or self.made_by):
            return "Name records, or find them by --filter and --made-by."
        return "" if self.ids or self.filter or self.made_by else "Name records, or find them by --filter or --made-by."

    @property
    def chosen(self) -> str:
        """The records in words."""
        if self.ids:
            return _few(self.ids, "records")
        if self.since_canary:
            return f"what {self.made_by} generated since its last canary"
        of = f" of {self.made_by}" if self.made_by else ""
        return f"the records{of}{f' with {self.filter}' if self.filter else ''}"


class ExcludeRecords(ChooseRecords, frozen=True):
    """Keep scored records out of training. The baselines of their groups are computed again without them."""

    def title(self, seen: object = None) -> str:
        return f"exclude {self.chosen} from training"


class RequeueRecords(ChooseRecords, frozen=True):
    """Attempt the seats of records again that failed, or were abandoned, excluded or cancelled. If their group is
    closed, the whole task is sampled again."""

    def title(self, seen: object = None) -> str:
        return f"attempt the seat of {self.chosen} again"


class CancelRecords(ChooseRecords, frozen=True):
    """End records that have not ended. Their episodes stop, and their seats stay empty."""

    time_of_since: ClassVar[str] = "started_at"

    def title(self, seen: object = None) -> str:
        return f"cancel {self.chosen}"


class RescoreRecords(ChooseRecords, frozen=True):
    """Score scored records again. The baselines of their groups are computed again."""

    scorer: Annotated[str, option("--scorer", metavar="NAME")] = ""
    """Another scorer than those of the tasks."""

    def title(self, seen: object = None) -> str:
        return f"score {self.chosen} again"


Verdict = Literal["good", "bad", "golden", "none"]


class ReviewRecords(ChooseRecords, frozen=True):
    """Note a verdict on records."""

    verdict: Annotated[Verdict, argument("VERDICT", required=True)] = "none"
    """`none` removes it."""

    def title(self, seen: object = None) -> str:
        return f"note the verdict {self.verdict} on {self.chosen}"


class RollBack(Args, frozen=True):
    """Go on from an earlier checkpoint, in a new lineage."""

    to: Annotated[str, option("--to", metavar="CHECKPOINT|VERSION|best")]
    """The id of a checkpoint, a version, or `best`: the checkpoint with the best evaluation."""
    note: Annotated[str, option("--reason", metavar="TEXT", required=True)] = ""
    """Why; required for an execution, not for a preview."""
    keep_knobs: bool = False
    """Leave scientific knobs as they are. Otherwise they get the values from before the checkpoint."""

    def title(self, seen: object = None) -> str:
        return f"go back to {self.to}"


class RollbackPreview(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of the steward to a preview of `rollback`."""

    effect: Effect
    settings: dict[str, KnobValue] = {}
    """The values of scientific knobs before the checkpoint."""
    trained_at: float = 0.0
    """When the last step before the checkpoint was committed. It decides the values of scientific knobs that the
    checkpoint does not contain."""


class AddTasks(Args, frozen=True):
    """Rows of a file become tasks of an environment, at the end of its queue."""

    environment: Annotated[str, option("--environment", "-e", metavar="NAME")]
    file: str
    """A path on the host of the steward."""

    def title(self, seen: object = None) -> str:
        return f"add tasks of {self.file} to {self.environment}"


MOST_REPLAYS = 1000


class ReplayCalls(Args, frozen=True):
    """Execute recorded tool calls again, in sessions of their own, and compare the results."""

    calls: Annotated[tuple[str, ...], rest("CALL")] = ()
    """Ids of at most MOST_REPLAYS tool calls. Exactly one of `calls` and `filter` is given."""
    filter: Annotated[str, option("--filter", metavar="QUERY")] = ""
    """A query on failed tool calls, the newest first."""
    most: Annotated[int, option("--most", metavar="N")] = 50
    """With `filter`: at most this many calls."""
    times: Annotated[int, option("--times", metavar="N")] = 1
    server: Annotated[str, option("--server", metavar="NAME")] = ""
    """Another server to run them on; empty means the one on which each ran."""
    edit: Annotated[dict[str, Any] | None, option("--edit", metavar="JSON")] = None
    """Other arguments, for a single call."""
    allow: Annotated[tuple[str, ...], option("--allow", metavar="SERVER.TOOL")] = ()
    """Tools with effects outside of the session that may run, as `server.tool`."""
    despite_differences: bool = False
    """Run the call even if an earlier call, which rebuilds the session, does not return its recorded result."""
    then: Annotated[str, option("--then", metavar="fork")] = ""
    """`fork`: fork the records of calls that work now."""
    note: Annotated[str, option("--note", metavar="TEXT")] = ""

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

    def title(self, seen: object = None) -> str:
        return f"replay {_few(self.calls, 'calls') if self.calls else f'failed calls with {self.filter}'}"


class ForkRecords(Args, frozen=True):
    """Go on from a place in a record, or from the results of replays."""

    target: Annotated[str, argument("RECORD[/TURN[.CALL]]")] = ""
    """A record, RECORD/TURN to sample that turn again, or a tool call to go on behind it."""
    replays: Annotated[tuple[str, ...], option("--replay", metavar="REPLAY")] = ()
    """Instead: ids of replays, whose results take the places of the recorded ones, or of operations."""
    result: Annotated[str | None, option("--edit-result", metavar="TEXT")] = None
    """The result that the fork gets for the tool call."""
    message: Annotated[str | None, option("--edit-message", metavar="TEXT")] = None
    """The user's first message in the fork."""
    times: Annotated[int, option("--times", metavar="N")] = 0
    """How many records go on from there; 0 leaves it to the rules."""
    note: Annotated[str, option("--note", metavar="TEXT")] = ""

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

    def title(self, seen: object = None) -> str:
        return f"fork {self.target or _few(self.replays, 'replays')}"


class KeepReplays(Args, frozen=True):
    """Note that replays were looked at, and that their records stay as they are."""

    ids: Annotated[tuple[str, ...], rest("REPLAY|OPERATION")]
    note: Annotated[str, option("--note", metavar="TEXT")] = ""

    def title(self, seen: object = None) -> str:
        return f"keep the records of {_few(self.ids, 'replays')}"


class ExcludeReplayed(Args, frozen=True):
    """Exclude the records of replays from training."""

    ids: Annotated[tuple[str, ...], rest("REPLAY|OPERATION")]
    note: Annotated[str, option("--note", metavar="TEXT")] = ""

    def title(self, seen: object = None) -> str:
        return f"exclude the records of {_few(self.ids, 'replays')} from training"


class StopReplays(Args, frozen=True):
    """Hold queued replays back. Those that run end."""

    ids: Annotated[tuple[str, ...], rest("REPLAY|OPERATION")]
    """Ids of replays, or beginnings of the ids of operations."""

    def problem(self) -> str:
        return _problem_of_names(self.ids)

    def title(self, seen: object = None) -> str:
        return "hold replays back"

    def undo(self, seen: object = None) -> Args | None:
        return ContinueReplays(self.ids)


class ContinueReplays(Args, frozen=True):
    """Let replays go on that were held back."""

    ids: Annotated[tuple[str, ...], rest("REPLAY|OPERATION")]

    def problem(self) -> str:
        return _problem_of_names(self.ids)

    def title(self, seen: object = None) -> str:
        return "let replays go on"


def _problem_of_names(ids: tuple[str, ...]) -> str:
    return "" if ids and all(ids) else "Name replays or operations; `agentrl replays list` shows them."


def _few(names: tuple[str, ...], what: str) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} {what}"


class PinCheckpoint(Args, frozen=True):
    """Exempt a checkpoint from retention."""

    id: Annotated[str, argument("CHECKPOINT")]

    def title(self, seen: object = None) -> str:
        return f"pin {self.id}"

    def undo(self, seen: object = None) -> Args | None:
        return UnpinCheckpoint(self.id)


class UnpinCheckpoint(Args, frozen=True):
    id: Annotated[str, argument("CHECKPOINT")]

    def title(self, seen: object = None) -> str:
        return f"unpin {self.id}"


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a command that a unit executed."""

    lines: tuple[str, ...] = ()
    result: dict[str, KnobValue] = {}
    under_way: str = ""
    """The progress of a command that is not done; the coordinator sends the command again until it is done."""

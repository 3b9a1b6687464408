"""Arguments and results of the commands that the coordinator serves itself.

Invariants: a mutation changes only desired state, so executing it twice is harmless; a command on a living process
names the unit together with the incarnation that the caller saw.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from agentrl.protocol.effects import Effect, Tier
from agentrl.protocol.knob import KnobValue, plain_value
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages import Permission
from agentrl.protocol.rows import (
    AlertRow,
    AuditRow,
    BottleneckRow,
    GroupRow,
    HostRow,
    IncidentRow,
    KnobRow,
    OperationRow,
    RunRow,
    UnitRow,
)
from agentrl.protocol.words import (
    PART,
    PROGRAM,
    Count,
    Duration,
    Incarnation,
    SettingValue,
    argument,
    option,
    rest,
)

# ---- queries ----


class Status(Args, frozen=True):
    """-> StatusReport"""


class Snapshot(Args, frozen=True):
    """-> SnapshotRow..., SnapshotEnd"""

    typed: ClassVar[bool] = False

    kinds: tuple[str, ...] = ()


class Why(Args, frozen=True):
    """-> WhyReport: who waits for whom."""


class ShowOperation(Args, frozen=True):
    """-> OperationRow"""

    typed: ClassVar[bool] = False
    id: str


class Events(Args, frozen=True):
    """-> list[OperationRow | IncidentRow | AuditRow | AlertRow], oldest first."""

    kinds: Annotated[tuple[str, ...], option("--kind", metavar="KIND")] = ()
    """operation, incident, audit, knob, alert; empty means all."""
    after_at: Annotated[float, PROGRAM] = 0.0
    limit: Annotated[int, option("--limit", "-n", metavar="N")] = 200


class ReadLogs(Args, frozen=True):
    """-> LogChunk"""

    typed: ClassVar[bool] = False
    unit: str
    incarnation: int = 0
    """0 the current one, -1 the one before."""
    offset: int = -65536
    limit: int = 65536


class Knobs(Args, frozen=True):
    """-> list[KnobRow]"""

    name: Annotated[str, argument("KNOB")] = ""


class KnobHistory(Args, frozen=True):
    """-> list[AuditRow]"""

    name: Annotated[str, argument("KNOB")]


class Alerts(Args, frozen=True):
    """-> list[AlertRow]"""

    all: bool = False
    """Include resolved alerts."""


class ListKeys(Args, frozen=True):
    """-> list[KeyRow]"""


# ---- mutations (all answered by Accepted) ----


class Apply(Args, frozen=True):
    """Make the run equal to this configuration."""

    typed: ClassVar[bool] = False
    config: dict[str, msgspec.Raw]
    """The resolved configuration, as `agentrl.config` dumps it."""
    source: str = ""
    given: tuple[str, ...] = ()
    """Dotted keys from the file, the environment or the command line; the others are defaults."""
    reading: bool = False
    """Bring up only the groups needed to read records, with their last configuration; `config` is ignored."""

    def title(self, seen: object = None) -> str:
        return f"up {self.source.rpartition('/')[2]}".strip()


class Down(Args, frozen=True):
    """Stop everything, scan every host, end the coordinator."""

    now: bool = False
    unless_up: Annotated[bool, PROGRAM] = False
    """Refuse if the run should be up. A failed `up` uses this to end its own coordinator without ending a run that is
    up."""

    def title(self, seen: object = None) -> str:
        return "take the run down"


class Scale(Args, frozen=True):
    group: Annotated[str, argument("ROLE")]
    to: Annotated[int | None, argument("N|+1|-1", Count(), required=True)] = None
    by: Annotated[int | None, PART] = None
    """A difference, made absolute at acceptance. Exactly one of `to` and `by` is given."""
    seen: Annotated[int | None, option("--seen", metavar="N")] = None
    """The count that the caller saw. The command is refused if the desired count has changed since."""

    def problem(self) -> str:
        one = (self.to is None) != (self.by is None)
        return "" if one else "scale needs either a number of units (`to`) or a difference such as +1 (`by`)."

    def title(self, seen: object = None) -> str:
        return f"scale {self.group} {f'to {self.to}' if self.by is None else f'by {self.by:+d}'}"

    def undo(self, seen: object = None) -> Args | None:
        """Refused, like the command, if another person has scaled the group since."""
        known = self.seen is not None and self.to is not None
        return Scale(self.group, to=self.seen, seen=self.to) if known else None


class DrainUnits(Args, frozen=True):
    """Stop one unit, or all units of a host, after they finished their work."""

    unit: Annotated[str, argument("UNIT", Incarnation())] = ""
    host: str = ""
    incarnation: Annotated[int, PART] = 0
    cancel: bool = False

    def problem(self) -> str:
        return "" if bool(self.unit) != bool(self.host) else "drain needs either a unit or a host."

    def title(self, seen: object = None) -> str:
        if self.host:
            return f"take work on host {self.host} again" if self.cancel else f"drain host {self.host}"
        return f"{'work on,' if self.cancel else 'drain'} {_living(self.unit, self.incarnation)}"

    def undo(self, seen: object = None) -> Args | None:
        return None if self.cancel else msgspec.structs.replace(self, cancel=True)


class Restart(Args, frozen=True):
    """Raise the desired generation of a unit, or of all units of a group."""

    target: Annotated[str, argument("TARGET", Incarnation())]
    incarnation: Annotated[int, PART] = 0
    now: bool = False
    """Without draining."""

    def title(self, seen: object = None) -> str:
        if isinstance(seen, GroupRow):
            return f"restart all of {self.target}"
        if not self.incarnation:
            return f"start {self.target} again"
        return f"restart {_living(self.target, self.incarnation)}{' at once' if self.now else ''}"


class Stop(Args, frozen=True):
    """The unit is not wanted until `restart` or `up`."""

    unit: Annotated[str, argument("UNIT", Incarnation())]
    incarnation: Annotated[int, PART] = 0
    now: bool = False

    def title(self, seen: object = None) -> str:
        return f"{'kill' if self.now else 'stop'} {_living(self.unit, self.incarnation)}"

    def undo(self, seen: object = None) -> Args | None:
        return Restart(self.unit)


class Pause(Args, frozen=True):
    target: Annotated[str, argument("TARGET")] = "run"
    """A unit, a group, or `run`."""

    def title(self, seen: object = None) -> str:
        return f"pause {self.target}"

    def undo(self, seen: object = None) -> Args | None:
        return Resume(self.target)


class Resume(Args, frozen=True):
    target: Annotated[str, argument("TARGET")] = "run"

    def title(self, seen: object = None) -> str:
        return f"resume {self.target}"


class Tune(Args, frozen=True):
    name: Annotated[str, argument("KNOB")]
    value: Annotated[KnobValue, argument("VALUE", SettingValue())]
    seen_revision: Annotated[int | None, option("--seen", metavar="REVISION")] = None
    """The revision that the caller saw. The command is refused if the knob was changed since."""
    note: Annotated[str, option("--note", metavar="TEXT")] = ""

    def title(self, seen: object = None) -> str:
        before = f"{plain_value(seen.value)} " if isinstance(seen, KnobRow) else ""
        return f"{self.name}: {before}→ {plain_value(self.value)}"

    def undo(self, seen: object = None) -> Args | None:
        return None if self.seen_revision is None else UndoTune(self.name, self.seen_revision + 1)


class UndoTune(Args, frozen=True):
    """Restore the value that a knob had before its last change."""

    name: Annotated[str, argument("KNOB")]
    seen_revision: Annotated[int | None, option("--seen", metavar="REVISION")] = None

    def title(self, seen: object = None) -> str:
        if isinstance(seen, KnobRow) and self.seen_revision == seen.revision + 1:
            return f"{self.name} back to {plain_value(seen.value)}"
        return f"take back the last change of {self.name}"


class Acknowledge(Args, frozen=True):
    id: Annotated[str, argument("ALERT")]

    def title(self, seen: object = None) -> str:
        return f"acknowledge {self.id}"


class Silence(Args, frozen=True):
    id: Annotated[str, argument("ALERT|RULE")]
    """An alert's id, or a rule's name."""
    for_s: Annotated[float, option("--for", metavar="TIME", form=Duration())] = 3600.0
    why: Annotated[str, option("--why", metavar="TEXT")] = ""

    def title(self, seen: object = None) -> str:
        if not self.for_s:
            return f"end the silence of {self.id}"
        return f"silence {self.id} for {Duration().text(self.for_s)}"

    def undo(self, seen: object = None) -> Args | None:
        return Silence(self.id, 0.0, self.why) if self.for_s else None


class SendTestAlert(Args, frozen=True):
    """Send a test through every sink."""

    def title(self, seen: object = None) -> str:
        return "send a test alert"


class CollectStacks(Args, frozen=True):
    """Write the stacks of all units into one file; the result of the operation names it."""

    units: Annotated[tuple[str, ...], rest("UNIT")] = ()

    def title(self, seen: object = None) -> str:
        return f"stacks of {', '.join(self.units) or 'all units'}"


class ForceStopped(Args, frozen=True):
    """A person declares a lost unit dead, so that it may be replaced or forgotten."""

    unit: Annotated[str, argument("UNIT", Incarnation())]
    incarnation: Annotated[int, PART]

    def title(self, seen: object = None) -> str:
        return f"confirm that {_living(self.unit, self.incarnation)} is dead"


class ForgetHost(Args, frozen=True):
    """A person declares a silent host gone for good, with all processes on it."""

    host: str

    def title(self, seen: object = None) -> str:
        return f"say that host {self.host} is gone for good"


class RemoveHost(Args, frozen=True):
    """A host that answers leaves the run: its units are placed elsewhere or wait, then its agent ends."""

    host: str

    def title(self, seen: object = None) -> str:
        return f"remove host {self.host} from the run"


class AddKey(Args, frozen=True):
    typed: ClassVar[bool] = False
    name: str
    public: str
    permission: Permission

    def title(self, seen: object = None) -> str:
        return f"admit the key {self.name} as {self.permission.value}"

    def undo(self, seen: object = None) -> Args | None:
        return RevokeKey(self.name)


class RotateKeys(Args, frozen=True):
    """Replace the run's HTTP token, and the authority and certificates of its tunnels."""

    def title(self, seen: object = None) -> str:
        return "replace the secrets of the run"


class RevokeKey(Args, frozen=True):
    name: str

    def title(self, seen: object = None) -> str:
        return f"revoke the key {self.name}"


def _living(unit: str, incarnation: int) -> str:
    return f"{unit}.{incarnation}" if incarnation else unit


# ---- results ----


class Accepted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Accepted is not done: follow the operation."""

    operation: str
    effect: Effect
    tier: Tier
    duplicate: bool = False
    """This id was accepted before; it was not executed again."""


class LearningReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What training has reached."""

    step: int = 0
    steps_wanted: int = 0
    """0 if there is no limit."""
    reward: float | None = None
    """The reward of the last step."""
    evaluation: float | None = None
    evaluation_margin: float | None = None
    evaluation_best: float | None = None
    evaluation_best_version: int = 0
    curves: str = ""
    """The directory of the curves, for TensorBoard."""


class StatusReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """All rows of the run at one moment, by kind; what `agentrl status --json` prints."""

    run: RunRow
    groups: tuple[GroupRow, ...] = ()
    units: tuple[UnitRow, ...] = ()
    hosts: tuple[HostRow, ...] = ()
    alerts: tuple[AlertRow, ...] = ()
    operations: tuple[OperationRow, ...] = ()
    """Operations that have not ended."""
    pulse: BottleneckRow | None = None
    """How busy the data plane is, and its bottleneck."""
    learning: LearningReport | None = None
    """None in a run without a trainer."""


class WaitLink(msgspec.Struct, frozen=True, omit_defaults=True):
    who: str
    on: str
    what: str = ""
    age_s: float = 0.0
    overdue: bool = False


class WaitChain(msgspec.Struct, frozen=True, omit_defaults=True):
    links: tuple[WaitLink, ...]
    culprit: str
    because: str
    """What is wrong with the unit at the end of the chain (hung, fatal, restarting, a circle of waits), or that it is
    working."""
    sentence: str
    amiss: bool = True
    """True if a person has to act. False if the chain ends at a unit that works in time, or outside the run."""


class WhyReport(msgspec.Struct, frozen=True, omit_defaults=True):
    chains: tuple[WaitChain, ...] = ()


class KeyRow(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    public: str
    permission: Permission
    created_at: float = 0.0
    revoked_at: float = 0.0
    of: str = ""
    """The key of the host agent whose units use this one. It is revoked with that key."""


Happenings = list[OperationRow | IncidentRow | AuditRow | AlertRow]

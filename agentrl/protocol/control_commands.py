"""Arguments and results of the commands that the coordinator serves itself.

Invariants: a mutation changes only desired state, so executing it twice is harmless; a command on a living process
names the unit together with the incarnation that the caller saw.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from agentrl.protocol.effects import Effect, Tier
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages import Permission
from agentrl.protocol.rows import (
    AlertRow,
    AuditRow,
    BottleneckRow,
    GroupRow,
    HostRow,
    IncidentRow,
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


class Down(Args, frozen=True):
    """Stop everything, scan every host, end the coordinator."""

    now: bool = False
    unless_up: Annotated[bool, PROGRAM] = False
    """Refuse if the run should be up. A failed `up` uses this to end its own coordinator without ending a run that is
    up."""


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


class DrainUnits(Args, frozen=True):
    """Stop one unit, or all units of a host, after they finished their work."""

    unit: Annotated[str, argument("UNIT", Incarnation())] = ""
    host: str = ""
    incarnation: Annotated[int, PART] = 0
    cancel: bool = False

    def problem(self) -> str:
        return "" if bool(self.unit) != bool(self.host) else "drain needs either a unit or a host."


class Restart(Args, frozen=True):
    """Raise the desired generation of a unit, or of all units of a group."""

    target: Annotated[str, argument("TARGET", Incarnation())]
    incarnation: Annotated[int, PART] = 0
    now: bool = False
    """Without draining."""


class Stop(Args, frozen=True):
    """The unit is not wanted until `restart` or `up`."""

    unit: Annotated[str, argument("UNIT", Incarnation())]
    incarnation: Annotated[int, PART] = 0
    now: bool = False


class Pause(Args, frozen=True):
    target: Annotated[str, argument("TARGET")] = "run"
    """A unit, a group, or `run`."""


class Resume(Args, frozen=True):
    target: Annotated[str, argument("TARGET")] = "run"


class Tune(Args, frozen=True):
    name: Annotated[str, argument("KNOB")]
    value: Annotated[KnobValue, argument("VALUE", SettingValue())]
    seen_revision: Annotated[int | None, option("--seen", metavar="REVISION")] = None
    """The revision that the caller saw. The command is refused if the knob was changed since."""
    note: Annotated[str, option("--note", metavar="TEXT")] = ""


class UndoTune(Args, frozen=True):
    """Restore the value that a knob had before its last change."""

    name: Annotated[str, argument("KNOB")]
    seen_revision: Annotated[int | None, option("--seen", metavar="REVISION")] = None


class Acknowledge(Args, frozen=True):
    id: Annotated[str, argument("ALERT")]


class Silence(Args, frozen=True):
    id: Annotated[str, argument("ALERT|RULE")]
    """An alert's id, or a rule's name."""
    for_s: Annotated[float, option("--for", metavar="TIME", form=Duration())] = 3600.0
    why: Annotated[str, option("--why", metavar="TEXT")] = ""


class SendTestAlert(Args, frozen=True):
    """Send a test through every sink."""


class CollectStacks(Args, frozen=True):
    """Write the stacks of all units into one file; the result of the operation names it."""

    units: Annotated[tuple[str, ...], rest("UNIT")] = ()


class ForceStopped(Args, frozen=True):
    """A person declares a lost unit dead, so that it may be replaced or forgotten."""

    unit: Annotated[str, argument("UNIT", Incarnation())]
    incarnation: Annotated[int, PART]


class ForgetHost(Args, frozen=True):
    """A person declares a silent host gone for good, with all processes on it."""

    host: str


class RemoveHost(Args, frozen=True):
    """A host that answers leaves the run: its units are placed elsewhere or wait, then its agent ends."""

    host: str


class AddKey(Args, frozen=True):
    typed: ClassVar[bool] = False
    name: str
    public: str
    permission: Permission


class RotateKeys(Args, frozen=True):
    """Replace the run's HTTP token, and the authority and certificates of its tunnels."""


class RevokeKey(Args, frozen=True):
    name: str


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

"""Between a unit and the coordinator, in both directions."""

from __future__ import annotations

import msgspec

from agentrl.protocol.knob import Knob
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages.shared_parts import UnitPart, Wait

# ---- unit -> coordinator ----


class UnitHello(Message, tag="unit_hello", frozen=True):
    """First message of a unit on every (re)connection."""

    major: int
    minor: int
    run: str
    unit: str
    incarnation: int
    token: str
    pid: int
    ready: bool = False
    version: str = ""
    declared: tuple[Knob, ...] = ()
    """The knobs that this unit owns. It answers `PreviewKnob` for them and applies `SetKnob`."""
    hears_deaths: bool = False
    """It wants a `UnitDied` for every incarnation that ends."""


class Beat(Message, tag="beat", frozen=True):
    """Sent every `heartbeat_s` by the thread that owns the socket, with the newest numbers of the work loop."""

    seq: int
    progress: int = 0
    loop_lag_s: float = 0.0
    """How long ago an asyncio main loop last turned; 0 for blocking loops."""
    ack: bool = False
    """Asks for a BeatAck, which proves to the unit that the coordinator is alive."""


class UnitReport(Message, tag="unit_report", frozen=True):
    """The state that a unit reports; sent when it changes, at most twice a second."""

    ready: bool = False
    status: str = ""
    phase: str = ""
    phase_age_s: float = 0.0
    at_most_s: float | None = None
    """The deadline of the phase, counted from its start or its last progress."""
    progress: int = 0
    progress_age_s: float | None = None
    """How long ago it last made progress, or started, because a restarted coordinator did not see that."""
    waits: tuple[Wait, ...] = ()
    weights: int | None = None
    """The version of its weights, if it has any."""
    serving: str = ""
    """What an engine does about versions: `loading(v3→v4)`, `serving(v4)`."""
    problems: dict[str, str] = msgspec.field(default_factory=dict)
    """What keeps the unit from its work: the thing at fault, such as `tool server search`, and a sentence."""
    incomplete: str = ""
    """What a ready unit does not do yet, such as serving a first version; `up` waits for it."""
    paused: bool = False
    draining: bool = False
    knobs: dict[str, float | int | str | bool | None] = msgspec.field(default_factory=dict)
    """The knob values in force in this unit."""
    extend_stop_s: float | None = None
    """More time that the unit asks for during a drain."""
    parts: tuple[UnitPart, ...] = ()
    """Its tool servers, in a toolbox."""


class UnitMetrics(Message, tag="unit_metrics", frozen=True):
    values: dict[str, float]


class Bye(Message, tag="bye", frozen=True):
    """The unit is about to exit. The coordinator learns the status even if the host agent is dead."""

    code: int
    reason: str = ""


class KnobPreviewed(Message, tag="knob_previewed", frozen=True):
    ask: str
    sentence: str
    exact_undo: bool = True
    loses: int = 0
    error: str = ""


# ---- coordinator -> unit ----


class Drain(Message, tag="drain", frozen=True):
    """Finish the work under way, then exit 0. SIGTERM follows after `grace_s`."""

    grace_s: float


class CancelDrain(Message, tag="cancel_drain", frozen=True):
    pass


class SetPaused(Message, tag="set_paused", frozen=True):
    paused: bool


class SetKnob(Message, tag="set_knob", frozen=True):
    name: str
    value: float | int | str | bool | None
    revision: int


class PreviewKnob(Message, tag="preview_knob", frozen=True):
    ask: str
    name: str
    value: float | int | str | bool | None

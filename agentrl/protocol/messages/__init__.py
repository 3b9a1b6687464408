"""Every message between a coordinator and its peers: clients, units and host agents.

Invariants: one frame is one tagged struct; unknown fields are ignored and new fields have defaults, so minor versions
talk to each other; an unknown tag is an error. Times in messages are durations, or seconds on the clock of
the coordinator (`*_ct`); wall-clock times (`*_at`) are only for people. Each kind of peer has a module; this package
has the unions of messages by direction, and other packages import from here.
"""

from __future__ import annotations

from agentrl.protocol.messages.clients import (
    ClientHello,
    ErrorReply,
    Reply,
    Request,
    SnapshotEnd,
    SnapshotRow,
)
from agentrl.protocol.messages.handshake import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    RANKS_SINCE,
    BeatAck,
    Permission,
    Refused,
    Welcome,
    WhoAreYou,
)
from agentrl.protocol.messages.hosts import (
    NONE_LEFT,
    AgentExit,
    Answer,
    Ask,
    CoordinatorTrouble,
    DumpStacks,
    Exited,
    Forget,
    GroupEmpty,
    HostBeat,
    HostHello,
    HostLeaving,
    HostStats,
    KillTree,
    LogChunk,
    OpenTunnel,
    Probed,
    ProcessState,
    ReadLog,
    RunSecrets,
    ScanReport,
    ScanRun,
    Scraped,
    SignalUnit,
    Spawn,
    Spawned,
    SpawnFailed,
    StackReport,
    TunnelOpened,
    TunnelPeers,
)
from agentrl.protocol.messages.served_commands import ToServingUnit, UnitAnswer
from agentrl.protocol.messages.shared_parts import (
    Device,
    DeviceUse,
    ExitStatus,
    HostFacts,
    ProcessInfo,
    RepeatedError,
    UnitOnHost,
    UnitPart,
    UnitStats,
    Wait,
)
from agentrl.protocol.messages.units import (
    Beat,
    Bye,
    CancelDrain,
    Drain,
    KnobPreviewed,
    PreviewKnob,
    SetKnob,
    SetPaused,
    UnitHello,
    UnitMetrics,
    UnitReport,
)

__all__ = [
    "MAX_MESSAGE_BYTES",
    "NONE_LEFT",
    "PROTOCOL_MAJOR",
    "PROTOCOL_MINOR",
    "RANKS_SINCE",
    "AgentExit",
    "Answer",
    "Ask",
    "Beat",
    "BeatAck",
    "Bye",
    "CancelDrain",
    "ClientHello",
    "CoordinatorTrouble",
    "Device",
    "DeviceUse",
    "Drain",
    "DumpStacks",
    "ErrorReply",
    "ExitStatus",
    "Exited",
    "Forget",
    "FromClient",
    "FromCoordinator",
    "FromHost",
    "FromUnit",
    "GroupEmpty",
    "HostBeat",
    "HostFacts",
    "HostHello",
    "HostLeaving",
    "HostStats",
    "KillTree",
    "KnobPreviewed",
    "LogChunk",
    "OpenTunnel",
    "Permission",
    "PreviewKnob",
    "Probed",
    "ProcessInfo",
    "ProcessState",
    "ReadLog",
    "Refused",
    "RepeatedError",
    "Reply",
    "Request",
    "RunSecrets",
    "ScanReport",
    "ScanRun",
    "Scraped",
    "SetKnob",
    "SetPaused",
    "SignalUnit",
    "SnapshotEnd",
    "SnapshotRow",
    "Spawn",
    "SpawnFailed",
    "Spawned",
    "StackReport",
    "ToClient",
    "ToCoordinator",
    "ToHost",
    "ToUnit",
    "TunnelOpened",
    "TunnelPeers",
    "UnitHello",
    "UnitMetrics",
    "UnitOnHost",
    "UnitPart",
    "UnitReport",
    "UnitStats",
    "Wait",
    "Welcome",
    "WhoAreYou",
]

FromUnit = UnitHello | Beat | UnitReport | UnitMetrics | Bye | KnobPreviewed | UnitAnswer
ToUnit = (
    Welcome | Refused | WhoAreYou | BeatAck | Drain | CancelDrain | SetPaused | SetKnob | PreviewKnob | ToServingUnit
)
FromHost = (
    HostHello
    | HostLeaving
    | TunnelOpened
    | HostBeat
    | HostStats
    | Spawned
    | SpawnFailed
    | Exited
    | GroupEmpty
    | Probed
    | ProcessState
    | CoordinatorTrouble
    | Scraped
    | Answer
)
ToHost = (
    Welcome
    | Refused
    | WhoAreYou
    | BeatAck
    | OpenTunnel
    | TunnelPeers
    | RunSecrets
    | Spawn
    | SignalUnit
    | KillTree
    | Forget
    | Ask
    | AgentExit
)
FromClient = ClientHello | Request
ToClient = Welcome | Refused | WhoAreYou | Reply | ErrorReply | SnapshotRow | SnapshotEnd

ToCoordinator = FromUnit | FromHost | FromClient
FromCoordinator = ToUnit | ToHost | ToClient

"""What the collections hold. A collection has the name of its struct, and a struct's `id` is the document's `_id`.

Invariants: every field has a default, so documents of older versions load, and fields of newer ones are ignored;
nothing is ever saved as a whole: these are for inserting and reading, changes are conditional updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from agentrl.policies.status_tables import (
    CallStatus,
    RecordStatus,
    StepStatus,
    TaskStatus,
    ToolCallStatus,
)
from agentrl.tokens.spans import Span

Purpose = str
TRAINS = ("train", "branch")
"""Purposes that are admitted by capacity and may be leased; `eval` and `probe` are neither."""


class Document(msgspec.Struct, kw_only=True):
    """Anything that has a collection."""


class Named(Document):
    """A document whose id is a text that says where it belongs."""

    id: str = msgspec.field(name="_id", default="")


D = TypeVar("D", bound=Document)


class Task(Named):
    """A row of a dataset in one epoch; the group of GRPO."""

    environment: str = ""
    split: str = "train"
    epoch: int = 0
    row: int = 0
    place: int = 0
    """Its place in the order of the epoch."""
    purpose: Purpose = "train"
    status: str = TaskStatus.QUEUED
    reason: str = ""
    """Why it is dead, or was sampled again."""
    round: int = 1
    rounds_max: int = 3
    n: int = 0
    sampling: dict[str, Any] = {}
    """Frozen at admission."""
    closing: dict[str, Any] = {}
    """Settings of its group that were frozen at admission; those of the run file hold for the others."""
    query: str = ""
    earlier: list[ConversationMessage] = []
    """Of a conversation: its instructions, instead of those of the environment, and the messages before the
    query."""
    answer: str = ""
    scorer: str = ""
    scorer_of_row: bool = False
    """Its row names the scorer, so no stage of a curriculum brings another one."""
    answer_schema: str = ""
    agent_name: str = ""
    servers: list[str] = []
    extra: dict[str, Any] = {}
    admitted_at: datetime | None = None
    first_admitted_at: datetime | None = None
    """Of its first round. Nothing of its records is older."""
    admitted_order: int = 0
    deadline_at: datetime | None = None
    seating: bool = False
    """Its Records are being inserted."""
    sweeping: bool = False
    """Records of former rounds are being superseded."""
    closed_at: datetime | None = None
    baseline: Baseline | None = None
    signal: bool = False
    members: int = 0
    """Records that were scored when the group closed."""
    shares: list[Share] = []
    """What each record took out of the group: the truth from which DBRecordData follows."""
    excluded: list[str] = []
    """Records that operators excluded; no closing of the group counts them."""
    changes: int = 0
    """How often operators changed its records. A process that closes the group writes nothing if it read another
    number."""
    lineage: str = ""
    step: int = -1
    trained_count: int = 0
    trained_at: datetime | None = None
    requeued_by: str = ""
    """The operation that last had it sampled again: it does so once."""
    version: int | None = None
    """Of an evaluation: the version that it pins."""
    pruned: bool = False
    """Calls, turns and tool calls of its records were removed."""
    fork: Fork | None = None
    """Of a task of purpose branch or probe: where all of its records begin."""
    repairs: list[Fork] = []
    """Forks that were decided and do not have their seats yet; the group does not close before."""
    repairing: bool = False
    """There are such forks."""


class ConversationMessage(msgspec.Struct):
    """A message of a conversation."""

    role: str
    content: str


class Fork(msgspec.Struct, kw_only=True):
    """The place in another record, the base, from which a record goes on. What comes before it is the trunk."""

    kind: str = ""
    """`repair` or `branch`."""
    base: str = ""
    turns: int = 0
    """So many whole turns of the base are in the trunk."""
    call: str = ""
    """A tool call of the next turn of the base. The trunk includes that turn up to its results."""
    result: str | None = None
    """What takes the place of the result of that call; None: its own result, or the call is made again if it failed
    for infrastructure."""
    status: str = ""
    """Of that result."""
    edited: bool = False
    """A person wrote the result, the arguments or the message."""
    times: int = 1
    """How many records begin here."""
    replay: str = ""
    """The replay that gave the result."""
    operation: str = ""
    who: str = ""
    note: str = ""


class Baseline(msgspec.Struct):
    mean: float = 0.0
    std: float = 0.0
    valid: int = 0
    turn_spread: float = 0.0
    """What the number of turns added to the scores that it is made of."""
    overlong_begins: int = 0
    overlong_full: int = 0
    """What long records lost of these scores; nothing if it is 0."""
    overlong_penalty: float = 0.0


class Share(msgspec.Struct):
    record: str
    advantage: float | None = None
    capped: bool = False
    score: float | None = None
    """Of a record that was scored again after the group had closed; its Record follows."""
    turns: list[float] = []
    """If turns have rewards: the advantage of each turn; with a critic its reward."""


class Rescore(msgspec.Struct):
    """The request of an operator to score a record again."""

    by: str = ""
    """The operation."""
    wanted: bool = False
    """No sampler has done it yet."""
    sampler: str = ""
    """The sampler that does it."""
    scorer: str = ""
    """Another scorer than that of the task."""
    error: str = ""
    """Why the record kept its score."""


class Review(msgspec.Struct):
    """The verdict of a person on a record."""

    verdict: str = ""
    note: str = ""
    who: str = ""
    at: datetime | None = None
    by: str = ""
    """The operation."""


class Record(Named):
    """One attempt at a seat."""

    task: str = ""
    environment: str = ""
    purpose: Purpose = "train"
    round: int = 1
    seat: int = 0
    attempt: int = 1
    order: int = 0
    """The Task's admitted_order: what was admitted first is claimed first; 0 for evaluations and probes."""
    status: str = RecordStatus.OPEN
    owner: str = ""
    resumable: bool = False
    """Its loop can be continued by another sampler."""
    free: bool = False
    """It failed on an open breaker and costs no re-draw."""
    followed: bool = False
    """It failed, and what follows from that (another attempt, or none) has been done."""
    late: bool = False
    """It was not there when its group closed."""
    reason: str = ""
    """Why it is superseded or excluded."""
    excluded_by: str = ""
    """The operation that excluded it."""
    fork: Fork | None = None
    """Where it begins, if it goes on from another record."""
    forks: list[str] = []
    """What was forked from it: records that repair it, and tasks that branch off."""
    cancelled_by: str = ""
    """The operation that cancelled it."""
    requeued_by: str = ""
    """The operation that wants another attempt at its seat, which costs no re-draw."""
    rescore: Rescore | None = None
    review: Review | None = None
    outcome: str = ""
    outcome_class: str = ""
    error: str = ""
    malformed: bool = False
    """It made malformed calls and went on."""
    context: dict[str, int] = {}
    """What was left out of its conversation because it was too long: `edits`, `tokens`, `turns`, `results`."""
    score: float | None = None
    turn_rewards: list[float] = []
    """What the scorer gave to each turn, besides the score."""
    score_parts: dict[str, float] = {}
    """What the score was computed from, by name, and numbers that only watch. Emptied when it is scored again."""
    scores_before: list[float] = []
    oldest_version: int | None = None
    newest_version: int | None = None
    versions: list[int] = []
    """All that generated tokens of it: after a rollback the smallest number need not be the farthest."""
    generated_tokens: int = 0
    turns: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration_s: float = 0.0


class ParsedCall(msgspec.Struct):
    name: str = ""
    arguments: dict[str, Any] = {}
    error: str = ""


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool call, inside the model call that asked for it."""

    id: str = ""
    """Also the id under which the toolbox knows the call."""
    server: str = ""
    tool: str = ""
    arguments: dict[str, Any] = {}
    status: str = ToolCallStatus.REQUESTED
    error_class: str = ""
    tried_again: str = ""
    """How the same call ended in a fresh session; empty if it was made once."""
    result: str = ""
    latency_s: float = 0.0
    session: str = ""
    copied_from: str = ""
    """Of a trunk: the tool call of the base."""
    edited: bool = False
    """A person wrote the result."""
    requested_at: datetime | None = None
    done_at: datetime | None = None


class DispatchedSamplingTask(Named):
    """One model call inside a Record, the text that was parsed from it and the tool calls that it caused.

    Ids and log-probs are packed as `agentrl.tokens.binary_format` does. A turn is several model calls if engines
    aborted or failed the first ones; the last one has the text of all of them and the tool calls.
    """

    record: str = ""
    task: str = ""
    turn: int = 0
    branch: str = ""
    """The name that the agent loop gave to a conversation beside its own; empty for its own."""
    index: int = 0
    """Of the model call in its Record; the last part of the id."""
    owner: str = ""
    status: str = CallStatus.SENT
    base: str = ""
    base_length: int = 0
    prompt: bytes = b""
    output: bytes = b""
    context: bool = False
    """It belongs to the trunk of a branch, so its tokens do not train in this record."""
    log_probs: bytes = b""
    versions: list[tuple[int, int]] = []
    sampling: dict[str, Any] = {}
    finish_reason: str = ""
    engine: str = ""
    sent_at: datetime | None = None
    done_at: datetime | None = None
    error: str = ""
    text: str = ""
    parsed: list[ParsedCall] = []
    tool_calls: list[ToolCall] = []
    began_at: datetime | None = None
    """When the turn began, which may be before its first model call was sent."""
    over_at: datetime | None = None
    """When the turn was complete, with all its tool calls."""
    called_at: datetime | None = None
    """When the newest of its tool calls was requested; lists of tool calls are in this order."""
    failed_at: datetime | None = None
    """When the last of its tool calls that failed ended."""


class DBRecordData(Named):
    """What the trainer consumes: the structure of a Record's token tree over the tokens of its calls."""

    task: str = ""
    spans: list[Span] = []
    trained_tokens: int = 0
    oldest_version: int | None = None
    versions: list[int] = []
    """All versions that generated tokens which train: the age of a record is that of the farthest one."""
    advantage: float | None = None
    capped: bool = False
    intervened: bool = False
    """The record is a fork, which an operator chose."""
    excluded: bool = False
    """An operator excluded its Record: it never has an advantage again."""
    turns: list[float] = []
    """Those of its Share; read with that, not stored here."""

    @property
    def trained_versions(self) -> list[int]:
        """As far as they are known: a document of an older version names the oldest alone."""
        return self.versions or ([] if self.oldest_version is None else [self.oldest_version])


class Step(Named):
    lineage: str = ""
    step: int = 0
    status: str = StepStatus.LEASED
    base_version: int = 0
    tasks: list[str] = []
    filtered: list[str] = []
    """Tasks without signal that it consumes."""
    records: list[str] = []
    intervened: int = 0
    """How many of its records are forks."""
    bounds: dict[str, int] = {}
    """The greatest age that trains in it, by environment."""
    metrics: dict[str, Any] = {}
    leased_at: datetime | None = None
    committed_at: datetime | None = None
    duration_s: float = 0.0
    empty: bool = False
    reason: str = ""
    died: bool = False
    """It was released because its trainer had ended with it."""
    followed: bool = False
    """It was rolled back, and its Tasks know."""
    reinstating: bool = False
    """It counts again after a rollback to a later checkpoint, and its Tasks do not know yet."""


class Owner(Named):
    unit: str = ""
    role: str = ""
    run: str = ""
    """The uuid of its run: another run may count its incarnations from one again."""
    number: int = 0
    """Of the incarnation."""
    expires_at: datetime | None = None
    expired: bool = False
    why: str = ""


class Service(Named):
    unit: str = ""
    kind: str = ""
    url: str = ""
    state: str = "starting"
    version: int | None = None
    versions_loaded: list[int] = []
    slots: int = 0
    running: int = 0
    seen_at: datetime | None = None
    names: list[str] = []
    unavailable: list[str] = []
    """Of a toolbox: those of its servers that cannot be used now."""
    troubles: list[str] = []
    """Why not, one sentence for each."""
    effects: list[tuple[str, str, str]] = []
    """Of a toolbox: server, tool, and what its calls change, as far as the servers declare it."""


class Epoch(Named):
    environment: str = ""
    split: str = "train"
    epoch: int = 0
    rows: int = 0
    inserted: int = 0
    """How many of its rows, in its order, are Tasks or left out."""
    left_out: dict[str, int] = {}
    """How many of them are no Tasks because they were `hard` or `easy` in the epoch before."""
    done: bool = False
    seed: int = 0
    digest: str = ""
    """Of the rows: an epoch that began goes on with what it began with."""


class Chunk(Named):
    """A part of a value that does not fit into its document."""

    document: str = ""
    field: str = ""
    index: int = 0
    data: bytes = b""


class Image(Named):
    """An image that texts and tokens name. Its id is the SHA-256 of its bytes."""

    number: int = 0
    """By which its tokens name it."""
    data: bytes = b""
    length: int = 0
    """Bytes."""
    format: str = ""
    """Known, like its size in pixels, once it was decoded."""
    width: int = 0
    height: int = 0
    used_at: datetime | None = None
    """When a record or a task last used it, to ten minutes; nothing if an earlier release stored it."""
    of_task: bool = False
    """A task names it, so it stays."""
    removed: bool = False
    """Retention removed its bytes. The rest stays, because its number may never name another image."""


def to_bson(value: Any) -> Any:
    """A struct, or a list of structs, as MongoDB takes it; times and bytes stay what they are."""
    return msgspec.to_builtins(value, builtin_types=(bytes, datetime))


def storable(value: Any) -> Any:
    """What a model or a tool wrote, as far as MongoDB can hold it: greater numbers become texts, characters that are
    none are replaced."""
    match value:
        case str():
            return value.encode(errors="replace").decode() if not value.isascii() else value
        case int() if not -(2**63) <= value < 2**63:
            return str(value)
        case Mapping():
            return {storable(str(key)).replace("\0", "\ufffd"): storable(item) for key, item in value.items()}
        case list() | tuple():
            return [storable(item) for item in value]
    return value


def load(kind: type[D], document: Mapping[str, Any]) -> D:
    return msgspec.convert(document, kind)


def load_if(kind: type[D], document: Mapping[str, Any] | None) -> D | None:
    return None if document is None else load(kind, document)

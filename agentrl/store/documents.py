"""What the collections hold. A collection has the name of its struct, and a struct's `id` is the document's `_id`.

Invariants: every field has a default, so documents of older versions load, and fields of newer ones are ignored;
documents are inserted and read with these structs, and changed only by conditional updates, never saved as a whole.
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
    """Base of the structs that have a collection."""


class Named(Document):
    """A document whose id is a text that contains what it belongs to."""

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
    """Settings of its group that were frozen at admission; the run file decides the others."""
    query: str = ""
    earlier: list[ConversationMessage] = []
    """For a conversation: its instructions, which replace those of the environment, and the messages before the
    query."""
    answer: str = ""
    scorer: str = ""
    scorer_of_row: bool = False
    """Its row names the scorer, so no stage of a curriculum replaces it."""
    answer_schema: str = ""
    agent_name: str = ""
    servers: list[str] = []
    extra: dict[str, Any] = {}
    admitted_at: datetime | None = None
    first_admitted_at: datetime | None = None
    """When its first round was admitted. No data of its records is older."""
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
    """The share of each record. DBRecordData is derived from it."""
    excluded: list[str] = []
    """Records that operators excluded; closing the group ignores them."""
    changes: int = 0
    """How often operators changed its records. A process that closes the group writes nothing if this number has
    changed since it read the group."""
    lineage: str = ""
    step: int = -1
    trained_count: int = 0
    trained_at: datetime | None = None
    requeued_by: str = ""
    """The operation that last requeued it, so that an operation does so only once."""
    version: int | None = None
    """For an evaluation: the version that it pins."""
    pruned: bool = False
    """Calls, turns and tool calls of its records were removed."""
    fork: Fork | None = None
    """For a task of purpose branch or probe: where all of its records begin."""
    repairs: list[Fork] = []
    """Forks that were decided and do not have their seats yet; the group does not close before."""
    repairing: bool = False
    """There are such forks."""


class ConversationMessage(msgspec.Struct):
    role: str
    content: str


class Fork(msgspec.Struct, kw_only=True):
    """The place in another record, the base, from which a record goes on. What comes before it is the trunk."""

    kind: str = ""
    """`repair` or `branch`."""
    base: str = ""
    turns: int = 0
    """How many whole turns of the base are in the trunk."""
    call: str = ""
    """A tool call of the next turn of the base. The trunk includes that turn up to its results."""
    result: str | None = None
    """The result that replaces that of the call; None keeps its own result, or makes the call again if it failed for
    infrastructure."""
    status: str = ""
    """The status of that result."""
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
    """The spread by which the number of turns changed the scores of the baseline."""
    overlong_begins: int = 0
    overlong_full: int = 0
    """With the fields before and after it, the penalty for long records in these scores; 0 means no penalty."""
    overlong_penalty: float = 0.0


class Share(msgspec.Struct):
    record: str
    advantage: float | None = None
    capped: bool = False
    score: float | None = None
    """The new score of a record that was scored again after the group had closed; its Record is updated after this."""
    turns: list[float] = []
    """If turns have rewards: the advantage of each turn; with a critic its reward."""


class Rescore(msgspec.Struct):
    """The request of an operator to score a record again."""

    by: str = ""
    """The operation."""
    wanted: bool = False
    """True until a sampler has done it."""
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
    """The Task's admitted_order: records that were admitted first are claimed first; 0 for evaluations and probes."""
    status: str = RecordStatus.OPEN
    owner: str = ""
    resumable: bool = False
    """Its loop can be continued by another sampler."""
    free: bool = False
    """It failed on an open breaker and costs no re-draw."""
    followed: bool = False
    """It failed, and the consequence (another attempt, or none) has been carried out."""
    late: bool = False
    """It had not ended when its group closed."""
    reason: str = ""
    """Why it is superseded or excluded."""
    excluded_by: str = ""
    """The operation that excluded it."""
    fork: Fork | None = None
    """Where it begins, if it goes on from another record."""
    forks: list[str] = []
    """Its forks: records that repair it, and tasks that branch off."""
    cancelled_by: str = ""
    """The operation that cancelled it."""
    requeued_by: str = ""
    """The operation that requested another attempt at its seat, which costs no re-draw."""
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
    """The reward that the scorer gave to each turn, besides the score."""
    score_parts: dict[str, float] = {}
    """The parts of the score by name, and scores of watchers. Emptied when it is scored again."""
    scores_before: list[float] = []
    oldest_version: int | None = None
    newest_version: int | None = None
    versions: list[int] = []
    """All versions that generated its tokens. After a rollback the smallest number need not be the oldest version."""
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
    """A tool call, stored inside the model call that requested it."""

    id: str = ""
    """The toolbox knows the call by the same id."""
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
    """For a call in a trunk: the tool call of the base."""
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
    """The index of the model call in its Record; the last part of the id."""
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
    """When the newest of its tool calls was requested; lists of tool calls are sorted by it."""
    failed_at: datetime | None = None
    """When the last of its tool calls that failed ended."""


class DBRecordData(Named):
    """What the trainer consumes: the structure of a Record's token tree over the tokens of its calls."""

    task: str = ""
    spans: list[Span] = []
    trained_tokens: int = 0
    oldest_version: int | None = None
    versions: list[int] = []
    """All versions that generated training tokens. The age of a record is the age of the oldest of these versions."""
    advantage: float | None = None
    capped: bool = False
    intervened: bool = False
    """The record is a fork, which an operator chose."""
    excluded: bool = False
    """An operator excluded its Record, so it never gets an advantage again."""
    turns: list[float] = []
    """The values of its Share; read with it and not stored here."""

    @property
    def trained_versions(self) -> list[int]:
        """The versions as far as they are known: a document of an older release names only the oldest one."""
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
    """It was released because its trainer ended during it."""
    followed: bool = False
    """It was rolled back, and its Tasks were updated."""
    reinstating: bool = False
    """It counts again after a rollback to a later checkpoint, and its Tasks are not updated yet."""


class Owner(Named):
    unit: str = ""
    role: str = ""
    run: str = ""
    """The uuid of its run, because another run may use the same numbers of incarnations."""
    number: int = 0
    """The number of the incarnation."""
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
    """For a toolbox: its servers that cannot be used now."""
    troubles: list[str] = []
    """Why they cannot be used, one sentence for each."""
    effects: list[tuple[str, str, str]] = []
    """For a toolbox: server, tool, and the effect of its calls, if the server declares it."""


class Epoch(Named):
    environment: str = ""
    split: str = "train"
    epoch: int = 0
    rows: int = 0
    inserted: int = 0
    """How many of its rows, in the order of the epoch, are already Tasks or left out."""
    left_out: dict[str, int] = {}
    """How many of these rows were left out because they were `hard` or `easy` in the epoch before."""
    done: bool = False
    seed: int = 0
    digest: str = ""
    """A digest of the rows: an epoch must continue with the rows that it began with."""


class Chunk(Named):
    """A part of a value that does not fit into its document."""

    document: str = ""
    field: str = ""
    index: int = 0
    data: bytes = b""


class Image(Named):
    """An image that texts and tokens name. Its id is the SHA-256 of its bytes."""

    number: int = 0
    """The number by which its tokens name it."""
    data: bytes = b""
    length: int = 0
    """Bytes."""
    format: str = ""
    """The format; like the size in pixels, it is known after the image was decoded once."""
    width: int = 0
    height: int = 0
    used_at: datetime | None = None
    """When a record or a task last used it, within ten minutes; None if an earlier release stored it."""
    of_task: bool = False
    """A task names it, so it stays."""
    removed: bool = False
    """Retention removed its bytes. The rest stays, because its number may never name another image."""


def to_bson(value: Any) -> Any:
    """A struct, or a list of structs, in the form for MongoDB; times and bytes stay unchanged."""
    return msgspec.to_builtins(value, builtin_types=(bytes, datetime))


def storable(value: Any) -> Any:
    """Output of a model or a tool in a form that MongoDB can store: too large numbers become texts, invalid characters
    are replaced."""
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

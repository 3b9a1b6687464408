"""Makes one method of the client for each command of the table.

Invariants:
- A method takes the arguments of its command by the same names and returns the result of the table.
- Every method takes `deadline_s`.
- Methods that change something also take `request_id` (an id is carried out once) and `consent` (from
  `Client.preview`).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Generic, TypeVar, cast

import msgspec

from agentrl.protocol import wire
from agentrl.protocol.commands import COMMANDS, CommandSpec
from agentrl.protocol.control_commands import Accepted, Apply, Happenings, KeyRow, StatusReport, WhyReport
from agentrl.protocol.data_commands import (
    AccountReport,
    CallStory,
    ExportPart,
    ImagePart,
    Page,
    PastChange,
    RecordStory,
    StalenessReport,
    Story,
    TokenPart,
    ToolErrorGroup,
)
from agentrl.protocol.effects import Consent
from agentrl.protocol.evaluation_commands import EvaluationRow, EvaluationStory
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages import LogChunk
from agentrl.protocol.other_model_commands import OtherModelsReport
from agentrl.protocol.rows import AlertRow, AuditRow, KnobRow, OperationRow
from agentrl.protocol.tool_commands import (
    ExecOutput,
    JoinedRows,
    SandboxRow,
    ToolLogLine,
    ToolRow,
    ToolServerRow,
    ToolSessionRow,
)

R = TypeVar("R")
_POSITIONAL = 2
"""How many arguments need no name."""


class Method(Generic[R]):
    """The method of one command; `R` is the type of its result."""

    def __init__(self, name: str) -> None:
        self.spec = COMMANDS[name]
        self.__doc__ = self.spec.help
        self._signature = _signature(self.spec)

    def __get__(self, client: CommandMethods, owner: type) -> Callable[..., Coroutine[Any, Any, R]]:
        async def method(*args: Any, **named: Any) -> R:
            given = self._signature.bind(*args, **named).arguments
            how = {name: given.pop(name, None) for name in ("deadline_s", "consent")}
            id = given.pop("request_id", None)
            return cast(R, await client.call(self.spec.name, self.spec.args(**given), id=id, **how))

        method.__name__, method.__doc__ = self.spec.name, self.spec.help
        method.__signature__ = self._signature  # type: ignore[attr-defined]
        return method


def _signature(spec: CommandSpec) -> inspect.Signature:
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD if number < _POSITIONAL else inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.required else field.default,
            annotation=field.type,
        )
        for number, field in enumerate(msgspec.structs.fields(spec.args))
    ]
    extra = ("request_id", "consent", "deadline_s") if spec.mutates else ("deadline_s",)
    parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in extra]
    return inspect.Signature(parameters)


class CommandMethods(ABC):
    """All methods except `snapshot`, whose answer is a stream of rows."""

    @abstractmethod
    async def call(
        self,
        name: str,
        args: Args | Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        deadline_s: float | None = None,
        consent: Consent | None = None,
    ) -> Any: ...

    # queries of the coordinator
    status = Method[StatusReport]("status")
    why = Method[WhyReport]("why")
    show_operation = Method[OperationRow]("show_operation")
    events = Method[Happenings]("events")
    read_logs = Method[LogChunk]("read_logs")
    knobs = Method[list[KnobRow]]("knobs")
    knob_history = Method[list[AuditRow]]("knob_history")
    alerts = Method[list[AlertRow]]("alerts")
    list_keys = Method[list[KeyRow]]("list_keys")

    # queries of the steward
    list_tasks = Method[Page]("list_tasks")
    list_records = Method[Page]("list_records")
    list_steps = Method[Page]("list_steps")
    list_checkpoints = Method[Page]("list_checkpoints")
    list_versions = Method[Page]("list_versions")
    list_calls = Method[Page]("list_calls")
    list_replays = Method[Page]("list_replays")
    show_replay = Method[Story]("show_replay")
    show_task = Method[Story]("show_task")
    show_call = Method[CallStory]("show_call")
    show_record = Method[RecordStory]("show_record")
    show_step = Method[Story]("show_step")
    show_checkpoint = Method[Story]("show_checkpoint")
    list_reviews = Method[Page]("list_reviews")
    read_image = Method[ImagePart]("read_image")
    record_tokens = Method[TokenPart]("record_tokens")
    export_records = Method[ExportPart]("export_records")
    tool_errors = Method[list[ToolErrorGroup]]("tool_errors")
    accounting = Method[AccountReport]("accounting")
    staleness = Method[StalenessReport]("staleness")
    other_models = Method[OtherModelsReport]("other_models")
    preview_past = Method[PastChange]("preview_past")
    list_evaluations = Method[list[EvaluationRow]]("list_evaluations")
    show_evaluation = Method[EvaluationStory]("show_evaluation")

    # queries of toolboxes
    list_tool_servers = Method[JoinedRows[ToolServerRow]]("list_tool_servers")
    list_tools = Method[JoinedRows[ToolRow]]("list_tools")
    list_sandboxes = Method[JoinedRows[SandboxRow]]("list_sandboxes")
    tool_logs = Method[JoinedRows[ToolLogLine]]("tool_logs")
    show_exec_output = Method[JoinedRows[ExecOutput]]("show_exec_output")
    list_tool_sessions = Method[JoinedRows[ToolSessionRow]]("list_tool_sessions")

    # commands
    down = Method[Accepted]("down")
    scale = Method[Accepted]("scale")
    drain = Method[Accepted]("drain")
    restart = Method[Accepted]("restart")
    stop = Method[Accepted]("stop")
    pause = Method[Accepted]("pause")
    resume = Method[Accepted]("resume")
    force_stopped = Method[Accepted]("force_stopped")
    remove_host = Method[Accepted]("remove_host")
    forget_host = Method[Accepted]("forget_host")
    stacks = Method[Accepted]("stacks")
    tune = Method[Accepted]("tune")
    undo_tune = Method[Accepted]("undo_tune")
    acknowledge = Method[Accepted]("acknowledge")
    silence = Method[Accepted]("silence")
    test_alert = Method[Accepted]("test_alert")
    add_key = Method[Accepted]("add_key")
    rotate_keys = Method[Accepted]("rotate_keys")
    revoke_key = Method[Accepted]("revoke_key")
    requeue_tasks = Method[Accepted]("requeue_tasks")
    exclude_records = Method[Accepted]("exclude_records")
    requeue_records = Method[Accepted]("requeue_records")
    cancel_records = Method[Accepted]("cancel_records")
    rescore_records = Method[Accepted]("rescore_records")
    review_records = Method[Accepted]("review_records")
    add_tasks = Method[Accepted]("add_tasks")
    replay_calls = Method[Accepted]("replay_calls")
    keep_replays = Method[Accepted]("keep_replays")
    exclude_replayed = Method[Accepted]("exclude_replayed")
    fork_records = Method[Accepted]("fork_records")
    stop_replays = Method[Accepted]("stop_replays")
    continue_replays = Method[Accepted]("continue_replays")
    restart_tool = Method[Accepted]("restart_tool")
    release_session = Method[Accepted]("release_session")
    exec_in_sandbox = Method[Accepted]("exec_in_sandbox")
    pin_checkpoint = Method[Accepted]("pin_checkpoint")
    unpin_checkpoint = Method[Accepted]("unpin_checkpoint")
    rollback = Method[Accepted]("rollback")

    async def apply(
        self,
        config: Mapping[str, Any],
        *,
        source: str = "",
        given: Iterable[str] = (),
        reading: bool = False,
        request_id: str | None = None,
        consent: Consent | None = None,
        deadline_s: float | None = None,
    ) -> Accepted:
        """Make the run equal to this configuration. With `reading`, start only what its records are read from."""
        sections = {key: wire.raw(value) for key, value in config.items()}
        args = Apply(sections, source, tuple(given), reading)
        answer = await self.call("apply", args, id=request_id, consent=consent, deadline_s=deadline_s)
        return cast(Accepted, answer)

"""What one episode did, as it is stored; and what of it was stored before, if another sampler began it.

Invariants: model calls, tool calls and turns are written in the order in which they happened; a tool call is durable,
with everything before it, before it is asked; `settled` returns when everything is durable. A write that fails ends the
episode, and one that finds another owner drops it. Ids are never used twice, also not over a hand-over. That something
is under way is written once it takes so long that somebody may ask what is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from agentrl.engines.interface import Generated, Sampling
from agentrl.errors import AgentrlError
from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import CallStatus, ToolCallStatus
from agentrl.rollout.episode_errors import DroppedError, EndedError
from agentrl.rollout.toolbox_protocol import ToolAnswer
from agentrl.store import chunks, claims, trajectories
from agentrl.store.claims import Claim, Reached
from agentrl.store.database import Database
from agentrl.store.documents import (
    DispatchedSamplingTask,
    Record,
    ToolCall,
    Turn,
    call_id,
    tool_call_id,
    turn_id,
)
from agentrl.store.trajectories import OwnershipError, Writer
from agentrl.tokens import spans as span_lists
from agentrl.tokens import version_runs as version_runs
from agentrl.tokens.binary_format import pack_floats, pack_ids, unpack_ids
from agentrl.tokens.token_tree import TokenTree

SHOWN_AFTER_S = 1.0
"""What is answered sooner is written once, with its answer."""
PROGRESS_EVERY_S = 2.0
"""After the first turn, which says how old the Record is."""


@dataclasses.dataclass(slots=True)
class KnownCall:
    """A model call with its whole prompt."""

    document: DispatchedSamplingTask
    prompt: list[int]
    output: list[int]

    @property
    def done(self) -> bool:
        return self.document.status == CallStatus.DONE


class Recorder:
    """Of one episode. Made by `begin`."""

    def __init__(self, database: Database, writer: Writer, record: Record, owner: str) -> None:
        self.record = record
        self._database = database
        self._writer = writer
        self._owner = owner
        self._tree = TokenTree()
        self._next_call = 0
        self._calls: dict[int, KnownCall] = {}
        self._tool_calls: dict[str, ToolCall] = {}
        self._turns: dict[int, Turn] = {}
        self._open_calls: dict[str, DispatchedSamplingTask] = {}
        self._pending: set[asyncio.Task[None]] = set()
        self._unshown: dict[str, asyncio.TimerHandle] = {}
        """What is under way and not written as such, by id."""
        self._told_at = float("-inf")
        self._failed: DroppedError | EndedError | None = None
        """Why something of it is not stored."""

    @classmethod
    async def begin(cls, database: Database, writer: Writer, claim: Claim, owner: str) -> Recorder:
        """With what is stored already, which is this owner's from now on."""
        recorder = cls(database, writer, claim.record, owner)
        if not claim.fresh:
            await recorder._take_over()
        return recorder

    def close(self) -> None:
        """Nobody waits for it any more."""
        for timer in self._unshown.values():
            timer.cancel()
        self._unshown.clear()

    # ---- what is known ----

    def calls_of(self, turn: int) -> list[KnownCall]:
        """The stored calls of a turn that gave tokens, in their order."""
        name = turn_id(self.record.id, turn)
        return [call for call in self._calls.values() if call.document.turn == name]

    def tool_calls_of(self, turn: int) -> list[ToolCall]:
        return [call for call in self._tool_calls.values() if call.turn == turn]

    @property
    def has_tool_calls(self) -> bool:
        """Of any turn, also of one that is not over: what was requested may have been carried out."""
        return any(call.status != ToolCallStatus.REFUSED for call in self._tool_calls.values())

    async def whole_result(self, call: ToolCall) -> str:
        """What the tool said, also where only the ends of it are in the document."""
        return await chunks.whole(self._database, call.id, "result") or call.result

    @property
    def next_index(self) -> int:
        """Of the next model call."""
        return self._next_call

    @property
    def reached(self) -> Reached:
        """What is stored once everything is settled."""
        versions = sorted({version for run in self.runs.values() for version, count in run if count})
        return Reached(
            turns=len(self._turns),
            generated_tokens=sum(len(call.output) for call in self._calls.values()),
            oldest_version=min(versions, default=None),
            newest_version=max(versions, default=None),
            versions=versions,
        )

    @property
    def tree(self) -> TokenTree:
        return self._tree

    @property
    def runs(self) -> dict[int, list[tuple[int, int]]]:
        """The versions of each call's output."""
        return {index: call.document.versions for index, call in self._calls.items()}

    # ---- model calls ----

    def sent(self, turn: int, prompt: list[int], sampling: Sampling, engine: str) -> DispatchedSamplingTask:
        """A call that goes to an engine now."""
        index, self._next_call = self._next_call, self._next_call + 1
        base, length = self._tree.base(prompt)
        call = DispatchedSamplingTask(
            id=call_id(self.record.id, index),
            record=self.record.id,
            task=self.record.task,
            turn=turn_id(self.record.id, turn),
            index=index,
            owner=self._owner,
            base="" if base is None else call_id(self.record.id, base),
            base_length=length,
            prompt=pack_ids(prompt[length:]),
            sampling=msgspec.to_builtins(sampling),
            engine=engine,
            sent_at=datetime.now(UTC),
        )
        self._open_calls[call.id] = call
        # Nothing hangs on its being durable before the engine has it: what was not stored was not seen by anybody.
        self._show_later(call.id, lambda: self._writer.sent(copy.copy(call)))
        return call

    def answered(self, call: DispatchedSamplingTask, prompt: list[int], made: Generated) -> None:
        call.status = CallStatus.PARTIAL if made.finish == "abort" else CallStatus.DONE
        call.finish_reason = made.finish
        call.output = pack_ids(made.ids)
        call.log_probs = pack_floats(made.log_probs)
        call.versions = version_runs.joined(made.versions)
        self._open_calls.pop(call.id, None)
        self._remember(call, prompt, list(made.ids))
        self._later(self._writer.answered(call, shown=self._was_shown(call.id)))

    def failed(self, call: DispatchedSamplingTask, why: str) -> None:
        call.status = CallStatus.FAILED
        call.error = why[:2000]
        self._open_calls.pop(call.id, None)
        self._later(self._writer.answered(call, shown=self._was_shown(call.id)))

    # ---- tool calls ----

    async def requested(
        self, turn: int, number: int, *, server: str, tool: str, arguments: dict[str, Any], session: str
    ) -> ToolCall:
        """Durable, with all that led to it, when this returns."""
        call = ToolCall(
            id=tool_call_id(self.record.id, turn, number),
            record=self.record.id,
            task=self.record.task,
            turn=turn,
            owner=self._owner,
            server=server,
            tool=tool,
            arguments=arguments,
            session=session,
        )
        self._tool_calls[call.id] = call
        # It goes out behind what led to it, if not with it.
        self._later(self._unless_failed(self._writer.requested(copy.copy(call))))
        await self.settled()
        return call

    def tool_runs(self, call: ToolCall) -> None:
        """A toolbox has it now."""
        call.status = ToolCallStatus.RUNNING
        self._show_later(call.id, lambda: self._writer.tool_moved(copy.copy(call)))

    def tool_moved(self, call: ToolCall, status: ToolCallStatus, answer: ToolAnswer | None = None) -> None:
        """Its end."""
        self._was_shown(call.id)
        call.status = status
        if answer is not None:
            call.error_class = answer.fault
            call.result = answer.content
            call.latency_s = answer.latency_s
            call.tried_again = answer.tried_again
        self._later(self._writer.tool_moved(copy.copy(call)))

    # ---- turns ----

    def turn_over(self, turn: Turn, *, last: bool = False) -> None:
        """A turn with all its tool calls is complete. After the last one the Record's own end tells its progress."""
        if turn.index in self._turns:
            return
        turn.owner = self._owner
        self._turns[turn.index] = turn
        self._later(self._after(set(self._pending), self._unless_failed(self._writer.turn(copy.copy(turn)))))
        if not last and time.monotonic() >= self._told_at + PROGRESS_EVERY_S:
            self._told_at = time.monotonic()
            told = claims.progress(self.record.id, self._owner, self.reached)
            self._later(self._writer.progress(self.record.id, self._owner, told))

    # ---- durability ----

    async def settled(self) -> None:
        """Everything up to now is durable."""
        while self._pending:
            await asyncio.wait(self._pending)
            done = [task for task in self._pending if task.done()]
            self._pending.difference_update(done)
            for task in done:
                if (failed := task.exception()) is not None:
                    raise failed

    def give_up_open(self, why: str, *, tool_calls: bool = True) -> None:
        """Nobody waits for what is still open. Tool calls are left open for a sampler that will join them."""
        for call in list(self._open_calls.values()):
            self.failed(call, why)
        for tool_call in self._tool_calls.values() if tool_calls else ():
            if tool_call.status in (ToolCallStatus.REQUESTED, ToolCallStatus.RUNNING):
                lost = ToolAnswer(status="lost", fault="infrastructure", content=why)
                self.tool_moved(tool_call, ToolCallStatus.LOST, lost)

    # ---- inside ----

    async def _take_over(self) -> None:
        trunk = await trajectories.take_over(self._database, self.record.id, self.record.task, self._owner)
        prompts = span_lists.full_prompts(trajectories.stored_calls(trunk.calls))
        for document in trunk.calls:
            self._remember(document, prompts[document.index], unpack_ids(document.output))
        self._next_call = trunk.next_call
        self._tool_calls = {call.id: call for call in trunk.tool_calls}
        self._turns = {turn.index: turn for turn in trunk.turns}

    def _remember(self, document: DispatchedSamplingTask, prompt: list[int], output: list[int]) -> None:
        self._calls[document.index] = KnownCall(document, prompt, output)
        self._tree.insert(document.index, prompt, output)

    def _show_later(self, name: str, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Written as being under way, unless its end is there before."""

        def show() -> None:
            del self._unshown[name]
            self._later(write())

        self._unshown[name] = asyncio.get_running_loop().call_later(SHOWN_AFTER_S, show)

    def _was_shown(self, name: str) -> bool:
        timer = self._unshown.pop(name, None)
        if timer is not None:
            timer.cancel()
        return timer is None

    def _later(self, write: Coroutine[Any, Any, None]) -> None:
        """The write takes its place in the order now, and is waited for by `settled`."""
        task = asyncio.create_task(self._guarded(write), name=f"store {self.record.id}")
        # `settled` raises the first failure; those beside it are no news.
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        self._pending.add(task)

    @staticmethod
    async def _after(earlier: set[asyncio.Task[None]], write: Coroutine[Any, Any, None]) -> None:
        """Whoever sees a turn sees all it is made of. What fails before it is `settled`'s to tell."""
        if earlier:
            await asyncio.wait(earlier)
        await write

    async def _unless_failed(self, write: Coroutine[Any, Any, None]) -> None:
        """What led to it may have failed just now; then this is not stored either."""
        if self._failed is not None:
            write.close()
            raise self._failed
        await write

    async def _guarded(self, write: Coroutine[Any, Any, None]) -> None:
        try:
            with ending_errors():
                await write
        except (DroppedError, EndedError) as failed:
            self._failed = failed
            raise


@contextlib.contextmanager
def ending_errors() -> Iterator[None]:
    """What the store says when it does not take a write, as the end of the episode."""
    try:
        yield
    except OwnershipError:
        raise DroppedError from None
    except AgentrlError as failed:
        raise EndedError(Outcome.STORE_FAILED, str(failed)) from failed

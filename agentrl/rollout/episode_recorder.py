"""Stores what one episode does, and reads what another sampler stored of it before.

Invariants: a turn is one document: its model call, the parsed text, the tool calls. The document is written when the
turn is over, when the turn takes so long that a person may look at it, and before the call of a tool that must not run
twice. The documents of an episode are written in their order; `settled` returns when everything is durable. A write
that fails ends the episode; a write that finds another owner drops it. Ids are never used twice, even across a
hand-over.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from agentrl.engines.interface import Generated, Sampling
from agentrl.errors import AgentrlError
from agentrl.policies.outcomes import Outcome
from agentrl.policies.replay_verdicts import EarlierCall
from agentrl.policies.status_tables import CallStatus, ToolCallStatus
from agentrl.rollout.episode_errors import DroppedError, EndedError
from agentrl.store import calls, chunks, claims, forks, replays
from agentrl.store.call_writer import OwnershipError, Writer, now
from agentrl.store.claims import Claim, Reached
from agentrl.store.database import Database
from agentrl.store.document_ids import call_id, tool_call_id
from agentrl.store.documents import DispatchedSamplingTask, ParsedCall, Record, ToolCall
from agentrl.tokens import spans as span_lists
from agentrl.tokens import version_runs
from agentrl.tokens.binary_format import pack_floats, pack_ids, unpack_ids
from agentrl.tokens.token_tree import TokenTree
from agentrl.toolbox.api_messages import CallAnswer

SHOWN_AFTER_S = 1.0
"""A turn that ends sooner is written once, as a whole."""
PROGRESS_EVERY_S = 10.0
"""How often progress is written after the first turn. The versions of the first turn decide how old the Record is;
later progress is only for people."""
_ANSWER = ("status", "output", "log_probs", "versions", "finish_reason", "engine", "error", "done_at")
_UNDER_WAY = (ToolCallStatus.REQUESTED, ToolCallStatus.RUNNING)


@dataclasses.dataclass(slots=True, eq=False)
class _Draft:
    """A document as this process knows it, and the part that the writer did not get yet."""

    call: DispatchedSamplingTask
    stored: bool = False
    fields: set[str] = dataclasses.field(default_factory=set)
    moved: dict[str, ToolCall] = dataclasses.field(default_factory=dict)
    new: list[ToolCall] = dataclasses.field(default_factory=list)
    timer: asyncio.TimerHandle | None = None

    @property
    def is_dirty(self) -> bool:
        return not self.stored or bool(self.fields or self.moved or self.new)


class Recorder:
    """Stores one episode. `begin` makes it."""

    def __init__(self, database: Database, writer: Writer, record: Record, owner: str) -> None:
        self.record = record
        self._database = database
        self._writer = writer
        self._owner = owner
        self._tree = TokenTree()
        self._next_call = 0
        self._calls: dict[int, DispatchedSamplingTask] = {}
        """The model calls with tokens, by index; their tokens are in the tree."""
        self._tool_calls: dict[str, ToolCall] = {}
        self._trunk: dict[str, int] = {}
        """The tool calls that a fork was given, with their turns."""
        self._turns: dict[int, _Draft] = {}
        """The document in which each turn ends."""
        self._drafts: dict[str, _Draft] = {}
        """All documents of this process, by id."""
        self._pending: set[asyncio.Future[None]] = set()
        self._progress_at = float("-inf")
        self._failed: DroppedError | EndedError | None = None
        """The error because of which something was not stored."""

    @classmethod
    async def begin(cls, database: Database, writer: Writer, claim: Claim, owner: str) -> Recorder:
        """Makes a recorder that starts from what is already stored, which belongs to this owner from now on."""
        recorder = cls(database, writer, claim.record, owner)
        if claim.record.fork is not None:
            await forks.copy_trunk(database, claim.record, owner)
        if claim.record.fork is not None or not claim.fresh:
            await recorder._take_over(fresh=claim.fresh)
        recorder._refuse_without_trunk()
        return recorder

    def close(self) -> None:
        """Stops writing."""
        for draft in self._drafts.values():
            _stop(draft)
        self._drafts.clear()

    # ---- what is known ----

    def calls_of(self, turn: int) -> list[DispatchedSamplingTask]:
        """The stored calls of a turn that gave tokens, in their order."""
        return [call for call in self._calls.values() if call.turn == turn]

    def prompt_of(self, call: DispatchedSamplingTask) -> list[int]:
        """The whole prompt of a call, of which its document stores only the part that no other call has."""
        return list(self._tree.prompt(call.index))

    def output_of(self, turn: int) -> list[int]:
        """The tokens that were sampled in a turn, by all its calls."""
        return [token for call in self.calls_of(turn) for token in self._tree.output(call.index)]

    def tool_calls_of(self, turn: int) -> list[ToolCall]:
        return list(self._turns[turn].call.tool_calls) if turn in self._turns else []

    @property
    def has_tool_calls(self) -> bool:
        """Whether any turn has tool calls, even a turn that is not over, because a requested call may have run."""
        return any(call.status != ToolCallStatus.REFUSED for call in self._tool_calls.values())

    def has_requested(self, tool_call: str) -> bool:
        return tool_call in self._tool_calls

    async def whole_result(self, call: ToolCall) -> str:
        """The whole result, also if only the ends of it are in the document."""
        return await chunks.whole(self._database, call.id, "result") or call.result

    @property
    def next_index(self) -> int:
        """The index of the next model call."""
        return self._next_call

    @property
    def reached(self) -> Reached:
        """How far the episode is, once everything is settled."""
        own = [run for index, run in self.runs.items() if index not in self.context]
        versions = sorted({version for run in own for version, count in run if count})
        return Reached(
            turns=sum(draft.call.over_at is not None for draft in self._turns.values()),
            generated_tokens=sum(len(self._tree.output(index)) for index in self._calls),
            oldest_version=min(versions, default=None),
            newest_version=max(versions, default=None),
            versions=versions,
        )

    @property
    def own_tokens(self) -> int:
        """The number of generated tokens, without those of a fork's trunk."""
        own = [index for index, call in self._calls.items() if call.turn >= self.trunk_turns]
        return sum(len(self._tree.output(index)) for index in own)

    @property
    def tree(self) -> TokenTree:
        return self._tree

    @property
    def context(self) -> set[int]:
        """Calls of the trunk of a branch, whose tokens do not train."""
        return {index for index, call in self._calls.items() if call.context}

    @property
    def trunk_turns(self) -> int:
        """How many turns the trunk of a fork has."""
        fork = self.record.fork
        return 0 if fork is None else fork.turns + bool(fork.call)

    @property
    def trunk_calls(self) -> dict[str, EarlierCall]:
        """The tool calls in the trunk of a fork, with their places."""
        of_trunk = {id: self._tool_calls[id] for id in self._trunk}
        return {id: replays.place_of(call, self._trunk[id]) for id, call in of_trunk.items()}

    def tool_call(self, id: str) -> ToolCall:
        return self._tool_calls[id]

    @property
    def has_own_tool_calls(self) -> bool:
        """Whether there are tool calls besides those of the trunk."""
        return len(self._tool_calls) > len(self._trunk)

    @property
    def runs(self) -> dict[int, list[tuple[int, int]]]:
        """The versions of each call's output."""
        return {index: call.versions for index, call in self._calls.items()}

    # ---- model calls ----

    def sent(
        self, turn: int, prompt: list[int], sampling: Sampling, engine: str, branch: str = ""
    ) -> DispatchedSamplingTask:
        """Notes a call that goes to an engine now. It need not be durable yet, because nothing depends on it."""
        index, self._next_call = self._next_call, self._next_call + 1
        base, length = self._tree.base(prompt)
        call = DispatchedSamplingTask(
            id=call_id(self.record.id, index),
            record=self.record.id,
            task=self.record.task,
            turn=turn,
            branch=branch,
            index=index,
            owner=self._owner,
            base="" if base is None else call_id(self.record.id, base),
            base_length=length,
            prompt=pack_ids(prompt[length:]),
            sampling=sampling.kept(),
            engine=engine,
            sent_at=now(),
        )
        self._drafts[call.id] = draft = _Draft(call)
        self._write_soon(draft)
        return call

    def answered(self, call: DispatchedSamplingTask, prompt: list[int], made: Generated) -> None:
        call.status = CallStatus.PARTIAL if made.finish == "abort" else CallStatus.DONE
        call.finish_reason = made.finish
        call.output = pack_ids(made.ids)
        call.log_probs = pack_floats(made.log_probs)
        call.versions = version_runs.joined(made.versions)
        self._remember(call, prompt, made.ids)
        self._turns[call.turn] = draft = self._answered(call)
        if call.status == CallStatus.PARTIAL:
            self._write(draft)

    def failed(self, call: DispatchedSamplingTask, why: str) -> None:
        call.status = CallStatus.FAILED
        call.error = why[:2000]
        self._write(self._answered(call))

    # ---- turns ----

    def parsed(self, turn: int, text: str, parsed: Sequence[ParsedCall], began_at: datetime) -> None:
        """What the output of a turn says."""
        draft = self._turns[turn]
        if draft.call.over_at is None:
            draft.call.text, draft.call.parsed, draft.call.began_at = text, list(parsed), began_at
            draft.fields |= {"text", "parsed", "began_at"}
            self._write_soon(draft)

    def turn_over(self, turn: int, *, last: bool = False) -> None:
        """The turn with all its tool calls is complete. After the last turn, the end of the Record stores the
        progress."""
        draft = self._turns[turn]
        if draft.call.over_at is not None:
            return
        draft.call.over_at = now()
        draft.fields.add("over_at")
        self._write(draft)
        if not last and time.monotonic() >= self._progress_at + PROGRESS_EVERY_S:
            self._progress_at = time.monotonic()
            update = claims.progress(self.record.id, self._owner, self.reached)
            self._watch(self._writer.progress(self.record.id, self._owner, update))

    # ---- tool calls ----

    async def requested(
        self,
        turn: int,
        number: int,
        *,
        server: str,
        tool: str,
        arguments: dict[str, Any],
        session: str,
        durable: bool = True,
    ) -> ToolCall:
        """Makes a tool call that may be sent when this returns. With `durable` the call is stored then, and all before
        it.

        Without it, only everything before this turn is stored. A sampler that takes over knows only the highest stored
        index of a model call; if two indexes were missing, it would use the id of this tool call for another call.
        """
        draft = self._turns[turn]
        call = ToolCall(
            id=tool_call_id(draft.call.id, number),
            server=server,
            tool=tool,
            arguments=arguments,
            session=session,
            requested_at=now(),
        )
        self._tool_calls[call.id] = call
        draft.call.tool_calls.append(call)
        draft.new.append(call)
        self._write_soon(draft)
        if durable:
            # Calls that begin at the same moment go out together.
            await asyncio.sleep(0)
            await self.settled()
        else:
            await self._written()
        return call

    def tool_runs(self, call: ToolCall) -> None:
        """A toolbox has accepted the call."""
        self._moved(call, ToolCallStatus.RUNNING)

    def tool_moved(self, call: ToolCall, status: ToolCallStatus, answer: CallAnswer | None = None) -> None:
        """The call has ended."""
        if answer is not None:
            call.error_class = answer.error_class
            call.result = answer.content
            call.latency_s = answer.latency_s
            call.tried_again = answer.tried_again
        call.done_at = now()
        self._moved(call, status)

    # ---- durability ----

    async def settled(self) -> None:
        """Returns when everything up to now is durable."""
        for draft in list(self._drafts.values()):
            if draft.is_dirty and draft.call.status != CallStatus.SENT:
                self._write(draft)
        await self._written()

    def give_up_open(self, why: str, *, tool_calls: bool = True) -> None:
        """Ends what is still open. Tool calls stay open if another sampler will join them."""
        for draft in list(self._drafts.values()):
            if draft.call.status == CallStatus.SENT:
                self.failed(draft.call, why)
        for tool_call in self._tool_calls.values() if tool_calls else ():
            if tool_call.status in _UNDER_WAY:
                lost = CallAnswer(status="lost", error_class="infrastructure", content=why)
                self.tool_moved(tool_call, ToolCallStatus.LOST, lost)

    # ---- inside ----

    async def _take_over(self, *, fresh: bool) -> None:
        """`fresh`: no sampler had the record before, so only the trunk of a fork can be stored."""
        taken = calls.stored if fresh else calls.take_over
        trunk = await taken(self._database, self.record.id, self.record.task, self._owner)
        prompts = span_lists.full_prompts(calls.stored_calls(trunk.answered))
        for document in trunk.answered:
            self._remember(document, prompts[document.index], unpack_ids(document.output))
            self._turns[document.turn] = self._drafts[document.id] = _Draft(document, stored=True)
        self._next_call = trunk.next_call
        self._tool_calls = {one.id: one for document in trunk.calls for one in document.tool_calls}
        self._trunk = {
            one.id: document.turn for document in trunk.calls for one in document.tool_calls if one.copied_from
        }

    def _refuse_without_trunk(self) -> None:
        """Refuses a fork without the calls of its base: it would sample its trunk again, and train what must not
        train."""
        there = {call.turn for call in self._calls.values() if call.status == CallStatus.DONE}
        if self.record.fork is not None and (gone := {*range(self.trunk_turns)} - there):
            why = f"turn {min(gone)} of its base {self.record.fork.base} is not stored any more"
            raise EndedError(Outcome.NOT_REPRODUCIBLE, why)

    def _remember(self, document: DispatchedSamplingTask, prompt: list[int], output: list[int]) -> None:
        self._calls[document.index] = document
        self._tree.insert(document.index, prompt, output)

    def _answered(self, call: DispatchedSamplingTask) -> _Draft:
        draft = self._drafts[call.id]
        call.done_at = now()
        draft.fields.update(_ANSWER)
        self._write_soon(draft)
        return draft

    def _moved(self, call: ToolCall, status: ToolCallStatus) -> None:
        draft = self._drafts[call.id.rpartition(".")[0]]
        call.status = status
        draft.moved[call.id] = call
        self._write_soon(draft)

    def _write_soon(self, draft: _Draft) -> None:
        """Writes the turn soon, unless it is over before."""
        if draft.timer is None:
            draft.timer = asyncio.get_running_loop().call_later(SHOWN_AFTER_S, self._write, draft)

    def _write(self, draft: _Draft) -> None:
        """Queues the writes in order now; `settled` waits for them."""
        _stop(draft)
        fields, moved, new = sorted(draft.fields), draft.moved, draft.new
        draft.fields, draft.moved, draft.new = set(), {}, []
        if self._failed is not None:
            return
        if not draft.stored:
            draft.stored = True
            self._watch(self._writer.insert(draft.call))
            return
        known = [call for id, call in moved.items() if id not in {one.id for one in new}]
        if new:
            # An answer and its tool calls are one write, so a crash never leaves tool calls on a model call without
            # tokens.
            self._watch(self._writer.update(draft.call, fields, new=new))
            fields = []
        if fields or known:
            self._watch(self._writer.update(draft.call, fields, known))

    async def _written(self) -> None:
        """Waits until what the writer got up to now is durable."""
        while self._pending:
            await asyncio.wait(self._pending)
            done = [write for write in self._pending if write.done()]
            self._pending.difference_update(done)
        if self._failed is not None:
            raise self._failed

    def _watch(self, written: asyncio.Future[None]) -> None:
        written.add_done_callback(self._note)
        self._pending.add(written)

    def _note(self, written: asyncio.Future[None]) -> None:
        if written.cancelled() or (error := written.exception()) is None or self._failed is not None:
            return
        try:
            with ending_errors():
                raise error
        except (DroppedError, EndedError) as failed:
            self._failed = failed
        except Exception as broken:  # noqa: BLE001 - it ends the episode, which logs it
            self._failed = EndedError(Outcome.STORE_FAILED, f"{type(broken).__name__}: {broken}")


def _stop(draft: _Draft) -> None:
    if draft.timer is not None:
        draft.timer.cancel()
        draft.timer = None


@contextlib.contextmanager
def ending_errors() -> Iterator[None]:
    """Turns the error of a refused write into an error that ends the episode."""
    try:
        yield
    except OwnershipError:
        raise DroppedError from None
    except AgentrlError as failed:
        raise EndedError(Outcome.STORE_FAILED, str(failed)) from failed

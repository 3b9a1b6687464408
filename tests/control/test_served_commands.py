"""Commands that a unit serves: each request gets one answer and is executed once, even if the unit dies."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from agentrl.control.handlers import command_forwarding
from agentrl.control.handlers.command_forwarding import ServedCommands
from agentrl.control.messaging.peers import Kind, Known, Peers
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.state.observed_state import ObservedState
from agentrl.control.state.operations import Operation, Operations
from agentrl.errors import RefusedError, UnavailableError, WaitTimeoutError
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.data_commands import Done, RequeueTasks
from agentrl.protocol.messages import Request, UnitReport
from agentrl.protocol.messages.served_commands import AskUnit, UnitAnswer
from agentrl.protocol.rows import OperationState, UnitState
from agentrl.protocol.wire import decode_from_coordinator, raw
from agentrl.supervision.liveness import Leases
from agentrl.supervision.unit_slots import RunState, Slot, State
from agentrl.transport.hub import Hub, Peer
from tests.waiting import aeventually

LISTING = COMMANDS["list_tasks"]


class Room:
    """The handler of served commands, with a steward that the test controls."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked: list[AskUnit] = []
        self.slot = Slot("steward-0", "steward", 0, state=UnitState.READY, incarnation=3, tree_gone=False)
        state = State(RunState(up=True), slots={"steward-0": self.slot})
        self.operations = Operations(state, lambda operation: None)
        self.peers = Peers()
        self.peers.hub = cast(Hub, SimpleNamespace(send=self._send))
        self.asks = PendingRequests(self.peers)
        self.observed = ObservedState(state, Leases(6.0, 20.0))
        context = SimpleNamespace(
            state=state,
            peers=self.peers,
            operations=self.operations,
            clock=SimpleNamespace(now=lambda: self.now),
            observed=self.observed,
        )
        self.serving = ServedCommands(cast(Any, context), self.asks)
        self.connect()

    def connect(self) -> None:
        self.peers.welcome(Peer.__new__(Peer), Known(Kind.UNIT, "steward-0", self.slot.incarnation))

    def _send(self, peer: Peer, frame: bytes) -> bool:
        message = decode_from_coordinator(frame)
        assert isinstance(message, AskUnit)
        self.asked.append(message)
        return True

    async def question(self, number: int) -> AskUnit:
        await aeventually(lambda: len(self.asked) > number, what=f"question {number}")
        return self.asked[number]

    def answer(self, question: AskUnit, result: Any = None, **refusal: Any) -> None:
        steward = Known(Kind.UNIT, "steward-0", self.slot.incarnation)
        self.asks.answered(steward, question.ask, UnitAnswer(question.ask, raw(result), **refusal))

    def operation(self) -> Operation:
        args = bytes(raw(RequeueTasks(("a/b/0/000001",))))
        operation = Operation("op-1", "requeue_tasks", args, "", "ann", OperationState.ACCEPTED, 100.0, 160.0)
        self.operations.add(operation)
        self.serving.carry_out(operation)
        self.operations.begin(operation, {})
        return operation


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_forwarding, "ASK_AGAIN_S", 0.001)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"state": UnitState.BACKOFF, "reason": "exit 1", "timer": 112.4}, "steward-0 is backoff for 12 s: exit 1"),
        ({"state": UnitState.FATAL, "reason": "too many deaths"}, "steward-0 is fatal: too many deaths"),
        ({"incarnation": 4}, "steward-0 is not connected"),
        ({"group": "other"}, "this run has none"),
    ],
)
async def test_unit_that_is_not_ready_gets_no_request(change: dict[str, Any], says: str) -> None:
    room = Room()
    for name, value in change.items():
        setattr(room.slot, name, value)
    with pytest.raises(UnavailableError, match=says):
        await room.serving.ask(LISTING, Request("1", "list_tasks"), "ann")
    assert not room.asked


async def test_run_without_units_yet_is_not_reported_as_without_steward() -> None:
    room = Room()
    room.serving._context.state.slots.clear()
    with pytest.raises(UnavailableError, match="the run has no unit yet") as caught:
        await room.serving.ask(LISTING, Request("1", "list_tasks"), "ann")
    assert "run file" not in caught.value.hint


async def test_refusal_has_the_status_of_a_starting_unit() -> None:
    room = Room()
    room.slot.state = UnitState.STARTING
    room.observed.facts(room.slot).report = UnitReport(status="reading datasets")
    with pytest.raises(UnavailableError, match="steward-0 is starting: reading datasets"):
        await room.serving.ask(LISTING, Request("1", "list_tasks"), "ann")


async def test_answer_is_relayed_unchanged_and_refusal_with_its_code() -> None:
    room = Room()
    listing = asyncio.create_task(room.serving.ask(LISTING, Request("1", "list_tasks", deadline_ct=110.0), "ann"))
    question = await room.question(0)
    assert (question.name, question.who, question.within_s) == ("list_tasks", "ann", 9.0)
    room.answer(question, {"rows": [1]})
    assert msgspec.msgpack.decode(await listing) == {"rows": [1]}
    refused = asyncio.create_task(room.serving.ask(LISTING, Request("2", "list_tasks"), "ann"))
    room.answer(await room.question(1), error="It is leased.", code=4, hint="Wait.")
    with pytest.raises(RefusedError, match="It is leased") as caught:
        await refused
    assert caught.value.hint == "Wait."


async def test_request_to_a_dying_or_silent_unit_fails() -> None:
    room = Room()
    dying = asyncio.create_task(room.serving.ask(LISTING, Request("1", "list_tasks"), "ann"))
    await room.question(0)
    room.asks.died("steward-0", 2)
    assert not dying.done(), "another life has nothing to do with it"
    room.asks.died("steward-0", 3)
    with pytest.raises(UnavailableError, match=r"steward-0\.3 died"):
        await dying
    with pytest.raises(WaitTimeoutError):
        await room.serving.ask(LISTING, Request("2", "list_tasks", deadline_ct=100.05), "ann")


async def test_accepted_command_is_sent_with_the_same_id_until_done() -> None:
    room = Room()
    operation = room.operation()
    await room.question(0)
    room.slot.state, room.slot.reason = UnitState.BACKOFF, "exit 1"
    room.asks.died("steward-0", 3)
    await aeventually(lambda: operation.waiting_for and "backoff" in operation.waiting_for[0])
    room.slot.state, room.slot.incarnation = UnitState.READY, 4
    room.connect()
    question = await room.question(1)
    assert (question.id, question.dry_run) == ("op-1", False)
    room.answer(question, Done(("done",), {"requeued": 1}))
    await aeventually(lambda: operation.state is OperationState.SUCCEEDED)
    assert (operation.result, operation.lines, len(room.asked)) == ({"requeued": 1}, ["done"], 2)


async def test_refused_operation_fails_with_the_message_of_the_unit() -> None:
    room = Room()
    operation = room.operation()
    room.answer(await room.question(0), error="It is leased.", code=4)
    await aeventually(lambda: operation.state is OperationState.FAILED)
    assert operation.reason == "It is leased."


async def test_command_is_not_sent_after_its_deadline() -> None:
    room = Room()
    room.slot.state = UnitState.STOPPED
    operation = room.operation()
    await aeventually(lambda: operation.waiting_for)
    room.now = 161.0
    room.operations.review(room.now)
    assert operation.state is OperationState.FAILED
    room.slot.state = UnitState.READY
    await aeventually(lambda: not room.serving._tasks, what="the end of asking")
    assert not room.asked

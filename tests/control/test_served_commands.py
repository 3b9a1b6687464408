"""Commands that a unit serves: each request gets one answer and is executed once, even if the unit dies."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.control.handlers import command_forwarding
from agentrl.control.handlers.command_forwarding import ServedCommands
from agentrl.control.messaging.peers import Kind, Known, Peers
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.state.observed_state import ObservedState
from agentrl.control.state.operations import Operation, Operations
from agentrl.errors import RefusedError, UnavailableError, WaitTimeoutError
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.data_changes import Done, RequeueTasks
from agentrl.protocol.messages import Request, UnitReport
from agentrl.protocol.messages.served_commands import AskUnit, UnitAnswer
from agentrl.protocol.rows import OperationState, UnitState
from agentrl.protocol.wire import decode_from_coordinator, raw
from agentrl.supervision.liveness import Leases
from agentrl.supervision.unit_slots import RunState, Slot, State
from agentrl.transport.hub import Hub, Peer
from tests.waiting import aeventually

LISTING = COMMANDS["list_tasks"]


class FakeContext:
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
            supervisor=SimpleNamespace(times=SupervisionTimes()),
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
    fake = FakeContext()
    for name, value in change.items():
        setattr(fake.slot, name, value)
    with pytest.raises(UnavailableError, match=says):
        await fake.serving.ask(LISTING, Request("1", "list_tasks"), "ann")
    assert not fake.asked


async def test_run_without_units_yet_is_not_reported_as_without_steward() -> None:
    fake = FakeContext()
    fake.serving._context.state.slots.clear()
    with pytest.raises(UnavailableError, match="the run has no unit yet") as caught:
        await fake.serving.ask(LISTING, Request("1", "list_tasks"), "ann")
    assert "run file" not in caught.value.hint


async def test_refusal_has_the_status_of_a_starting_unit() -> None:
    fake = FakeContext()
    fake.slot.state = UnitState.STARTING
    fake.observed.facts(fake.slot).report = UnitReport(status="reading datasets")
    with pytest.raises(UnavailableError, match="steward-0 is starting: reading datasets"):
        await fake.serving.ask(LISTING, Request("1", "list_tasks"), "ann")


async def test_answer_is_relayed_unchanged_and_refusal_with_its_code() -> None:
    fake = FakeContext()
    listing = asyncio.create_task(fake.serving.ask(LISTING, Request("1", "list_tasks", deadline_ct=110.0), "ann"))
    question = await fake.question(0)
    assert (question.name, question.who, question.within_s) == ("list_tasks", "ann", 9.0)
    fake.answer(question, {"rows": [1]})
    assert msgspec.msgpack.decode(await listing) == {"rows": [1]}
    refused = asyncio.create_task(fake.serving.ask(LISTING, Request("2", "list_tasks"), "ann"))
    fake.answer(await fake.question(1), error="It is leased.", code=4, hint="Wait.")
    with pytest.raises(RefusedError, match="It is leased") as caught:
        await refused
    assert caught.value.hint == "Wait."


async def test_request_to_a_dying_or_silent_unit_fails() -> None:
    fake = FakeContext()
    dying = asyncio.create_task(fake.serving.ask(LISTING, Request("1", "list_tasks"), "ann"))
    await fake.question(0)
    fake.asks.died("steward-0", 2)
    assert not dying.done(), "the death of another incarnation does not matter"
    fake.asks.died("steward-0", 3)
    with pytest.raises(UnavailableError, match=r"steward-0\.3 died"):
        await dying
    with pytest.raises(WaitTimeoutError):
        await fake.serving.ask(LISTING, Request("2", "list_tasks", deadline_ct=100.05), "ann")


async def test_accepted_command_is_sent_with_the_same_id_until_done() -> None:
    fake = FakeContext()
    operation = fake.operation()
    await fake.question(0)
    fake.slot.state, fake.slot.reason = UnitState.BACKOFF, "exit 1"
    fake.asks.died("steward-0", 3)
    await aeventually(lambda: operation.waiting_for and "backoff" in operation.waiting_for[0])
    fake.slot.state, fake.slot.incarnation = UnitState.READY, 4
    fake.connect()
    question = await fake.question(1)
    assert (question.id, question.dry_run) == ("op-1", False)
    fake.answer(question, Done(("done",), {"requeued": 1}))
    await aeventually(lambda: operation.state is OperationState.SUCCEEDED)
    assert (operation.result, operation.lines, len(fake.asked)) == ({"requeued": 1}, ["done"], 2)


async def test_refused_operation_fails_with_the_message_of_the_unit() -> None:
    fake = FakeContext()
    operation = fake.operation()
    fake.answer(await fake.question(0), error="It is leased.", code=4)
    await aeventually(lambda: operation.state is OperationState.FAILED)
    assert operation.reason == "It is leased."


async def test_command_is_not_sent_after_its_deadline() -> None:
    fake = FakeContext()
    fake.slot.state = UnitState.STOPPED
    operation = fake.operation()
    await aeventually(lambda: operation.waiting_for)
    fake.now = 161.0
    fake.operations.review(fake.now)
    assert operation.state is OperationState.FAILED
    fake.slot.state = UnitState.READY
    await aeventually(lambda: not fake.serving._tasks, what="the end of asking")
    assert not fake.asked


async def test_operation_stays_open_as_long_as_its_unit_works_on_it() -> None:
    fake = FakeContext()
    operation = fake.operation()
    for_s = SupervisionTimes().operation_deadline_s
    for number in range(5):
        fake.answer(await fake.question(number), Done(under_way=f"{number} of 5 ended"))
        await fake.question(number + 1)
        fake.now += 0.9 * for_s
        fake.operations.review(fake.now)
        assert (operation.state, operation.waiting_for) == (OperationState.RUNNING, (f"{number} of 5 ended",))
    fake.answer(await fake.question(5), Done(("all",)))
    await aeventually(lambda: operation.state is OperationState.SUCCEEDED)


async def test_operation_of_a_unit_that_does_not_answer_ends_at_its_deadline() -> None:
    fake = FakeContext()
    operation = fake.operation()
    fake.answer(await fake.question(0), Done(under_way="0 of 5 ended"))
    await fake.question(1)
    fake.now += 1.1 * SupervisionTimes().operation_deadline_s
    fake.operations.review(fake.now)
    assert operation.state is OperationState.FAILED
    assert "0 of 5 ended" in operation.reason


async def test_operation_whose_deadline_passed_while_the_coordinator_was_away_goes_on() -> None:
    fake = FakeContext()
    fake.now += 10_000.0
    operation = fake.operation()
    fake.operations.review(fake.now)
    assert operation.state is OperationState.RUNNING
    fake.answer(await fake.question(0), Done(("all",)))
    await aeventually(lambda: operation.state is OperationState.SUCCEEDED)

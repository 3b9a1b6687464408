"""Commands that all toolboxes serve: a toolbox that does not answer is named and delays nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrl.control.handlers import command_forwarding
from agentrl.control.messaging.peers import Kind, Known
from agentrl.control.state.operations import Operation
from agentrl.errors import UnavailableError, UnknownNameError
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.data_changes import Done
from agentrl.protocol.effects import Effect
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages import Request
from agentrl.protocol.messages.served_commands import AskUnit, UnitAnswer
from agentrl.protocol.rows import OperationState, UnitState
from agentrl.protocol.tool_commands import ExecInSandbox, JoinedRows, ListToolServers, MissingUnit, RestartTool
from agentrl.protocol.wire import decode_as, decode_from_coordinator, raw
from agentrl.supervision.unit_slots import Slot
from agentrl.transport.hub import Peer
from tests.control.test_served_commands import FakeContext
from tests.waiting import aeventually


class Toolboxes(FakeContext):
    """The handler of served commands, with toolboxes that the test controls."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.slots = [
            Slot(f"toolbox-{n}", "toolbox", n, state=UnitState.READY, incarnation=1, tree_gone=False)
            for n in range(count)
        ]
        self.serving._context.state.slots = {slot.unit: slot for slot in self.slots}
        self.questions: dict[str, AskUnit] = {}
        self._units: dict[Peer, str] = {}
        for slot in self.slots:
            self.welcome(slot)

    def connect(self) -> None:
        """No steward connects."""

    def welcome(self, slot: Slot) -> None:
        peer = Peer.__new__(Peer)
        self._units[peer] = slot.unit
        self.peers.welcome(peer, Known(Kind.UNIT, slot.unit, slot.incarnation))

    def _send(self, peer: Peer, frame: bytes) -> bool:
        message = decode_from_coordinator(frame)
        assert isinstance(message, AskUnit)
        self.questions[self._units[peer]] = message
        return True

    def ask(self, name: str, args: Args, *, dry_run: bool = False) -> asyncio.Task[Any]:
        request = Request("1", name, raw(args), dry_run=dry_run)
        return asyncio.create_task(self.serving.ask(COMMANDS[name], request, "ann"))

    async def answers(self, number: int, result: Any = None, **refusal: Any) -> None:
        unit = f"toolbox-{number}"
        await aeventually(lambda: unit in self.questions, what=f"a question to {unit}")
        question = self.questions.pop(unit)
        known = Known(Kind.UNIT, unit, self.slots[number].incarnation)
        self.asks.answered(known, question.ask, UnitAnswer(question.ask, raw(result), **refusal))

    def begins(self, name: str, args: Args) -> Operation:
        operation = Operation("op", name, bytes(raw(args)), "", "ann", OperationState.ACCEPTED, 100.0, 160.0)
        self.operations.add(operation)
        self.serving.carry_out(operation)
        self.operations.begin(operation, {})
        return operation

    def dies(self, number: int) -> None:
        slot = self.slots[number]
        slot.state, slot.reason, slot.timer = UnitState.BACKOFF, "killed by SIGKILL", self.now + 3
        self.asks.died(slot.unit, slot.incarnation)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_forwarding, "ASK_AGAIN_S", 0.001)


@pytest.fixture
def _silence_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long enough for the answers of others on a busy machine."""
    monkeypatch.setattr(command_forwarding, "JOINED_WITHIN_S", 1.0)


def joined(answer: Any) -> JoinedRows[Any]:
    return decode_as(JoinedRows[Any], answer)


@pytest.mark.usefixtures("_silence_is_short")
async def test_answer_names_the_toolboxes_that_are_silent_dying_or_not_ready() -> None:
    fake = Toolboxes(4)
    fake.slots[1].state, fake.slots[1].reason = UnitState.FATAL, "too many deaths"
    asking = fake.ask("list_tool_servers", ListToolServers())
    await fake.answers(0, [{"id": "shop"}])
    await aeventually(lambda: "toolbox-3" in fake.questions)
    fake.dies(3)
    found = joined(await asking)
    assert found.rows == [{"id": "shop"}]
    assert sorted(found.missing, key=lambda each: each.unit) == [
        MissingUnit("toolbox-1", "fatal: too many deaths"),
        MissingUnit("toolbox-2", "did not answer within 1 s"),
        MissingUnit("toolbox-3", "died before it answered"),
    ]


async def test_toolbox_that_drains_still_answers_queries() -> None:
    fake = Toolboxes(2)
    fake.slots[1].state = UnitState.DRAINING
    asking = fake.ask("list_tool_servers", ListToolServers())
    await fake.answers(0, [1])
    await fake.answers(1, [2])
    assert joined(await asking) == JoinedRows([1, 2])


async def test_refusal_names_the_toolboxes_that_could_know_the_name() -> None:
    fake = Toolboxes(2)
    fake.slots[1].state, fake.slots[1].reason = UnitState.FATAL, "too many deaths"
    asking = fake.ask("list_tool_servers", ListToolServers("shoop"))
    await fake.answers(0, error="There is no server shoop.", code=5, hint="Servers are: shop.")
    with pytest.raises(UnknownNameError, match="no server shoop") as caught:
        await asking
    assert caught.value.hint == "Not asked: toolbox-1 (fatal: too many deaths). Servers are: shop."


@pytest.mark.usefixtures("_silence_is_short")
async def test_query_without_any_answer_is_refused_with_all_reasons() -> None:
    fake = Toolboxes(2)
    with pytest.raises(UnavailableError, match=r"toolbox-0 \(did not answer within 1 s\), toolbox-1 \(did not"):
        await fake.ask("list_tool_servers", ListToolServers())


async def test_preview_and_result_of_a_restart_name_toolboxes_that_are_not_ready() -> None:
    fake = Toolboxes(3)
    fake.slots[1].state, fake.slots[1].reason = UnitState.FATAL, "too many deaths"
    asking = fake.ask("restart_tool", RestartTool(server="shop"), dry_run=True)
    await fake.answers(0, Effect(starts=("a",), notes=("no session waits",)))
    await fake.answers(2, Effect(starts=("b",)))
    effect = decode_as(Effect, await asking)
    assert effect == Effect(starts=("a", "b"), notes=("no session waits", "without toolbox-1 (fatal: too many deaths)"))

    asking = fake.ask("restart_tool", RestartTool(server="shop"))
    await fake.answers(0, Done(("toolbox-0 replaced 1 process",)))
    await fake.answers(2, Done(("toolbox-2 replaced 1 process",)))
    assert decode_as(Done, await asking).lines[-1] == "without toolbox-1 (fatal: too many deaths)"


async def test_restart_ends_without_a_toolbox_that_dies_meanwhile() -> None:
    fake = Toolboxes(2)
    operation = fake.begins("restart_tool", RestartTool(server="shop"))
    await fake.answers(0, Done(("0",)))
    await aeventually(lambda: "toolbox-1" in fake.questions)
    fake.dies(1)
    await fake.answers(0, Done(("0",)))
    await aeventually(lambda: operation.state is OperationState.SUCCEEDED)
    assert operation.lines == ["0", "without toolbox-1 (backoff for 3 s: killed by SIGKILL)"]


async def test_command_that_names_an_incarnation_reaches_only_that_one() -> None:
    fake = Toolboxes(2)
    asking = fake.ask("exec_in_sandbox", ExecInSandbox("toolbox-1.1/shop-1", ("ls",)), dry_run=True)
    await fake.answers(1, Effect(changes=("runs ls",)))
    assert decode_as(Effect, await asking) == Effect(changes=("runs ls",))
    assert not fake.questions


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (
            "backoff",
            r"toolbox-1\.1 has ended, with its sandboxes and sessions; toolbox-1 is backoff for 3 s: killed",
        ),
        ("next", r"toolbox-1\.1 has ended, with its sandboxes and sessions; toolbox-1\.2 took its place"),
        ("starting", r"toolbox-1\.1 has ended, with its sandboxes and sessions; toolbox-1 is starting"),
        ("gone", r"There is no toolbox toolbox-1\.1"),
    ],
)
async def test_command_on_a_sandbox_of_a_dead_toolbox_is_refused_with_what_became_of_it(now: str, says: str) -> None:
    fake = Toolboxes(2)
    fake.dies(1)
    if now == "gone":
        fake.serving._context.state.forget(fake.slots[1])
    elif now != "backoff":
        fake.slots[1].incarnation = 2
        fake.slots[1].state = UnitState.READY if now == "next" else UnitState.STARTING
        fake.welcome(fake.slots[1])
    with pytest.raises(UnknownNameError, match=says) as caught:
        await fake.ask("exec_in_sandbox", ExecInSandbox("toolbox-1.1/shop-1", ("ls",)))
    assert "agentrl tools sandboxes" in caught.value.hint


async def test_program_whose_toolbox_dies_ends_as_failed_at_once() -> None:
    fake = Toolboxes(1)
    operation = fake.begins("exec_in_sandbox", ExecInSandbox("toolbox-0.1/shop-1", ("sleep", "9")))
    await fake.answers(0, Done(under_way="sleep runs"))
    await aeventually(lambda: "toolbox-0" in fake.questions)
    fake.dies(0)
    await aeventually(lambda: operation.state is OperationState.FAILED)
    assert "toolbox-0.1 has ended, with its sandboxes" in operation.reason

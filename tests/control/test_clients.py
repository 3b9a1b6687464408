"""At the desk of the clients: every request gets one answer, whatever happens on the way to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from agentrl.control.commands.acts import Act

from agentrl.control.handlers.client_requests import UNFORESEEN, ClientHandler
from agentrl.control.messaging.peers import Kind, Known, Peers
from agentrl.control.state.operations import Operation, Operations
from agentrl.protocol import commands
from agentrl.protocol.effects import Effect
from agentrl.protocol.messages import ErrorReply, Request
from agentrl.protocol.rows import OperationState
from agentrl.protocol.wire import decode_from_coordinator, raw
from agentrl.supervision.unit_slots import RunState, State
from agentrl.transport.hub import Hub, Peer

WHO = Known(Kind.CLIENT, "somebody")


class Desk:
    """A desk whose acts and queries fail in ways that nobody foresaw."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.operations = Operations(State(RunState()), lambda operation: None)
        peers = Peers()
        peers.hub = cast(
            Hub, SimpleNamespace(send=lambda peer, frame: self.sent.append(decode_from_coordinator(frame)))
        )
        context = SimpleNamespace(
            peers=peers,
            operations=self.operations,
            clock=SimpleNamespace(now=lambda: 5.0),
            supervisor=SimpleNamespace(times=SimpleNamespace(operation_deadline_s=60.0)),
            executor=SimpleNamespace(flush=_nothing, put=_nothing, full=""),
            audit=_nothing,
            state=State(RunState()),
        )
        acts = {"pause": Act(lambda args: Effect(), _broken)}
        self.desk = ClientHandler(cast(Any, context), {"status": _broken}, acts, {}, cast(Any, None))
        self.peer = Peer.__new__(Peer)
        self.peer.local = True

    def ask(self, name: str, args: msgspec.Struct) -> ErrorReply:
        self.desk.request(self.peer, WHO, Request("the-id", name, raw(args)))
        (answer,) = self.sent
        assert isinstance(answer, ErrorReply)
        return answer


def _nothing(*args: object, **more: object) -> None:
    """Nobody looks."""


def _broken(*args: object) -> Any:
    raise ZeroDivisionError("nobody foresaw this")


@pytest.mark.parametrize(("name", "args"), [("status", commands.Status()), ("pause", commands.Pause("web"))])
def test_what_nobody_foresaw_is_answered_too(name: str, args: msgspec.Struct, caplog: pytest.LogCaptureFixture) -> None:
    answer = Desk().ask(name, args)
    assert (answer.id, answer.message) == ("the-id", UNFORESEEN)
    assert "nobody foresaw this" in caplog.text, "the log has the whole story"


def test_an_operation_that_cannot_be_begun_has_failed() -> None:
    told = Desk()
    told.ask("pause", commands.Pause("web"))
    operation = told.operations.get("the-id")
    assert operation is not None
    assert (operation.state, operation.reason) == (OperationState.FAILED, UNFORESEEN)


def test_the_next_coordinator_survives_what_it_cannot_begin_again() -> None:
    told = Desk()
    args = bytes(raw(commands.Pause("web")))
    operation = Operation("old", "pause", args, "", "somebody", OperationState.ACCEPTED, 1.0, 60.0)
    told.operations.add(operation)
    told.desk.begin_again()
    assert operation.state is OperationState.FAILED

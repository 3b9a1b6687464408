"""Requests of clients: each gets one answer, and a consent is used only for the effect that it was given for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from agentrl.control.commands.prepared import Prepared
from agentrl.control.handlers.client_requests import CONSENT_VALID_S, UNFORESEEN, ClientHandler
from agentrl.control.messaging.peers import Kind, Known, Peers
from agentrl.control.state.operations import Operation, Operations
from agentrl.errors import ExitCode
from agentrl.protocol import control_commands
from agentrl.protocol.control_commands import Accepted
from agentrl.protocol.effects import Consent, Effect, Tier
from agentrl.protocol.messages import ErrorReply, Permission, Reply, Request
from agentrl.protocol.rows import OperationState
from agentrl.protocol.wire import decode_as, decode_from_coordinator, raw
from agentrl.supervision.unit_slots import RunState, State
from agentrl.transport.hub import Hub, Peer
from tests.waiting import aeventually

WHO = Known(Kind.CLIENT, "somebody")
PAUSE = raw(control_commands.Pause("web"))
REVERSIBLE = Effect(changes=("the units of web take no new work",))
DISRUPTIVE = Effect(drains=("web-0",))


class FakeContext:
    """A handler with one command, `pause`, whose effect and execution a test chooses."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.executed: list[str] = []
        self.now = 5.0
        self.prepared = Prepared(REVERSIBLE, self._execute, {"group/web": "first"})
        self.operations = Operations(State(RunState()), lambda operation: None)
        peers = Peers()
        peers.hub = cast(
            Hub, SimpleNamespace(send=lambda peer, frame: self.sent.append(decode_from_coordinator(frame)))
        )
        context = SimpleNamespace(
            peers=peers,
            operations=self.operations,
            clock=SimpleNamespace(now=lambda: self.now),
            supervisor=SimpleNamespace(times=SimpleNamespace(operation_deadline_s=60.0)),
            executor=SimpleNamespace(flush=_nothing, put=_nothing, full="", then=lambda act: act()),
            audit=_nothing,
            keyring=None,
            local_peers=SimpleNamespace(permission=lambda peer: Permission.ADMIN),
            state=State(RunState()),
        )
        table: dict[str, Callable[[Any], Prepared]] = {"pause": lambda args: self.prepared}
        self.owners: dict[str, Any] = {}
        self.handler = ClientHandler(cast(Any, context), {"status": _broken}, table, self.owners, cast(Any, None))
        self.peer = Peer.__new__(Peer)
        self.peer.local = True

    def _execute(self, operation: Operation) -> None:
        self.executed.append(operation.id)

    def send(self, request: Request) -> None:
        self.handler.request(self.peer, WHO, request)

    def ask(self, request: Request) -> Any:
        self.send(request)
        return self.sent.pop()

    def preview(self) -> Consent:
        reply = self.ask(Request("preview", "pause", PAUSE, dry_run=True))
        assert isinstance(reply, Reply)
        return decode_as(Consent, reply.result)

    def pause(self, consent: Consent | None, id: str = "the-id") -> Accepted | ErrorReply:
        reply = self.ask(Request(id, "pause", PAUSE, consent=consent))
        return decode_as(Accepted, reply.result) if isinstance(reply, Reply) else cast(ErrorReply, reply)


def _nothing(*args: object, **more: object) -> None:
    """Does nothing."""


def _broken(*args: object) -> Any:
    raise ZeroDivisionError("a fault in the code")


# ---- consent ----


def test_preview_changes_nothing_and_says_how_long_its_consent_is_valid() -> None:
    fake = FakeContext()
    assert fake.preview() == Consent(REVERSIBLE, Tier.REVERSIBLE, 5.0 + CONSENT_VALID_S, {"group/web": "first"})
    assert not fake.executed
    assert not fake.operations.live()


def test_command_is_executed_with_the_consent_of_its_preview() -> None:
    fake = FakeContext()
    accepted = fake.pause(fake.preview())
    assert accepted == Accepted("the-id", REVERSIBLE, Tier.REVERSIBLE)
    assert fake.executed == ["the-id"]


def test_command_without_a_consent_is_executed() -> None:
    fake = FakeContext()
    assert isinstance(fake.pause(None), Accepted)


def test_effect_that_became_less_dangerous_is_executed() -> None:
    fake = FakeContext()
    fake.prepared = msgspec.structs.replace(fake.prepared, effect=DISRUPTIVE)
    consent = fake.preview()
    fake.prepared = msgspec.structs.replace(fake.prepared, effect=REVERSIBLE)
    assert isinstance(fake.pause(consent), Accepted)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"effect": DISRUPTIVE}, "would be disruptive now, and the consent is for reversible"),
        ({"revisions": {"group/web": "second"}}, "would act on a changed group/web"),
    ],
)
def test_command_whose_effect_changed_is_refused_with_the_new_effect(change: dict[str, Any], says: str) -> None:
    fake = FakeContext()
    consent = fake.preview()
    fake.prepared = msgspec.structs.replace(fake.prepared, **change)
    refused = fake.pause(consent)
    assert isinstance(refused, ErrorReply)
    assert (refused.code, refused.consent) == (ExitCode.CONFLICT, fake.preview())
    assert says in refused.message
    assert "nothing was done" in refused.message
    assert not fake.executed
    assert isinstance(fake.pause(refused.consent), Accepted), "the refusal brings a consent that can be given"


def test_expired_consent_is_refused() -> None:
    fake = FakeContext()
    consent = fake.preview()
    fake.now += CONSENT_VALID_S + 2.0
    refused = fake.pause(consent)
    assert isinstance(refused, ErrorReply)
    assert "came 2 s after the consent had expired" in refused.message


def test_consent_to_a_tier_does_not_look_at_revisions() -> None:
    fake = FakeContext()
    consent = fake.preview().to_tier()
    fake.prepared = msgspec.structs.replace(fake.prepared, revisions={"group/web": "second"})
    assert isinstance(fake.pause(consent), Accepted)
    fake.prepared = msgspec.structs.replace(fake.prepared, effect=DISRUPTIVE)
    assert isinstance(fake.pause(consent, "another-id"), ErrorReply)


def test_revision_of_a_unit_outside_the_effect_is_not_compared() -> None:
    fake = FakeContext()
    fake.prepared = msgspec.structs.replace(fake.prepared, revisions={"group/web": "first", "unit/web-3": "first"})
    consent = fake.preview()
    fake.prepared = msgspec.structs.replace(fake.prepared, revisions={"group/web": "first", "unit/web-1": "second"})
    assert isinstance(fake.pause(consent), Accepted)


def test_repeated_id_is_answered_and_not_executed_again() -> None:
    fake = FakeContext()
    consent = fake.preview()
    fake.pause(consent)
    fake.now += 2 * CONSENT_VALID_S
    again = fake.pause(consent)
    assert isinstance(again, Accepted)
    assert again.duplicate
    assert fake.executed == ["the-id"]


async def test_the_owner_computes_the_effect_of_a_command_with_a_consent() -> None:
    fake = FakeContext()
    worse = msgspec.structs.replace(fake.prepared, effect=DISRUPTIVE)

    async def ask(spec: object, request: object, args: object, who: object) -> Prepared:
        return worse

    fake.owners["pause"] = ask
    fake.send(Request("1", "pause", PAUSE, consent=Consent(REVERSIBLE, Tier.REVERSIBLE, 99.0)))
    await aeventually(lambda: fake.sent)
    assert isinstance(fake.sent.pop(), ErrorReply)
    assert isinstance(fake.pause(None), Accepted), "without a consent there is nothing to compare"


# ---- faults ----


@pytest.mark.parametrize(
    ("name", "args"), [("status", control_commands.Status()), ("pause", control_commands.Pause("web"))]
)
def test_a_fault_in_the_code_is_answered_and_logged(
    name: str, args: msgspec.Struct, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeContext()
    fake.prepared = Prepared(REVERSIBLE, _broken)
    answer = fake.ask(Request("the-id", name, raw(args)))
    assert (answer.id, answer.message) == ("the-id", UNFORESEEN)
    assert "a fault in the code" in caplog.text


def test_an_operation_that_cannot_begin_has_failed() -> None:
    fake = FakeContext()
    fake.prepared = Prepared(REVERSIBLE, _broken)
    fake.pause(None)
    operation = fake.operations.get("the-id")
    assert operation is not None
    assert (operation.state, operation.reason) == (OperationState.FAILED, UNFORESEEN)


@pytest.mark.parametrize("state", [OperationState.ACCEPTED, OperationState.RUNNING])
def test_the_next_coordinator_begins_only_operations_that_were_not_begun(state: OperationState) -> None:
    fake = FakeContext()
    fake.operations.add(Operation("old", "pause", bytes(PAUSE), "", "somebody", state, 1.0, 60.0))
    fake.handler.begin_again()
    assert fake.executed == (["old"] if state is OperationState.ACCEPTED else [])


def test_the_next_coordinator_survives_an_operation_that_cannot_begin() -> None:
    fake = FakeContext()
    fake.prepared = Prepared(REVERSIBLE, _broken)
    operation = Operation("old", "pause", bytes(PAUSE), "", "somebody", OperationState.ACCEPTED, 1.0, 60.0)
    fake.operations.add(operation)
    fake.handler.begin_again()
    assert operation.state is OperationState.FAILED

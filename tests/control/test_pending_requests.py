"""Requests of the coordinator to its peers: only the peer that received a request answers it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from agentrl.control.messaging.peers import Kind, Known, Peers
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.errors import UnavailableError, WaitTimeoutError
from agentrl.protocol import messages
from agentrl.protocol.messages import Answer, KnobPreviewed, ScanReport
from agentrl.protocol.messages.served_commands import UnitAnswer
from agentrl.protocol.wire import decode_from_coordinator, raw
from agentrl.transport.hub import Hub, Peer

HOST, UNIT = Known(Kind.HOST, "b"), Known(Kind.UNIT, "steward-0", 3)
OTHERS = (Known(Kind.HOST, "a"), Known(Kind.UNIT, "steward-0", 2), Known(Kind.UNIT, "web-0", 3), Known(Kind.HOST, "x"))
REPORT = ScanReport("b", 7)


class Wire:
    """Requests to one host and one unit, with the messages that were sent to them."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        peers = Peers()
        peers.hub = cast(Hub, self)
        for known in (HOST, UNIT):
            peers.welcome(Peer.__new__(Peer), known)
        self.requests = PendingRequests(peers)

    def send(self, peer: Peer, frame: bytes) -> bool:
        self.sent.append(decode_from_coordinator(frame))
        return True

    async def asked(self, work: Any) -> tuple[asyncio.Task[Any], str]:
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        return task, self.sent[-1].ask

    def scan(self, deadline_s: float = 60.0) -> Any:
        return self.requests.host("b", messages.ScanRun(), ScanReport, deadline_s)


async def test_ids_cannot_be_guessed() -> None:
    wire = Wire()
    asks = [await wire.asked(wire.scan(0.01)) for _ in range(3)]
    assert len({ask for _, ask in asks}) == 3
    assert all(len(ask) == 32 for _, ask in asks)
    for task, _ in asks:
        with pytest.raises(WaitTimeoutError):
            await task


async def test_only_the_host_that_was_asked_answers() -> None:
    wire = Wire()
    task, ask = await wire.asked(wire.scan())
    for other in (*OTHERS, UNIT):
        wire.requests.answered(other, ask, Answer(ask, raw(ScanReport("b", 0))))
    wire.requests.answered(HOST, ask, KnobPreviewed(ask, "nothing changes"))
    assert not task.done()
    wire.requests.answered(HOST, ask, Answer(ask, raw(REPORT)))
    wire.requests.answered(HOST, ask, Answer(ask, raw(ScanReport("b", 1))))
    assert await task == REPORT


async def test_only_the_incarnation_that_was_asked_answers() -> None:
    wire = Wire()
    request = messages.Request("1", "tasks")
    task, ask = await wire.asked(wire.requests.served("steward-0", 3, request, "ann", within_s=60))
    for other in (*OTHERS, HOST):
        wire.requests.answered(other, ask, UnitAnswer(ask, raw("forged")))
    wire.requests.answered(UNIT, ask, KnobPreviewed(ask, "nothing changes"))
    assert not task.done()
    wire.requests.answered(UNIT, ask, UnitAnswer(ask, raw("mine")))
    assert await task == raw("mine")
    task, _ = await wire.asked(wire.requests.unit("steward-0", 3, "knob", 1))
    wire.requests.died("steward-0", 2)
    wire.requests.died("steward-0", 3)
    with pytest.raises(UnavailableError, match=r"steward-0\.3 died"):
        await task

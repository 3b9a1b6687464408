"""`down` is proven only with a report from every host of the run."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from agentrl.control.clock import Clock
from agentrl.control.messaging.peers import Peers
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.shutdown import Shutdown
from agentrl.control.state.operations import Operation, Operations
from agentrl.protocol.messages import ScanReport
from agentrl.protocol.rows import OperationState
from agentrl.supervision.unit_slots import HostState, RunState, State


async def down_of(requests: Any, *hosts: HostState) -> Operation:
    """A finished `down` of a run to which host b belongs; b is not connected."""
    state = State(RunState(hosts={"b"}), hosts={host.host: host for host in hosts})
    operations = Operations(state, lambda operation: None)
    down = Operation("op1", "down", b"", "down", "ann", OperationState.RUNNING, 0.0, 1e12, by_itself=True)
    operations.add(down)
    peers, left = Peers(), asyncio.Event()
    context: Any = SimpleNamespace(
        state=state,
        peers=peers,
        operations=operations,
        clock=Clock(),
        ending=False,
        executor=SimpleNamespace(flush=lambda: None),
        feed=SimpleNamespace(tick=lambda *_: None),
    )
    machines: Any = SimpleNamespace(placed=list, gone=lambda host: asyncio.sleep(0, ""))
    Shutdown(context, requests or PendingRequests(peers), machines, left.set).all_stopped()
    await asyncio.wait_for(left.wait(), 30.0)
    return down


async def test_host_that_connected_only_to_an_earlier_coordinator_is_not_proven() -> None:
    down = await down_of(None)
    assert down.state is OperationState.FAILED
    assert "host b" in down.reason
    assert "agentrl hosts forget b" in down.reason


async def test_silent_host_is_named_and_not_waited_for() -> None:
    async def never(host: str, what: object, kind: object) -> ScanReport:
        raise AssertionError("its connection has not ended, but nothing comes over it")

    down = await down_of(SimpleNamespace(host=never), HostState("b", connected=False))
    assert "The agent of host b is silent. (a host that is gone for good: agentrl hosts forget b" in down.reason


async def test_host_that_cannot_prove_its_end_is_not_proven() -> None:
    async def report(host: str, what: object, kind: object) -> ScanReport:
        return ScanReport(host, 100, unproven="Units were not in cgroups.")

    down = await down_of(SimpleNamespace(host=report))
    assert (down.state, down.reason) == (OperationState.FAILED, "host b: Units were not in cgroups.")

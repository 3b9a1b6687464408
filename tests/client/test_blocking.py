"""The blocking client works inside a running event loop, and leaves no thread after it is closed."""

from __future__ import annotations

import asyncio
import threading

import pytest

import agentrl
from agentrl.client import RESET
from agentrl.client.blocking import BlockingClient
from agentrl.errors import NoCoordinatorError, UnknownNameError, UsageError
from agentrl.protocol.control_commands import StatusReport
from agentrl.protocol.rows import OperationState, RunRow
from tests.client.small_coordinator import SmallCoordinator


def use(address: str) -> list[object]:
    with agentrl.connect(address=address, timeout_s=60) as client:
        results: list[object] = [client.status(), client.scale("web", 3).operation, client.wait("op", timeout_s=60)]
        for key, _ in client.follow():
            results.append(key)
            break
        with pytest.raises(UnknownNameError):
            client.show_operation("nothing")
        assert client.connected
        assert "restart" in dir(client)
    client.close()
    with pytest.raises(UsageError, match="was closed"):
        client.status()
    return results


async def test_methods_block_and_answer(coordinator: SmallCoordinator) -> None:
    coordinator.operation("op", OperationState.SUCCEEDED)
    status, operation, row, first = await asyncio.to_thread(use, coordinator.address)
    assert isinstance(status, StatusReport)
    assert isinstance(status.run, RunRow)
    assert operation in coordinator.executed
    assert row == coordinator.rows["op/op"]
    assert first == RESET
    assert not [thread for thread in threading.enumerate() if thread.name == "agentrl-client"]


async def test_works_inside_a_running_event_loop(coordinator: SmallCoordinator) -> None:
    """As in a notebook: the coordinator is another process, and the loop of the caller is busy."""

    async def cell() -> object:
        with agentrl.connect(address=coordinator.address, timeout_s=60) as client:
            return client.status()

    assert isinstance(await asyncio.to_thread(asyncio.run, cell()), StatusReport)


def test_unreachable_coordinator_is_an_error_and_leaves_no_thread(tmp_path: object) -> None:
    with pytest.raises(NoCoordinatorError):
        agentrl.connect(address=f"ipc://{tmp_path}/hub", timeout_s=0.2)
    assert not [thread for thread in threading.enumerate() if thread.name == "agentrl-client"]


def test_dir_lists_the_methods() -> None:
    assert "connect" in dir(agentrl)


def test_unknown_attribute_is_an_attribute_error() -> None:
    assert not hasattr(agentrl, "conect")
    assert not hasattr(BlockingClient, "scael")

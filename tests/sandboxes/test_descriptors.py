"""A process that a toolbox starts has its own descriptors only, whichever event loop starts it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentrl import process_start
from agentrl.sandboxes import network_socket
from agentrl.sandboxes.network_access import NetworkAccess
from tests.waiting import aeventually

_CODE = """
import json, os
files = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        files[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        pass  # it was the list itself
own = [files[fd] for fd in range(3)] + [os.devnull]
print(json.dumps(sorted({file for file in files.values() if file not in own})))
"""
LIST = (sys.executable, "-I", "-S", "-c", _CODE)
"""Lists the files and sockets of its process besides the three standard ones. uvloop leaves copies of these open."""
LOOPS = {"asyncio": asyncio.new_event_loop}
if importlib.util.find_spec("uvloop") is not None:
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop


@dataclass(frozen=True)
class Start:
    """A start with pipes, as that of a tool server."""

    passed: tuple[int, ...] = ()
    command: Sequence[str] = LIST
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None

    @contextmanager
    def passing(self) -> Iterator[list[int]]:
        yield list(self.passed)


async def _removed() -> None:
    pass


async def _with_pipes(*passed: int) -> list[str]:
    process = await process_start.started(Start(passed), limit=1 << 16, remove=_removed)
    out, _ = await process.communicate()
    return list(json.loads(out))


async def _plain() -> list[str]:
    process = await asyncio.create_subprocess_exec(*LIST, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return list(json.loads(out))


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("list_descriptors", [_with_pipes, _plain])
def test_no_child_inherits_the_socket_of_another_sandbox(
    loop: Callable[[], asyncio.AbstractEventLoop], list_descriptors: Callable[[], Awaitable[list[str]]]
) -> None:
    async def admit_and_list() -> tuple[list[str], list[str]]:
        before = await list_descriptors()
        access = NetworkAccess()
        theirs = access.admit("web", ["localhost:1"])
        with theirs, socket.create_server(("127.0.0.1", 0)) as listener:
            socket.send_fds(theirs, [b"listening"], [listener.fileno()])
            await aeventually(lambda: [each for each in access._admitted.values() if each.listener])
            return before, await list_descriptors()

    with asyncio.Runner(loop_factory=loop) as runner:
        before, after = runner.run(admit_and_list())
    assert after == before


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_descriptor_that_one_child_inherits_is_not_inherited_by_the_next(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def start_three() -> list[list[str]]:
        before = await _with_pipes()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            return [before, await _with_pipes(theirs.fileno()), await _with_pipes()]

    with asyncio.Runner(loop_factory=loop) as runner:
        before, with_socket, after = runner.run(start_three())
    assert len(with_socket) == len(before) + 1
    assert after == before


def test_received_descriptors_are_not_inheritable() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        socket.send_fds(theirs, [b"listening"], [listener.fileno()])
        data, descriptors = network_socket.receive(ours, 64)
        with socket.socket(fileno=descriptors[0]) as received:
            assert data == b"listening"
            assert not received.get_inheritable()

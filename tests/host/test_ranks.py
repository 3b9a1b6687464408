"""A rank of a gang gets its place in variables like from torchrun, and is not started where its gang cannot meet."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from agentrl.host.accelerators import VARIABLE
from agentrl.protocol.messages import Exited, SpawnFailed
from agentrl.protocol.specs import Rank
from tests.host.harness import Bench, python, spawn

PLACE = Rank(epoch=7, rank=3, ranks=4, port=1, local_rank=1, local_ranks=2, node=1, nodes=2, visible=("2", "0"))
NAMES = (
    *("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
)


async def test_rank_gets_its_place_and_sees_the_devices_of_all_ranks_of_its_host(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "3")
    seen = tmp_path / "seen"
    code = f"import os; open({str(seen)!r}, 'w').write(' '.join(os.environ.get(n, '-') for n in {NAMES!r}))"
    order = spawn("web-0", *python(code), env={"NCCL_SOCKET_IFNAME": "fast0"})
    async with bench.tidy_agent() as agent:
        agent.receive(msgspec.structs.replace(order, devices=("0",), rank=PLACE))
        ended = await bench.sent.one(Exited)
        assert (ended.exit.code, seen.read_text()) == (0, "3 1 2 4 1 1 2 127.0.0.1 1 2,0 lo fast0")
    async with bench.agent() as later:
        assert later.hello().inventory[0].rank == PLACE, "the ledger has the rank"


@pytest.mark.parametrize(
    ("change", "reason", "final"),
    [
        ({"rank": 0}, "where its gang was to meet, is taken", False),
        ({"own_address": "192.0.2.77"}, "192.0.2.77 is no address of this host", True),
    ],
)
async def test_rank_is_not_started_where_its_gang_cannot_meet(
    bench: Bench, change: dict[str, object], reason: str, final: bool
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        async with bench.tidy_agent() as agent:
            place = msgspec.structs.replace(PLACE, port=port, visible=(), **change)
            agent.receive(msgspec.structs.replace(spawn("web-0", *python("pass")), rank=place))
            failed = await bench.sent.one(SpawnFailed)
    assert reason in failed.reason
    assert failed.final is final

"""Measures how long four hosts without a shared disk need to get a publication of 1 GiB, next to one copy of its bytes.

Each host is a network namespace with a tunnel and a file process of its own, and a cable that carries MBIT in each
direction. The copy is one TCP stream between two hosts, without TLS and hashes. Needs root.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agentrl.files.pieces import Content, content_of
from agentrl.files.unit_files import UnitFiles
from agentrl.tunnels.authority import Authority
from tests.benchmarks.report import Outcome
from tests.e2e.networks import Network

SIZE = 1 << 30
MBIT = 160
TRAINER, ENGINES = "a", ("b", "c", "d", "e")
VERSION, FILE = "weights/v000001", "model.safetensors"
MOST_TIME, MOST_SENT = 1.5, 1.1
PORT = 7000
SEND = f"""
import socket, sys
with socket.create_server(("0.0.0.0", {PORT})) as server:
    print("listens", flush=True)
    with server.accept()[0] as end, open(sys.argv[1], "rb") as file:
        end.sendfile(file)
"""
RECEIVE = f"""
import socket, sys
with socket.create_connection((sys.argv[1], {PORT})) as end, open(sys.argv[2], "wb") as file:
    while data := end.recv(1 << 20):
        file.write(data)
"""


def measure() -> Outcome:
    outcome = Outcome("weights on hosts without a shared disk")
    network = Network(f"bench-{uuid.uuid4().hex[:6]}", (TRAINER, *ENGINES))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            network.lay()
            for host in (TRAINER, *ENGINES):
                network.limit(host, MBIT)
            files = _publish(Path(folder))
            at_first = network.sent_bytes(TRAINER)
            copy_s = _copy(network, Path(folder))
            after_copy = network.sent_bytes(TRAINER)
            all_s = _to_all(network, Path(folder), files)
            sent, copied = network.sent_bytes(TRAINER) - after_copy, after_copy - at_first
        finally:
            network.remove()
    names = f"1 GiB to {len(ENGINES)} hosts over {MBIT} Mbit/s each"
    outcome.within(names, all_s, "s", "one copy of the bytes", copy_s, MOST_TIME)
    outcome.within("what the trainer's host sent", sent / 1e6, "MB", "for one copy", copied / 1e6, MOST_SENT)
    return outcome


def _publish(folder: Path) -> dict[str, Content]:
    target = folder / TRAINER / VERSION
    target.mkdir(parents=True)
    with (target / FILE).open("wb") as file:
        for _ in range(SIZE >> 24):
            file.write(os.urandom(1 << 24))
    return {FILE: content_of(target / FILE)}


def _copy(network: Network, folder: Path) -> float:
    source, target = folder / TRAINER / VERSION / FILE, folder / "copy"
    command = [*network.inside(TRAINER), sys.executable, "-c", SEND, str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        assert sender.stdout.readline() == b"listens\n"
        began = time.perf_counter()
        receiver = [*network.inside(ENGINES[0]), sys.executable, "-c", RECEIVE, network.address(TRAINER), str(target)]
        subprocess.run(receiver, check=True)
        took_s = time.perf_counter() - began
    assert target.stat().st_size == SIZE
    target.unlink()
    return took_s


def _to_all(network: Network, folder: Path, files: Mapping[str, Content]) -> float:
    async def get(host: str) -> None:
        unit = UnitFiles(folder / f"{host}.sock")
        await unit.bring(VERSION, files)
        unit.close()

    async def get_all() -> float:
        began = time.perf_counter()
        await asyncio.gather(*map(get, ENGINES))
        return time.perf_counter() - began

    with _hosts(network, folder):
        took_s = asyncio.run(get_all())
    for host in ENGINES:
        assert content_of(folder / host / VERSION / FILE) == files[FILE]
    return took_s


@contextmanager
def _hosts(network: Network, folder: Path) -> Iterator[None]:
    """Runs the tunnel and the file process of each host."""
    authority = Authority(folder, "r")
    with ExitStack() as held:
        tunnels: dict[str, subprocess.Popen[bytes]] = {}
        said: dict[str, dict[str, Any]] = {}
        for host in (TRAINER, *ENGINES):
            entrance = ["--host", host, "--entrance", str(folder / f"{host}.sock")]
            where = ["--bind", network.address(host), "--port", str(PORT + 1)]
            tunnels[host] = held.enter_context(_process(network, host, ["daemons.tunnel", *entrance, *where]))
            (folder / host).mkdir(exist_ok=True)
            own = ["--run-dir", str(folder / host), "--tunnel", str(folder / f"{host}.sock")]
            files = held.enter_context(_process(network, host, ["daemons.files", "--host", host, *own]))
            _tell(files, {"peers": [TRAINER, *ENGINES], "data_host": TRAINER})
        for host, tunnel in tunnels.items():
            assert tunnel.stdout is not None
            said[host] = json.loads(tunnel.stdout.readline())
        peers = {host: f"{network.address(host)}:{each['port']}" for host, each in said.items()}
        for host, tunnel in tunnels.items():
            certificate = authority.issue(host, said[host]["request"])
            _tell(tunnel, {"certificate": certificate, "authority": authority.trusted, "peers": peers})
        yield


@contextmanager
def _process(network: Network, host: str, module: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when its stdin is closed, which the exit does."""
    pipe, env = subprocess.PIPE, {**os.environ, "AGENTRL_RUN": "r"}
    command = [*network.inside(host), sys.executable, "-m", *module]
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe) as process:
        yield process


def _tell(process: subprocess.Popen[bytes], line: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(line).encode() + b"\n")
    process.stdin.flush()

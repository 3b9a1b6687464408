"""Requests of unknown, late and unauthorised peers are refused, and the run continues."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from agentrl.client.client import Client
from agentrl.client.discovery import find
from agentrl.errors import ExitCode, KeyRefusedError
from agentrl.protocol import control_commands, feed, messages
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import MAX_MESSAGE_BYTES, PROTOCOL_MAJOR, Request
from agentrl.protocol.wire import decode_feed, decode_from_coordinator, encode, raw
from agentrl.transport.curve_keys import ClientKey
from agentrl.transport.dealer import Dealer
from agentrl.transport.publisher import Subscriber
from tests.e2e.running import Run, running
from tests.ports import free_triplet, plain_socket
from tests.waiting import PATIENCE_S, aeventually, eventually


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that also listens on tcp, for all tests of this file."""
    for run in running(tmp_path_factory.mktemp("talking"), f"t-{uuid.uuid4().hex[:8]}"):
        run.sidecar("web", ["sleep", "1000"], count=2)
        run.unit("tick", "step_loop", "--every", "0.05")
        run.config["coordinator"] = {"listen": f"tcp://127.0.0.1:{free_triplet()}"}
        run.up()
        yield run


class Talk:
    """A peer that can send any message."""

    def __init__(self, address: str, key: ClientKey | None = None) -> None:
        self.received: list[messages.FromCoordinator] = []
        self.refused: list[str] = []
        self.dealer = Dealer(
            address,
            key=key,
            on_message=lambda frame: self.received.append(decode_from_coordinator(frame)),
            on_refused=self.refused.append,
        )

    async def ask(self, message: Message) -> Any:
        """Returns the next message from the coordinator."""
        await aeventually(lambda: self.dealer.connected)
        before = len(self.received)
        assert self.dealer.send(encode(message))
        await aeventually(lambda: len(self.received) > before)
        return self.received[before]


@asynccontextmanager
async def talk(run: Run, key: ClientKey | None = None) -> AsyncIterator[Talk]:
    each = Talk(key.address if key else find(state_dir=run.state_dir).address, key)
    each.dealer.start()
    try:
        yield each
    finally:
        each.dealer.close()


@asynccontextmanager
async def a_client(run: Run) -> AsyncIterator[Talk]:
    async with talk(run) as each:
        welcome = await each.ask(messages.ClientHello(PROTOCOL_MAJOR, 0, who="test"))
        assert isinstance(welcome, messages.Welcome)
        yield each


def well(run: Run) -> Callable[[], None]:
    """Remember the state of a run. Calling the result fails if the run was disturbed meanwhile."""
    before, pid = run.units(), run.coordinator_pid()

    def still_well() -> None:
        eventually(lambda: run.unit_row("tick-0").progress > before["tick-0"].progress, what="progress goes on")
        now = run.units()
        assert run.coordinator_pid() == pid
        assert {u: r.pid for u, r in now.items()} == {u: r.pid for u, r in before.items()}
        for unit in before:
            run.wait_state(unit, "ready")

    return still_well


# ---- commands ----


def test_command_sent_twice_is_executed_once(talking: Run) -> None:
    client = talking.client
    first = client.call("scale", control_commands.Scale("web", by=1), id="the-same")
    again = client.call("scale", control_commands.Scale("web", by=1), id="the-same")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert again.operation == first.operation == "the-same"
    assert client.wait("the-same", timeout_s=PATIENCE_S).state == "succeeded"
    assert sorted(talking.units()) == ["tick-0", "web-0", "web-1", "web-2"]
    # The command line gets the same operation, also after its end.
    assert client.call("scale", control_commands.Scale("web", by=1), id="the-same").duplicate
    assert talking.cli("scale", "web", "2")["operation"]["state"] == "succeeded"
    assert sorted(talking.units()) == ["tick-0", "web-0", "web-1"]


async def test_late_unknown_or_invalid_request_is_refused_with_a_reason(talking: Run) -> None:
    def fine() -> dict[str, Any]:
        return {"group": "web", "to": 2}

    long_ago = time.time() - 3600
    async with a_client(talking) as client:
        for request, code, words in (
            (Request("1", "scale", raw(fine()), deadline_ct=long_ago), ExitCode.REFUSED, "after its deadline"),
            (Request("2", "fly", raw({})), ExitCode.UNKNOWN, "knows no command 'fly'"),
            (Request("3", "scale", raw({"group": 5})), ExitCode.USAGE, "arguments of scale are wrong"),
            (Request("4", "scale", raw({**fine(), "speed": 1})), ExitCode.USAGE, "speed"),
            (Request("5", "scale", raw([1, 2])), ExitCode.USAGE, "arguments of scale are wrong"),
            (Request("6", "scale", raw({"group": "web"})), ExitCode.USAGE, "difference"),
            (Request("7", "scale", raw({"group": "wbe", "to": 1})), ExitCode.UNKNOWN, "web"),
            (Request("8", "scale", raw({"group": "web", "to": -1})), ExitCode.USAGE, "-1"),
            (Request("9", "stop", raw({"unit": "web-0", "incarnation": 77})), ExitCode.CONFLICT, "web-0.1"),
            (Request("10", "apply", raw({"config": {"name": 7}})), ExitCode.CONFIG, "name"),
        ):
            answer = await client.ask(request)
            assert isinstance(answer, messages.ErrorReply), (request, answer)
            assert (answer.id, answer.code) == (request.id, code), answer
            assert words in f"{answer.message} {answer.hint}", answer
    assert (await asyncio.to_thread(talking.units))["web-0"].incarnation == 1


@pytest.mark.parametrize("words", ["stacks nosuch", "stacks web-0.7777", "keys revoke nosuch"])
@pytest.mark.parametrize("further", [[], ["--dry-run"]], ids=["done", "previewed"])
def test_command_for_an_unknown_name_is_refused(talking: Run, words: str, further: list[str]) -> None:
    code, answer = talking.cli(*words.split(), *further, check=False)
    assert code in (ExitCode.UNKNOWN, ExitCode.CONFLICT)
    assert words.split()[-1].partition(".")[0] in answer["error"]["message"]


async def test_other_major_version_is_refused_with_both_versions(talking: Run) -> None:
    run = await asyncio.to_thread(talking.uuid)
    facts = messages.HostFacts(agent_version="99.1")
    for hello in (
        messages.ClientHello(99, 0, who="test", version="99.1"),
        messages.UnitHello(99, 0, run, "web-0", 1, "token", 1, version="99.1"),
        messages.HostHello(99, 0, run, "far", 1, 1, facts),
    ):
        async with talk(talking) as peer:
            answer = await peer.ask(hello)
        assert isinstance(answer, messages.Refused)
        assert answer.code == ExitCode.VERSION
        assert "protocol 99 (agentrl 99.1)" in answer.message
        assert f"the coordinator {PROTOCOL_MAJOR} (agentrl " in answer.message
    async with talk(talking) as peer:
        answer = await peer.ask(messages.ClientHello(PROTOCOL_MAJOR, 0, run="another-run"))
    assert answer.code == ExitCode.VERSION
    assert talking.name in answer.message


async def test_unit_without_its_token_is_refused(talking: Run) -> None:
    run = await asyncio.to_thread(talking.uuid)
    async with talk(talking) as peer:
        answer = await peer.ask(messages.UnitHello(PROTOCOL_MAJOR, 0, run, "tick-0", 1, "guessed", 1))
        assert isinstance(answer, messages.Refused)
        assert answer.final
        assert isinstance(await peer.ask(messages.Bye(0)), messages.WhoAreYou)


# ---- random bytes ----


@pytest.mark.parametrize("way", ["ipc", "tcp"])
def test_random_bytes_on_every_socket_do_no_harm(talking: Run, way: str, tmp_path: Path) -> None:
    still_well = well(talking)
    target = find(state_dir=talking.state_dir)
    key: ClientKey | None = None
    addresses = [target.address, target.feed, target.metrics]
    if way == "tcp":
        made = talking.cli("keys", "new", "noisy", "--out", str(tmp_path / "noisy.key"))
        key = ClientKey.load(made["file"])
        remote = find(key_file=made["file"])
        addresses = [remote.address, remote.feed, remote.metrics]
    for address in addresses:
        _throw_bytes(address)
    _throw_messages(addresses, key)
    still_well()
    assert talking.cli("scale", "web", "3")["operation"]["state"] == "succeeded"
    assert talking.cli("scale", "web", "2")["operation"]["state"] == "succeeded"


def _throw_bytes(address: str) -> None:
    """Random bytes from plain sockets without ZeroMQ."""
    dice = random.Random(3)
    greeting = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" * 32
    for each in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 65536, *(greeting + dice.randbytes(n) for n in (1, 50, 5000))):
        with plain_socket(address) as line:
            try:
                line.sendall(each)
                line.settimeout(0.02)
                line.recv(65536)
            except OSError:
                continue


def _throw_messages(addresses: list[str], key: ClientKey | None) -> None:
    """Whole ZeroMQ messages of random bytes, and one that is too large."""
    dice = random.Random(4)
    hello = encode(messages.ClientHello(PROTOCOL_MAJOR, 0, who="noise"))
    request = encode(Request("n", "scale", raw({"group": "web", "to": 1})))
    noise = [hello[:cut] for cut in range(1, len(hello), 3)] + [request[:cut] for cut in range(1, len(request), 5)]
    noise += [dice.randbytes(dice.randrange(1, 2000)) for _ in range(100)]
    noise += [b"", b"\x91" * 50_000, b"\x80", msgspec.msgpack.encode({"type": "no_such_message"})]
    context = zmq.Context()
    try:
        for address, kind in zip(addresses, (zmq.DEALER, zmq.SUB, zmq.SUB), strict=True):
            line = context.socket(kind)
            line.linger = 2000
            if key:
                line.curve_serverkey = key.server_public.encode()
                line.curve_publickey, line.curve_secretkey = key.public.encode(), key.secret.encode()
            line.connect(address)
            for each in noise:
                if kind == zmq.DEALER:
                    line.send(each)
                else:
                    line.subscribe(each[:2000])
            if kind == zmq.DEALER:
                line.send_multipart([b"a", b"b", b"c"])
                refusal = line.poll(PATIENCE_S * 1000) and decode_from_coordinator(line.recv())
                assert isinstance(refusal, messages.Refused | messages.WhoAreYou)
                line.send(bytes(MAX_MESSAGE_BYTES + 1))
            line.close()
    finally:
        context.term()


async def test_subscriber_that_never_reads_delays_no_other(talking: Run) -> None:
    target = find(state_dir=talking.state_dir)
    context = zmq.Context()
    lazy = context.socket(zmq.SUB)
    lazy.setsockopt(zmq.RCVHWM, 1)
    lazy.setsockopt(zmq.RCVBUF, 1)
    lazy.subscribe(b"")
    lazy.connect(target.feed)
    got: list[feed.Feed] = []
    subscriber = Subscriber(target.feed, on_message=lambda frame: got.append(decode_feed(frame)))
    subscriber.start()
    try:
        await aeventually(lambda: len(got) >= 15)
        async with Client.connect(talking.name, state_dir=talking.state_dir) as client:
            for _ in range(20):
                await client.status()
        numbers = [each.seq for each in got if isinstance(each, feed.FeedRow)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    finally:
        subscriber.close()
        lazy.close(linger=0)
        context.term()


# ---- keys ----


@pytest.fixture(scope="module")
def keys(talking: Run) -> dict[str, Path]:
    made = {}
    for permission in ("viewer", "operator", "admin", "unit", "host"):
        file = talking.file.parent / f"{permission}.key"
        talking.cli("keys", "new", f"a-{permission}", "--permission", permission, "--out", str(file))
        assert file.stat().st_mode & 0o777 == 0o600
        made[permission] = file
    return made


def test_key_may_do_what_its_permission_allows(talking: Run, keys: dict[str, Path]) -> None:
    def with_key(permission: str, *args: str) -> tuple[int, str]:
        done = talking.raw(*args, "--key", str(keys[permission]))
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    code, output = with_key("viewer", "status")
    assert code == 0, output
    assert "tick-0" in output
    code, output = with_key("viewer", "scale", "web", "3")
    assert code == ExitCode.REFUSED
    assert "`agentrl scale` needs the permission operator; the key a-viewer is viewer." in output
    code, output = with_key("operator", "scale", "web", "3")
    assert code == 0, output
    code, output = with_key("operator", "scale", "web", "2")
    assert code == 0, output
    code, output = with_key("operator", "keys", "list")
    assert code == ExitCode.REFUSED
    code, output = with_key("admin", "keys", "list")
    assert code == 0, output
    assert all(f"a-{permission}" in output for permission in keys)
    code, output = with_key("unit", "status")
    assert code == ExitCode.KEY_REFUSED
    code, output = with_key("unit", "scale", "web", "1")
    assert code == ExitCode.KEY_REFUSED
    # The audit contains the name of the key and not the name that the caller gives.
    audit = talking.cli("events", "--kind", "audit")
    assert "a-operator" in {row["who"] for row in audit if row["command"] == "scale"}


@pytest.mark.parametrize("permission", ["viewer", "operator", "unit", "local"])
async def test_only_a_host_agent_registers_a_host(talking: Run, keys: dict[str, Path], permission: str) -> None:
    key = None if permission == "local" else ClientKey.load(keys[permission])
    run = await asyncio.to_thread(talking.uuid)
    (own,) = [name for name in await asyncio.to_thread(talking.rows) if name.startswith("host/")]
    agent = await asyncio.to_thread(talking.agent_pid)
    for host in ("far", own.removeprefix("host/")):
        async with talk(talking, key) as peer:
            answer = await peer.ask(messages.HostHello(PROTOCOL_MAJOR, 0, run, host, agent, 1, messages.HostFacts()))
        assert isinstance(answer, messages.Refused)
        assert answer.code == ExitCode.KEY_REFUSED
        assert "with a key of permission host" in answer.hint or "restart its agent with it" in answer.hint
    rows = await asyncio.to_thread(talking.rows)
    assert [(name, rows[name].agent_pid) for name in rows if name.startswith("host/")] == [(own, agent)]


async def test_key_of_a_host_registers_no_unit(talking: Run, keys: dict[str, Path]) -> None:
    run = await asyncio.to_thread(talking.uuid)
    async with talk(talking, ClientKey.load(keys["host"])) as peer:
        answer = await peer.ask(messages.UnitHello(PROTOCOL_MAJOR, 0, run, "tick-0", 1, "guessed", 1))
    assert isinstance(answer, messages.Refused)
    assert "The key a-host may not register a unit." in answer.message


def test_unknown_key_is_refused(talking: Run, keys: dict[str, Path]) -> None:
    from agentrl.client import new_keypair

    pair = new_keypair()
    good = ClientKey.load(keys["admin"])
    wrong = talking.file.parent / "wrong.key"
    ClientKey("wrong", pair.public, pair.secret, good.server_public, good.address, good.feed, good.metrics).save(wrong)
    done = talking.raw("status", "--key", str(wrong))
    assert done.returncode == ExitCode.KEY_REFUSED
    assert "'wrong'" in done.stderr
    assert "Traceback" not in done.stderr


async def test_revoked_key_loses_its_connections_at_once(talking: Run) -> None:
    async def new_key(name: str) -> Path:
        file = talking.file.parent / f"{name}.key"
        await asyncio.to_thread(talking.cli, "keys", "new", name, "--out", str(file))
        return file

    loser, keeper = await new_key("loser"), await new_key("keeper")
    received: dict[Path, list[feed.Feed]] = {loser: [], keeper: []}
    subscribers = [_subscribe(file, received[file]) for file in received]
    try:
        await aeventually(lambda: all(received.values()))
        async with Client.connect(key_file=loser) as client:
            await client.status()
            await asyncio.to_thread(talking.cli, "keys", "revoke", "loser", "--yes")
            with pytest.raises(KeyRefusedError, match="revoked"):
                await client.status()
        await _quiet_but(received[loser], received[keeper])
        refused = await asyncio.to_thread(talking.raw, "status", "--key", str(loser))
        assert refused.returncode == ExitCode.KEY_REFUSED
        allowed = await asyncio.to_thread(talking.raw, "status", "--key", str(keeper))
        assert allowed.returncode == 0
    finally:
        for subscriber in subscribers:
            subscriber.close()


def _subscribe(file: Path, received: list[feed.Feed]) -> Subscriber:
    target = find(key_file=file)
    subscriber = Subscriber(target.feed, key=target.key, on_message=lambda frame: received.append(decode_feed(frame)))
    subscriber.start()
    return subscriber


async def _quiet_but(silent: list[feed.Feed], loud: list[feed.Feed]) -> None:
    """Wait until the first receives no more messages while the second still does. Earlier messages may still arrive."""

    async def is_so() -> bool:
        so_far, before = len(silent), len(loud)
        await aeventually(lambda: len(loud) > before + 10)
        return len(silent) == so_far

    await aeventually(is_so, what="the revoked key to receive nothing")

"""Every call ends with an answer or with one clear error, also while the coordinator restarts or dies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

import agentrl.client.coordinator_connection as session_module
from agentrl.client import Client
from agentrl.errors import (
    ConflictError,
    ExitCode,
    KeyRefusedError,
    NoCoordinatorError,
    ProtocolError,
    RefusedError,
    UnknownNameError,
    UsageError,
    VersionMismatchError,
    WaitTimeoutError,
)
from agentrl.protocol import wire
from agentrl.protocol.control_commands import Scale, StatusReport, Tune
from agentrl.protocol.effects import Consent, Effect, EffectChangedError, Tier
from agentrl.protocol.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, ErrorReply, Permission, Refused
from agentrl.protocol.rows import OperationState
from agentrl.transport.curve_keys import ClientKey, new_keypair
from tests.client.small_coordinator import SmallCoordinator
from tests.ports import free_triplet
from tests.waiting import PATIENCE_S, aeventually


def dial(coordinator: SmallCoordinator, timeout_s: float = 20.0) -> Client:
    return Client.connect(address=coordinator.address, timeout_s=timeout_s)


async def test_queries_and_commands_answer_in_their_own_types(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        assert isinstance(await client.status(), StatusReport)
        assert await client.knobs() == []
        accepted = await client.scale("web", to=3)
        assert accepted.effect.starts == ("web-1",)
        assert coordinator.executed == {accepted.operation: "scale"}
        assert wire.decode_as(Scale, coordinator.requests[-1].args) == Scale("web", to=3)
        assert client.permission is Permission.UNIT
        assert client.welcome.run_name == "tiny"


async def test_preview_changes_nothing(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        preview = await client.preview("scale", {"group": "web", "by": 1})
    assert preview.effect == Effect(starts=("web-1",))
    assert coordinator.requests[-1].dry_run
    assert not coordinator.executed


async def test_call_carries_the_consent(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        preview = await client.preview("scale", {"group": "web", "by": 1})
        await client.call("scale", {"group": "web", "by": 1}, consent=preview)
    assert coordinator.requests[-1].consent == preview


async def test_refusal_for_a_changed_effect_contains_the_new_effect(coordinator: SmallCoordinator) -> None:
    given = Consent(Effect(), Tier.NONE, 60.0)
    async with dial(coordinator) as client:
        with pytest.raises(EffectChangedError, match="became worse") as caught:
            await client.call("scale", {"group": "web", "by": 1}, consent=given)
    assert caught.value.consent.effect == Effect(starts=("web-1",))


async def test_same_request_id_is_executed_once(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        first = await client.scale("web", by=1, request_id="mine")
        second = await client.scale("web", by=1, request_id="mine")
    assert (first.duplicate, second.duplicate) == (False, True)
    assert coordinator.executed == {"mine": "scale"}


async def test_concurrent_calls_get_their_own_answers(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        answers = await asyncio.gather(
            *(client.pause(f"web-{number}", request_id=f"r{number}") for number in range(300))
        )
    assert [each.operation for each in answers] == [f"r{number}" for number in range(300)]


async def test_request_is_sent_again_if_a_crash_lost_its_answer(coordinator: SmallCoordinator) -> None:
    """The coordinator executes, dies before the answer, and restarts: the caller sees one command and one answer."""
    async with dial(coordinator) as client:
        coordinator.mute = True
        call = asyncio.create_task(client.scale("web", to=3, request_id="once", deadline_s=30))
        await aeventually(lambda: coordinator.executed == {"once": "scale"})
        coordinator.die()
        await aeventually(lambda: not client.connected)
        coordinator.start()
        accepted = await call
        assert accepted.duplicate
        assert [request.id for request in coordinator.requests] == ["once", "once"]
        assert len(coordinator.hellos) == 2


async def test_call_without_a_coordinator_waits_for_its_restart(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        coordinator.die()
        await aeventually(lambda: not client.connected)
        call = asyncio.create_task(client.status())
        await asyncio.sleep(0)
        coordinator.start()
        assert isinstance(await call, StatusReport)


async def test_hello_is_repeated_to_a_coordinator_that_forgot_the_client(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        coordinator.forget_peers()
        answers = await asyncio.gather(*(client.status() for _ in range(20)))
        assert len(answers) == 20
        assert len(coordinator.hellos) == 2, "one hello answers many WhoAreYou messages"


async def test_passed_deadline_is_an_error_with_a_sentence(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        coordinator.mute = True
        with pytest.raises(WaitTimeoutError, match=r"did not answer `agentrl scale` within 0\.2 s; it may still"):
            await client.scale("web", to=1, deadline_s=0.2)
        coordinator.die()
        await aeventually(lambda: not client.connected)
        with pytest.raises(NoCoordinatorError, match=r"does not answer within 0\.2 s") as gone:
            await client.scale("web", to=1, deadline_s=0.2)
        assert "agentrl up" in gone.value.hint


async def test_deadline_is_sent_in_the_time_of_the_coordinator(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        before = time.monotonic()
        await client.scale("web", to=1, deadline_s=600)
        deadline = coordinator.requests[-1].deadline_ct
        assert deadline is not None
        # The answer to the hello, from which the client knows that time, may have been on its way for a while.
        assert before + 600 - PATIENCE_S < deadline < time.monotonic() + 600.1


async def test_refusals_keep_class_code_and_hint(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        with pytest.raises(UnknownNameError, match="no such operation") as unknown:
            await client.show_operation("nonsense")
        assert unknown.value.hint == "agentrl events"
        for code, kind in ((ExitCode.CONFLICT, ConflictError), (ExitCode.REFUSED, RefusedError)):
            answer = ErrorReply("x", code, "Not now.", "Later.")
            coordinator.mute = True
            call = asyncio.create_task(client.call("tune", Tune("bound", 1), id="x", deadline_s=20))
            seen = len(coordinator.requests)
            await aeventually(lambda n=seen: len(coordinator.requests) > n)  # type: ignore[misc]
            coordinator._send(next(iter(coordinator._known)), answer)
            with pytest.raises(kind, match=r"Not now\. Later\."):
                await call


async def test_wrong_arguments_are_refused_before_they_are_sent(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        with pytest.raises(UnknownNameError, match="no command 'scael'"):
            await client.call("scael")
        with pytest.raises(UsageError, match="scale needs either"):
            await client.scale("web")
        with pytest.raises(UsageError, match="drain needs either"):
            await client.drain()
        with pytest.raises(ProtocolError, match="do not fit"):
            await client.call("scale", {"group": 5})
        with pytest.raises(ProtocolError, match="do not fit"):
            await client.call("scale", {"group": "web", "too": 5})
        with pytest.raises(ProtocolError, match="Tune are not the arguments"):
            await client.call("scale", Tune("a", 1))
        with pytest.raises(UnknownNameError, match=r"client\.snapshot"):
            await client.call("snapshot")
    assert not coordinator.requests


async def test_unreachable_coordinator_is_an_error(coordinator: SmallCoordinator) -> None:
    coordinator.die()
    with pytest.raises(NoCoordinatorError, match=r"does not answer within 0\.3 s"):
        async with dial(coordinator, timeout_s=0.3):
            raise AssertionError("connected without a coordinator")


async def test_refusal_of_the_hello_is_raised(coordinator: SmallCoordinator) -> None:
    coordinator.refuse_hello = Refused(ExitCode.VERSION, "This is run other, not tiny.", "Look again.")
    with pytest.raises(VersionMismatchError, match=r"This is run other, not tiny\. Look again\."):
        async with dial(coordinator):
            raise AssertionError("welcomed")


async def test_refusal_of_another_major_version_names_both_versions(
    coordinator: SmallCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "PROTOCOL_MAJOR", 9)
    with pytest.raises(VersionMismatchError, match="You speak protocol 9, the coordinator 1"):
        async with dial(coordinator):
            raise AssertionError("welcomed")


async def test_unreadable_answer_is_an_error_with_the_own_version(coordinator: SmallCoordinator) -> None:
    coordinator._send = lambda peer, message: coordinator.hub.send(peer, b"\x81\xa4type\xa5alien")  # type: ignore[assignment]
    with pytest.raises(VersionMismatchError, match=rf"protocol {PROTOCOL_MAJOR}\.{PROTOCOL_MINOR} "):
        async with dial(coordinator):
            raise AssertionError("welcomed")


async def test_client_with_a_key_connects_over_tcp(coordinator: SmallCoordinator) -> None:
    port = free_triplet()
    coordinator.die()
    coordinator.listen, coordinator.feed_listen = f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}"
    pair = new_keypair()
    coordinator.keyring[pair.public] = "anna"
    coordinator.start()
    key = ClientKey("anna", pair.public, pair.secret, coordinator.server.public, coordinator.listen)
    path = coordinator.directory / "anna.json"
    key.save(path)
    async with Client.connect(key_file=path, timeout_s=60) as client:
        assert (await client.scale("web", to=1)).operation
        coordinator.operation("x", OperationState.SUCCEEDED)
        assert (await client.wait("x", timeout_s=60)).state.ended
    del coordinator.keyring[pair.public]
    with pytest.raises(KeyRefusedError, match=r"does not know this key, or it was revoked\. The key is 'anna'"):
        async with Client.connect(key_file=path, timeout_s=60):
            raise AssertionError("welcomed with a revoked key")
    with pytest.raises(KeyRefusedError, match="requires a key"):
        async with Client.connect(address=coordinator.listen, timeout_s=60):
            raise AssertionError("welcomed without a key")


async def test_revoked_key_fails_the_pending_requests(coordinator: SmallCoordinator) -> None:
    port = free_triplet()
    coordinator.die()
    coordinator.listen = f"tcp://127.0.0.1:{port}"
    pair = new_keypair()
    coordinator.keyring[pair.public] = "anna"
    coordinator.start()
    key = ClientKey("anna", pair.public, pair.secret, coordinator.server.public, coordinator.listen)
    key.save(coordinator.directory / "anna.json")
    async with Client.connect(key_file=coordinator.directory / "anna.json", timeout_s=60) as client:
        coordinator.die()
        del coordinator.keyring[pair.public]
        call = asyncio.create_task(client.status())
        coordinator.start()
        with pytest.raises(KeyRefusedError):
            await call


async def test_closing_fails_the_pending_requests(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        coordinator.mute = True
        call = asyncio.create_task(client.status())
        await aeventually(lambda: coordinator.requests)
    with pytest.raises(NoCoordinatorError, match="closed before the answer"):
        await call


def test_import_of_the_client_is_light() -> None:
    heavy = ("pydantic", "rich", "typer", "httpx", "yaml")
    script = f"import agentrl.client, sys; print([each for each in {heavy} if each in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "[]", ended.stderr

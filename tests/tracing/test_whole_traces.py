"""A trace is kept whole: the process where it ends decides, and the others export what they held of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentrl.http import kept_traces
from agentrl.http.http_client import HttpClient
from agentrl.tracing import otlp_export, spans, trace_context
from tests.ports import free_triplet
from tests.tracing.receiver import Receiver, receiving
from tests.tracing.serving_program import TOKEN
from tests.waiting import aeventually

SHARE = 0.5


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def server(receiver: Receiver) -> Iterator[str]:
    """Its address; it is another process."""
    command = [sys.executable, "-m", "tests.tracing.serving_program", receiver.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


async def test_a_failed_trace_and_a_chosen_one_arrive_whole_and_others_not_at_all(
    receiver: Receiver, server: str
) -> None:
    stop = otlp_export.start(receiver.url, {}, "sampler", {})
    client = HttpClient(server, {}, token=TOKEN)
    away = HttpClient(f"http://127.0.0.1:{free_triplet()}", {}, token=TOKEN)
    records = {trace_context.of_record("run", f"r{number}", SHARE) for number in range(20)}
    chosen = {record.trace_id for record in records if record.sampled}
    (failing, with_a_dead_peer, *_) = (record for record in records if not record.sampled)
    try:
        for root in records:
            with spans.span("episode", root=root) as episode:
                async with client.ask("POST", "/work") as reply:
                    await reply.read()
                if root in (failing, with_a_dead_peer):
                    episode.fail("infrastructure")
                if root is with_a_dead_peer:
                    with spans.span("call"):
                        spans.sent_to(away)
        await kept_traces.announce_now()
        whole = {"episode", "serve"}
        wanted = dict.fromkeys((*chosen, failing.trace_id), whole)
        wanted[with_a_dead_peer.trace_id] = whole | {"call"}

        def parts() -> dict[str, set[str]]:
            found: dict[str, set[str]] = {}
            for span in receiver.all:
                found.setdefault(span.trace_id.hex(), set()).add(span.name)
            return found

        await aeventually(lambda: parts() == wanted, what="whole traces, and no others")
        assert 0 < len(chosen) < len(records) - 2
        stranger = HttpClient(server, {})
        async with stranger.ask("POST", kept_traces.PATH, b'{"traces": []}') as refused:
            assert refused.status == 401, "also this needs the token of the run"
        await stranger.close()
    finally:
        stop()
        await client.close()
        await away.close()

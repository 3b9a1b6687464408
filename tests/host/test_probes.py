"""Readiness, liveness and metrics of processes without the unit runtime."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentrl.host import probes, procfs
from agentrl.host.probe_requests import port_here
from agentrl.host.probes import Verdict, listens, parse_metrics
from agentrl.http.free_ports import free_port
from agentrl.protocol.messages import Exited, Probed, Scraped, Spawned
from agentrl.protocol.specs import Probe
from tests.host.harness import SLEEP, Bench, python, spawn
from tests.waiting import PATIENCE_S, aeventually

QUICK = {"interval_s": 0.05, "timeout_s": 5.0, "failures": 2}

SERVER = """
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = b'# HELP x\\nrequests_total 42\\nqueue{name="a b"} 1.5 1700000000\\nbad nan\\n'
        self.send_response(200 if self.path.startswith('/ok') else 503)
        if self.path == '/ok-chunked':
            self.send_header('Transfer-Encoding', 'chunked'); self.end_headers()
            self.wfile.write(b'%x\\r\\n%s\\r\\n0\\r\\n\\r\\n' % (len(body), body))
        else:
            self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()
"""


async def test_http_server_becomes_ready_and_shows_numbers(bench: Bench) -> None:
    port = free_port()
    async with bench.tidy_agent() as agent:
        agent.receive(
            spawn(
                "web-0",
                *python(SERVER),
                str(port),
                ready=Probe(http=f"http://127.0.0.1:{port}/ok", **QUICK),
                live=Probe(tcp=f"127.0.0.1:{port}", **QUICK),
                metrics=Probe(http=f"http://127.0.0.1:{port}/ok-chunked", **QUICK),
            )
        )
        assert await bench.sent.one(Probed, that=lambda m: m.kind == "ready" and m.ok)
        assert await bench.sent.one(Probed, that=lambda m: m.kind == "live" and m.ok)
        scraped = await bench.sent.one(Scraped)
        assert scraped.values == {"requests_total": 42.0, 'queue{name="a b"}': 1.5}
        assert agent.hello().inventory[0].ready is True
        await aeventually(lambda: len(bench.sent.all(Scraped)) > 5)
        reply = [m.ok for m in bench.sent.all(Probed) if m.kind == "ready"]
        assert reply in ([True], [False, True]), "only changes are reported"


async def test_exec_readiness_follows_a_file_and_gets_its_placeholders(bench: Bench) -> None:
    flag = bench.home.run_dir / "flag-0"
    async with bench.tidy_agent() as agent:
        command = ("sh", "-c", "test -e {run_dir}/flag-{slot} || { echo not there yet; exit 3; }")
        agent.receive(spawn("web-0", *SLEEP, ready=Probe(exec=command, **QUICK)))
        no = await bench.sent.one(Probed)
        assert not no.ok
        assert no.detail == "exit 3: not there yet"
        flag.touch()
        assert await bench.sent.one(Probed, that=lambda m: m.ok)
        flag.unlink()
        await aeventually(lambda: [m.ok for m in bench.sent.all(Probed)] == [False, True, False])


async def test_probe_command_that_hangs_is_killed_with_its_children(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        probe = Probe(
            exec=("sh", "-c", "echo $$ >> {run_dir}/pids; sleep 1000 & echo $! >> {run_dir}/pids; wait"),
            interval_s=0.05,
            timeout_s=0.3,
            failures=1,
        )
        agent.receive(spawn("web-0", *SLEEP, ready=probe))
        no = await bench.sent.one(Probed)
        assert no.detail == "no answer within 0.3 s"
        seen = bench.home.run_dir / "pids"
        # A command that is killed before it has written its pid runs again.
        await aeventually(lambda: seen.exists() and len(seen.read_text().split()) >= 2)
        agent.incarnations["web-0.1"].kill_tree()
        await bench.sent.one(Exited)
        pids = [int(line) for line in seen.read_text().split()]
        await aeventually(
            lambda: not any(procfs.command(pid).startswith(("sleep 1000", "sh -c echo $$")) for pid in pids)
        )


async def test_hung_server_fails_liveness_only_after_its_first_answer(bench: Bench) -> None:
    port = free_port()
    async with bench.tidy_agent() as agent:
        live = Probe(http=f"http://127.0.0.1:{port}/ok", interval_s=0.05, timeout_s=0.3, failures=2)
        agent.receive(spawn("web-0", *python(SERVER), str(port), live=live, start_deadline_s=1000.0))
        assert (await bench.sent.one(Probed)).ok, "a slow start is no failure of liveness"
        os.kill((await bench.sent.one(Spawned)).pid, signal.SIGSTOP)
        no = await bench.sent.one(Probed, that=lambda m: not m.ok)
        assert no.kind == "live"
        assert no.detail == "no answer within 0.3 s"


async def test_probes_end_with_their_process(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP, ready=Probe(exec=("true",), **QUICK)))
        await bench.sent.one(Probed)
        agent.incarnations["web-0.1"].kill_tree()
        await bench.sent.one(Exited)
        await asyncio.sleep(0)
        await aeventually(lambda: not [t for t in asyncio.all_tasks() if "probe of web-0.1" in t.get_name()])


@asynccontextmanager
async def rude_server(answer: bytes) -> AsyncIterator[int]:
    visitors: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visitors.append(writer)
        await reader.readline()
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    # A connection may arrive at the last moment. An open one would cause a warning in a later test.
    for writer in visitors:
        writer.transport.abort()
    for writer in visitors:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_http_error_is_a_failure(bench: Bench) -> None:
    async with rude_server(b"HTTP/1.1 503 busy\r\n\r\n") as port, bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP, ready=Probe(http=f"http://127.0.0.1:{port}/", **QUICK)))
        no = await bench.sent.one(Probed)
        assert not no.ok
        assert no.detail == "HTTP 503"


@pytest.mark.parametrize("question", ["tcp", "http"])
async def test_closed_port_gives_a_reason_in_words(bench: Bench, question: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # so that no other program can listen there
        address = f"127.0.0.1:{held.getsockname()[1]}"
        probe = Probe(tcp=address, **QUICK) if question == "tcp" else Probe(http=f"http://{address}/", **QUICK)
        async with bench.tidy_agent() as agent:
            agent.receive(spawn("web-0", *SLEEP, ready=probe))
            assert (await bench.sent.one(Probed)).detail == "Connection refused"


@pytest.mark.parametrize(
    "answer",
    [b"", b"garbage\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"x" * 200_000],
    ids=["nothing", "garbage", "no number", "long line"],
)
async def test_server_that_does_not_speak_http_is_not_ready(bench: Bench, answer: bytes) -> None:
    async with rude_server(answer) as port, bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP, ready=Probe(http=f"http://127.0.0.1:{port}/", **QUICK)))
        no = await bench.sent.one(Probed)
        assert not no.ok
        assert no.detail


async def test_chunked_answer_with_a_broken_length_breaks_nothing(bench: Bench) -> None:
    body = b"HTTP/1.1 200 ok\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    async with rude_server(body) as port, bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP, ready=Probe(http=f"http://127.0.0.1:{port}/", **QUICK)))
        assert not (await bench.sent.one(Probed)).ok


def test_only_consecutive_failures_count() -> None:
    verdict = Verdict(failures=3)
    answers = [True, False, False, True, False, False, False, False, True]
    assert [verdict.changed_by(ok) for ok in answers] == [True, False, False, False, False, False, True, False, True]


def test_metric_lines_are_parsed() -> None:
    text = b'# TYPE a counter\na 1\nb{x="1"} 2.5 123\n\nbroken\nc abc\nd +Inf\ne 1e3\n'
    assert parse_metrics(text) == {"a": 1.0, 'b{x="1"}': 2.5, "e": 1000.0}


async def test_answer_of_another_program_at_the_port_does_not_make_a_dying_unit_ready(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port is in use: the unit dies because of it, while another program answers the probe."""
    monkeypatch.setattr(probes, "_OTHER_LISTENER_S", PATIENCE_S)  # a busy machine does not shorten the wait
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        at = f"127.0.0.1:{stranger.getsockname()[1]}"
        async with bench.tidy_agent() as agent:
            agent.receive(spawn("web-0", "sh", "-c", "sleep 1; exit 1", ready=Probe(tcp=at, **QUICK)))
            await bench.sent.one(Exited)
            assert [seen for seen in bench.sent.all(Probed) if seen.ok] == []


async def test_success_at_a_port_with_an_unknown_listener_counts_after_a_while(bench: Bench) -> None:
    """The port of a container is held by a process in another network namespace."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        at = f"127.0.0.1:{stranger.getsockname()[1]}"
        async with bench.tidy_agent() as agent:
            agent.receive(spawn("web-0", *SLEEP, ready=Probe(tcp=at, **QUICK)))
            assert await bench.sent.one(Probed, that=lambda seen: seen.ok)


@pytest.mark.parametrize(
    ("probe", "port"),
    [
        (Probe(http="http://127.0.0.1:81/x"), 81),
        (Probe(http="http://localhost/"), 80),
        (Probe(tcp="[::1]:7"), 7),
        (Probe(tcp=":9"), 9),
        (Probe(tcp="10.0.0.7:9"), 0),
        (Probe(http="http://far.example:81"), 0),
        (Probe(exec=("true",)), 0),
        (Probe(tcp="127.0.0.1:none"), 0),
    ],
)
def test_port_of_this_host_is_read_from_the_probe(probe: Probe, port: int) -> None:
    assert port_here(probe) == port


def test_process_that_listens_at_a_port_is_recognised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listens([os.getpid()], port)
        assert not listens([1 << 22], port)
    assert not listens([os.getpid()], port)

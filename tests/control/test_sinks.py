"""Notifications reach real files, commands, HTTP and SMTP servers; failures are reported."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.config.alerts import DeadMan, Sinks
from agentrl.config.secrets import SecretRef
from agentrl.control.alerts.alert_states import Notification
from agentrl.control.alerts.delivery_queues import DeadManPing, Dispatcher, RetryLimits, sinks_of
from agentrl.control.alerts.sinks import ExecSink, FileSink, MailSink, WebhookSink
from agentrl.protocol.rows import AlertRow, AlertState, Severity
from tests.waiting import aeventually

PYTHON = sys.executable


def note(subject: str = "web-0", what: str = "firing") -> Notification:
    alert = AlertRow(
        id=f"unit-fatal:{subject}",
        rule="unit-fatal",
        subject=subject,
        severity=Severity.PAGE,
        state=AlertState.FIRING,
        sentence=f"{subject} is fatal.\nBcc: everybody@example.org",
        since_at=5.0,
        evidence=("signal 9",),
        suggest=f"agentrl logs {subject}",
    )
    return Notification(what, alert, "my-run", "uuid")


async def test_file_gets_one_line_per_notification(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "alerts.jsonl")
    assert await sink.deliver(note()) == ""
    assert await sink.deliver(note("web-1", "resolved")) == ""
    first, second = map(json.loads, (tmp_path / "alerts.jsonl").read_text().splitlines())
    assert first["what"] == "firing"
    assert first["text"].startswith("[page] my-run: web-0 is fatal.")
    assert first["alert"]["evidence"] == ["signal 9"]
    assert second["text"].startswith("[resolved]")
    assert (tmp_path / "alerts.jsonl").stat().st_mode & 0o077 == 0


async def test_unwritable_file_is_reported(tmp_path: Path) -> None:
    assert "cannot be written: No such file" in await FileSink(tmp_path / "no" / "alerts").deliver(note())
    assert "cannot be written: No space left" in await FileSink(Path("/dev/full")).deliver(note())


async def test_command_gets_the_alert_on_stdin_and_in_its_environment(tmp_path: Path) -> None:
    code = (
        "import json, os, sys; out = {k: v for k, v in os.environ.items() if k.startswith('AGENTRL_ALERT')};"
        "out['stdin'] = json.load(sys.stdin); json.dump(out, open(sys.argv[1], 'w'))"
    )
    assert await ExecSink([PYTHON, "-c", code, str(tmp_path / "out")]).deliver(note()) == ""
    got = json.loads((tmp_path / "out").read_text())
    assert got["stdin"]["alert"]["id"] == got["AGENTRL_ALERT_ID"] == "unit-fatal:web-0"
    assert (got["AGENTRL_ALERT_SEVERITY"], got["AGENTRL_ALERT_STATE"]) == ("page", "firing")
    assert got["AGENTRL_ALERT_SUGGEST"] == "agentrl logs web-0"


async def test_failed_command_is_reported() -> None:
    code = "import sys; print('no pager', file=sys.stderr); sys.exit(3)"
    answer = await ExecSink([PYTHON, "-c", code]).deliver(note())
    assert answer.endswith("ended with 3: no pager.")
    assert "cannot be started" in await ExecSink(["/no/such/program"]).deliver(note())
    assert await ExecSink(["true"]).deliver(note()) == "", "a command may ignore its input"


async def test_hanging_command_is_killed_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"sleep 300 & echo $! > {pid_file}; wait"
    sink = ExecSink(["sh", "-c", script], deadline_s=1.0)

    async def has_begun() -> bool:
        """Repeats the delivery if the command was killed before it started its child."""
        assert "did not end within 1 s" in await sink.deliver(note())
        return pid_file.exists() and bool(pid_file.read_text())

    await aeventually(has_begun)
    pid = int(pid_file.read_text())

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    await aeventually(gone)


class HttpServer:
    """A real HTTP server with configurable answers."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.statuses: list[int] = []
        self.hang = False
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [
                line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
            ]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            self.requests.append((head.split(b" HTTP")[0].decode(), body))
            if self.hang:
                await reader.read()
                return
            status = self.statuses.pop(0) if self.statuses else 200
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
            await writer.drain()


@pytest.fixture
async def http() -> AsyncIterator[HttpServer]:
    made = HttpServer()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook/s3cret"
    async with server:
        yield made


async def test_webhook_posts_json(http: HttpServer) -> None:
    assert await WebhookSink(http.url).deliver(note()) == ""
    ((line, body),) = http.requests
    assert line == "POST /hook/s3cret"
    assert json.loads(body)["alert"]["rule"] == "unit-fatal"


async def test_failed_webhook_is_reported_without_its_secret(http: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    http.statuses = [500]
    answers = [await WebhookSink(http.url).deliver(note())]
    assert "was 500" in answers[0]
    http.hang = True
    answers.append(await WebhookSink(http.url, deadline_s=0.3).deliver(note()))
    assert "No answer" in answers[1]
    answers.append(await WebhookSink("http://127.0.0.1:1/s3cret").deliver(note()))
    monkeypatch.setenv("HOOK", "http://127.0.0.1:1/s3cret")
    answers.append(await WebhookSink(SecretRef("env:HOOK")).deliver(note()))
    assert "env:HOOK" in answers[3]
    monkeypatch.delenv("HOOK")
    answers.append(await WebhookSink(SecretRef("env:HOOK")).deliver(note()))
    answers.append(await WebhookSink("no url at all s3cret").deliver(note()))
    assert all(answers)
    assert not any("s3cret" in answer for answer in answers), answers


async def smtp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mails: list[str]) -> None:
    """The part of SMTP that a client needs to send a mail."""
    with contextlib.closing(writer):
        writer.write(b"220 test\r\n")
        while line := await reader.readline():
            verb = line[:4].upper()
            if verb == b"DATA":
                writer.write(b"354 go on\r\n")
                mails.append((await reader.readuntil(b"\r\n.\r\n")).decode())
            writer.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
            await writer.drain()
            if verb == b"QUIT":
                return


async def test_mail_arrives_without_injected_headers() -> None:
    mails: list[str] = []
    server = await asyncio.start_server(lambda reader, writer: smtp(reader, writer, mails), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        sink = MailSink(["ann@example.org", "bob@example.org"], "run@example.org", port=port)
        assert await sink.deliver(note()) == ""
    (mail,) = mails
    head, _, body = mail.partition("\r\n\r\n")
    assert "Subject: [page] my-run: web-0 is fatal. Bcc: everybody@example.org" in head
    assert not any(line.startswith("Bcc:") for line in head.splitlines())
    assert "To: ann@example.org, bob@example.org" in head
    assert "- signal 9" in body
    assert "Suggested: agentrl logs web-0" in body


async def test_unreachable_mail_server_is_reported() -> None:
    assert "did not take the mail" in await MailSink(["a@example.org"], "b@example.org", port=1).deliver(note())


class Flaky:
    """A sink whose first deliveries fail."""

    def __init__(self, name: str, failures: int = 0) -> None:
        self.name = name
        self.failures = failures
        self.got: list[str] = []
        self.gate: asyncio.Event | None = None

    async def deliver(self, notification: Notification) -> str:
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            self.failures -= 1
            return "Not now."
        self.got.append(notification.alert.subject)
        return ""


@contextlib.asynccontextmanager
async def running(dispatcher: Dispatcher) -> AsyncIterator[None]:
    task = asyncio.create_task(dispatcher.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


QUICK = RetryLimits(tries=4, first_pause_s=0.01, queue=5)


async def test_failed_delivery_is_retried_and_visible_until_it_works() -> None:
    reply: list[str] = []
    flaky = Flaky("flaky", failures=2)
    dispatcher = Dispatcher([flaky], on_failure=lambda name, why: reply.append(why), limits=QUICK)
    async with running(dispatcher):
        dispatcher.offer(note("web-0"))
        dispatcher.offer(note("web-1"))
        await aeventually(lambda: dispatcher.idle)
    assert flaky.got == ["web-0", "web-1"]
    assert reply == ["Not now.", "Not now.", ""]
    assert dispatcher.failures == {}


async def test_delivery_is_given_up_after_all_tries() -> None:
    dispatcher = Dispatcher([Flaky("dead", failures=10**6)], limits=QUICK)
    async with running(dispatcher):
        dispatcher.offer(note())
        await aeventually(lambda: dispatcher.idle)
    assert dispatcher.failures == {"dead": "Not now. Given up for unit-fatal:web-0."}


async def test_slow_sink_delays_no_other_and_drops_the_oldest() -> None:
    slow, quick = Flaky("slow"), Flaky("quick")
    slow.gate = asyncio.Event()
    reply: list[str] = []
    dispatcher = Dispatcher([slow, quick], on_failure=lambda name, why: reply.append(f"{name}: {why}"), limits=QUICK)
    async with running(dispatcher):
        for number in range(9):
            dispatcher.offer(note(f"web-{number}"))
            await aeventually(lambda number=number: len(quick.got) == number + 1)  # type: ignore[misc]
        assert slow.got == []
        slow.gate.set()
        await aeventually(lambda: dispatcher.idle)
    assert slow.got == ["web-0", "web-4", "web-5", "web-6", "web-7", "web-8"]
    assert quick.got == [f"web-{number}" for number in range(9)]
    assert any("one of unit-fatal:web-1 was dropped" in sentence for sentence in reply)


async def test_new_dispatcher_takes_over_queued_notifications() -> None:
    slow, gone = Flaky("slow"), Flaky("gone")
    slow.gate, gone.gate = asyncio.Event(), asyncio.Event()
    arrived: list[str] = []

    def delivered(notification: Notification) -> None:
        arrived.append(notification.alert.subject)

    before = Dispatcher([slow, gone], on_delivered=delivered, limits=QUICK)
    async with running(before):
        for number in range(3):
            before.offer(note(f"web-{number}"))
        await aeventually(lambda: not before.idle)
    other, new = Flaky("slow"), Flaky("new")
    after = Dispatcher([other, new], on_delivered=delivered, limits=QUICK, previous=before)
    async with running(after):
        after.offer(note("web-3"))
        await aeventually(lambda: after.idle)
    assert other.got == arrived == ["web-0", "web-1", "web-2", "web-3"]
    assert new.got == ["web-3"], "a new sink gets no earlier notifications"
    assert slow.got == gone.got == []


async def test_notification_is_delivered_when_all_sinks_are_done_and_one_took_it() -> None:
    slow, dead = Flaky("slow"), Flaky("dead", failures=10**6)
    slow.gate = asyncio.Event()
    arrived: list[Notification] = []
    dispatcher = Dispatcher([slow, dead], on_delivered=arrived.append, limits=QUICK)
    async with running(dispatcher):
        dispatcher.offer(note())
        await aeventually(lambda: "Given up" in dispatcher.failures.get("dead", ""))
        assert arrived == []
        slow.gate.set()
        await aeventually(lambda: dispatcher.idle)
        assert arrived == [note()]
    failing = Dispatcher([Flaky("dead", failures=10**6)], on_delivered=arrived.append, limits=QUICK)
    async with running(failing):
        failing.offer(note("web-1"))
        await aeventually(lambda: failing.idle)
    assert arrived == [note()]


async def test_exception_in_a_sink_does_not_stop_later_notifications() -> None:
    class Broken(Flaky):
        async def deliver(self, notification: Notification) -> str:
            if notification.alert.subject == "web-0":
                raise ZeroDivisionError("unforeseen")
            return await super().deliver(notification)

    broken = Broken("broken")
    dispatcher = Dispatcher([broken], limits=QUICK)
    async with running(dispatcher):
        dispatcher.offer(note("web-0"))
        dispatcher.offer(note("web-1"))
        await aeventually(lambda: broken.got == ["web-1"])


async def test_test_notification_is_sent_once_to_every_sink(tmp_path: Path, http: HttpServer) -> None:
    http.statuses = [404]
    dispatcher = Dispatcher([FileSink(tmp_path / "alerts"), WebhookSink(http.url)], limits=QUICK)
    answers = await dispatcher.test(note(what="test"))
    assert answers == {"file": "", "webhook": "The answer from 127.0.0.1 was 404."}


def test_sinks_are_built_from_the_configuration(tmp_path: Path) -> None:
    declared = Sinks.model_validate(
        {
            "file": {"path": "alerts.jsonl"},
            "webhook": {"url": "env:HOOK"},
            "exec": {"command": ["notify", "--now"]},
            "mail": {"to": ["a@example.org"], "from": "b@example.org"},
        }
    )
    sinks = {sink.name: sink for sink in sinks_of(declared, tmp_path)}
    assert list(sinks) == ["file", "exec", "webhook", "mail"]
    assert sinks["file"] == FileSink(tmp_path / "alerts.jsonl")
    assert sinks["webhook"] == WebhookSink(SecretRef("env:HOOK"))
    assert sinks_of(Sinks(), tmp_path) == []


def dead_man(tmp_path: Path, **declared: object) -> DeadManPing:
    return DeadManPing(DeadMan.model_validate({"every_s": 0.4, **declared}), tmp_path, lambda: 1234.5)


async def test_dead_man_ping_repeats_until_it_is_stopped(tmp_path: Path, http: HttpServer) -> None:
    for declared, count in (
        ({"file": "alive"}, lambda: (tmp_path / "alive").exists()),
        ({"url": http.url}, lambda: len(http.requests) >= 3),
        ({"exec": ["sh", "-c", f"echo x >> {tmp_path}/pings"]}, lambda: lines(tmp_path / "pings") >= 3),
    ):
        sign = dead_man(tmp_path, **declared)  # type: ignore[arg-type]
        task = asyncio.create_task(sign.run())
        await aeventually(count)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert (tmp_path / "alive").read_text() == "1234\n"


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("declared", [{"file": "no/alive"}, {"url": "http://127.0.0.1:1/"}, {"exec": ["false"]}])
async def test_failed_ping_is_reported(tmp_path: Path, declared: dict[str, object]) -> None:
    assert await dead_man(tmp_path, **declared).ping()


async def test_commands_inherit_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER_TOKEN", "x")
    assert await ExecSink(["sh", "-c", 'test -n "$PAGER_TOKEN"']).deliver(note()) == ""
    assert await ExecSink(["sh", "-c", 'test -n "$NO_SUCH_THING"']).deliver(note()) != ""

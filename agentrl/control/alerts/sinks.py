"""Implements the sinks of notifications: a file, a command, a webhook, mail.

Invariants:
- A sink never raises and never blocks the coordinator.
- Each delivery has a deadline.
- A secret (the URL of a webhook) is resolved when it is used and appears in no message.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import smtplib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Protocol

import msgspec

from agentrl.config.secrets import SecretRef, is_reference, resolve_secret
from agentrl.control.alerts.alert_states import Notification
from agentrl.errors import ConfigError
from agentrl.formatting.sentences import ended
from agentrl.host import procfs

DEADLINE_S = 10.0


class Sink(Protocol):
    """One way to send notifications."""

    @property
    def name(self) -> str: ...

    async def deliver(self, notification: Notification) -> str:
        """Returns an empty text if the notification was delivered, otherwise the reason why not."""
        ...


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """The content that every sink sends. Common chat webhooks show `text`."""

    text: str
    what: str
    run: str
    uuid: str
    alert: msgspec.Raw


def payload(notification: Notification) -> bytes:
    return msgspec.json.encode(
        Payload(
            text=headline(notification),
            what=notification.what,
            run=notification.run,
            uuid=notification.uuid,
            alert=msgspec.Raw(msgspec.json.encode(notification.alert)),
        )
    )


def headline(notification: Notification) -> str:
    """`[page] my-run: web-0 is fatal ...`"""
    alert = notification.alert
    word = alert.severity if notification.what in ("firing", "repeated") else notification.what
    return f"[{word}] {notification.run}: {alert.sentence}"


@dataclass(frozen=True)
class FileSink:
    """One line of JSON per notification."""

    path: Path
    name: str = "file"

    async def deliver(self, notification: Notification) -> str:
        line = payload(notification) + b"\n"
        try:
            # A single write to a local file needs no thread, and lines of two coordinators never mix.
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                written = os.write(handle, line)
            finally:
                os.close(handle)
        except OSError as failed:
            return f"{self.path} cannot be written: {failed.strerror}."
        return "" if written == len(line) else f"{self.path} was written only in part; the disk may be full."


@dataclass(frozen=True)
class ExecSink:
    """A command that reads the notification from its standard input and its main fields from its environment."""

    command: Sequence[str]
    deadline_s: float = DEADLINE_S
    name: str = "exec"

    async def deliver(self, notification: Notification) -> str:
        alert = notification.alert
        env = {
            "AGENTRL_ALERT_WHAT": notification.what,
            "AGENTRL_ALERT_ID": alert.id,
            "AGENTRL_ALERT_RULE": alert.rule,
            "AGENTRL_ALERT_SUBJECT": alert.subject,
            "AGENTRL_ALERT_SEVERITY": alert.severity,
            "AGENTRL_ALERT_STATE": alert.state,
            "AGENTRL_ALERT_SENTENCE": alert.sentence,
            "AGENTRL_ALERT_SUGGEST": alert.suggest,
            "AGENTRL_ALERT_RUN": notification.run,
        }
        return await run_command(self.command, payload(notification), env, self.deadline_s)


@dataclass(frozen=True)
class WebhookSink:
    """A POST of JSON. `url` may be a reference to a secret."""

    url: str | SecretRef
    deadline_s: float = DEADLINE_S
    name: str = "webhook"

    async def deliver(self, notification: Notification) -> str:
        return await request("POST", self.url, payload(notification), self.deadline_s)


@dataclass(frozen=True)
class MailSink:
    """Mail over SMTP to a relay without login."""

    to: Sequence[str]
    sender: str
    host: str = "127.0.0.1"
    port: int = 25
    deadline_s: float = DEADLINE_S
    name: str = "mail"

    async def deliver(self, notification: Notification) -> str:
        try:
            # The thread ends by its own timeouts; this deadline frees the queue if the server answers byte by byte.
            async with asyncio.timeout(self.deadline_s * 3):
                await asyncio.to_thread(self._send, self._message(notification))
        except TimeoutError:
            return f"The mail server {self.host}:{self.port} did not answer within {self.deadline_s * 3:g} s."
        except (OSError, smtplib.SMTPException, ValueError) as failed:
            return ended(f"The mail server {self.host}:{self.port} did not take the mail: {failed}")
        return ""

    def _send(self, message: EmailMessage) -> None:
        with smtplib.SMTP(self.host, self.port, timeout=self.deadline_s) as server:
            server.send_message(message)

    def _message(self, notification: Notification) -> EmailMessage:
        alert = notification.alert
        message = EmailMessage()
        # A header must be one line, but the status of a unit may have several.
        message["Subject"] = " ".join(headline(notification).split())[:200]
        message["From"] = self.sender
        message["To"] = ", ".join(self.to)
        lines = [alert.sentence, "", *(f"- {line}" for line in alert.evidence)]
        if alert.suggest:
            lines += ["", f"Suggested: {alert.suggest}"]
        lines += ["", f"Alert {alert.id} ({alert.state}) of run {notification.run} ({notification.uuid})."]
        message.set_content("\n".join(lines))
        return message


running_commands: set[int] = set()
"""The pids of running commands, by which the coordinator recognises them (`local_peers.py`)."""


def _mark(environ: Mapping[str, str]) -> dict[str, str]:
    name = procfs.MARK_RUN.decode()
    return {name: environ[name]} if name in environ else {}


async def run_command(command: Sequence[str], stdin: bytes, env: Mapping[str, str], deadline_s: float) -> str:
    """Runs a command, or kills its process group at the deadline. Returns an empty text if it exited with 0."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # The command keeps the mark of the run, so that `down` finds its leftover processes. It is not a unit.
            env={**procfs.without_marks(os.environ), **_mark(os.environ), **env},
            start_new_session=True,
        )
    except (OSError, ValueError) as failed:
        return ended(f"The command {command[0]} cannot be started: {failed}")
    running_commands.add(process.pid)
    try:
        async with asyncio.timeout(deadline_s):
            _, errors = await process.communicate(stdin)
    except TimeoutError:
        return f"The command {command[0]} did not end within {deadline_s:g} s and was killed."
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        running_commands.discard(process.pid)
    if process.returncode == 0:
        return ""
    last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no error output"]
    return ended(f"The command {command[0]} ended with {process.returncode}: {last[0][:200]}")


async def request(method: str, url: str | SecretRef, body: bytes, deadline_s: float) -> str:
    """Sends one HTTP request. Returns an empty text on success. No message contains the URL, which is often a
    secret."""
    # Imported here, because the import costs 0.1 s at each start of a coordinator without webhooks.
    import httpx

    try:
        target = resolve_secret(url) if isinstance(url, SecretRef) or is_reference(url) else url
    except ConfigError as missing:
        return missing.message
    where = f"the URL {url}" if isinstance(url, SecretRef) or is_reference(url) else _host_of(target)
    try:
        async with asyncio.timeout(deadline_s), httpx.AsyncClient(timeout=deadline_s) as client:
            answer = await client.request(
                method, target, content=body or None, headers={"content-type": "application/json"} if body else None
            )
    except TimeoutError:
        return f"No answer from {where} within {deadline_s:g} s."
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as failed:
        return f"No answer from {where}: {type(failed).__name__}."
    return "" if answer.is_success else f"The answer from {where} was {answer.status_code}."


def _host_of(url: str) -> str:
    import httpx

    try:
        return httpx.URL(url).host or "the URL"
    except (httpx.InvalidURL, ValueError):
        return "the URL"

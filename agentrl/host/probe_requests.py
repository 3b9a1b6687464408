"""One request of a probe: exec, HTTP or TCP.

* A request ends within its timeout, whatever the other program does. * A command is killed with its process group when
the time is over. * A response has a bounded body.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentrl.host.child_processes import ChildProcesses, Process
from agentrl.host.log_files import clean
from agentrl.protocol.messages import ExitStatus
from agentrl.protocol.specs import Probe

BODY_BYTES = 256 << 10


@dataclass(frozen=True)
class ProbeResult:
    ok: bool
    detail: str = ""
    """The reason of a failure, in words."""
    body: bytes = b""


async def run_probe(
    probe: Probe, processes: ChildProcesses, env: Mapping[str, str], cwd: str | None = None
) -> ProbeResult:
    try:
        async with asyncio.timeout(probe.timeout_s):
            if probe.exec:
                return await _exec(probe.exec, processes, env, cwd)
            if probe.http:
                return await _http(probe.http)
            return await _tcp(probe.tcp)
    except TimeoutError:
        return ProbeResult(False, f"no answer within {probe.timeout_s:g} s")
    except OSError as failed:
        # asyncio replaces the reason by "Connect call failed", so it is derived from the number; numbers of name
        # lookups are negative.
        number = failed.errno or 0
        reason = os.strerror(number) if number > 0 else failed.strerror
        return ProbeResult(False, reason or str(failed))
    except ValueError as wrong:
        return ProbeResult(False, str(wrong))


async def _exec(
    command: tuple[str, ...], processes: ChildProcesses, env: Mapping[str, str], cwd: str | None
) -> ProbeResult:
    ended: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()

    def on_exit(process: Process, status: ExitStatus) -> None:
        if not ended.done():
            ended.set_result(status)

    # The output goes to a file in memory: a pipe could fill up, or stay open in children of the command.
    output = os.memfd_create("probe", os.MFD_CLOEXEC)
    try:
        process = processes.spawn(command, env=env, on_exit=on_exit, output=output, cwd=cwd)
        try:
            status = await asyncio.shield(ended)
        finally:
            process.signal_group(signal.SIGKILL)  # has no effect if it ended by itself
        body = os.pread(output, BODY_BYTES, 0)
    finally:
        os.close(output)
    if status.code == 0:
        return ProbeResult(True, body=body)
    lines = body.decode(errors="replace").splitlines()
    return ProbeResult(False, f"{status}: {clean(lines[-1])}" if lines else str(status), body)


def port_here(probe: Probe) -> int:
    """The port of this host that a probe connects to; 0 for another host or another kind of probe."""
    try:
        parts = urlsplit(probe.http) if probe.http else urlsplit(f"//{probe.tcp}")
        local = (parts.hostname or "127.0.0.1") in ("127.0.0.1", "localhost", "::1")
        return (parts.port or (80 if probe.http else 0)) if local else 0
    except ValueError:
        return 0


async def _tcp(address: str) -> ProbeResult:
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host.strip("[]") or "127.0.0.1", int(port))
    await _close(writer)
    return ProbeResult(True)


async def _http(url: str) -> ProbeResult:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{url!r} is not an address such as http://127.0.0.1:8000/health")
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        writer.write(
            f"GET {target} HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\nUser-Agent: agentrl\r\n"
            "Accept: */*\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        return await _response(reader)
    finally:
        await _close(writer)


async def _response(reader: asyncio.StreamReader) -> ProbeResult:
    status_line = (await reader.readline()).split(maxsplit=2)
    if len(status_line) < 2 or not status_line[0].startswith(b"HTTP/") or not status_line[1].isdigit():
        raise ValueError("the answer is not HTTP")
    code = int(status_line[1])
    headers: dict[bytes, bytes] = {}
    while (line := await reader.readline()).strip():
        if len(headers) > 200:
            raise ValueError("the answer has too many headers")
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    if not 200 <= code < 400:
        return ProbeResult(False, f"HTTP {code}")
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return ProbeResult(True, body=await _chunks(reader))
    length = headers.get(b"content-length", b"")
    most = min(int(length), BODY_BYTES) if length.isdigit() else BODY_BYTES
    return ProbeResult(True, body=await _up_to(reader, most))


async def _up_to(reader: asyncio.StreamReader, most: int) -> bytes:
    parts = []
    while most > 0 and (part := await reader.read(most)):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while len(body) < BODY_BYTES:
        size = int((await reader.readline()).split(b";")[0].strip() or b"0", 16)
        if size <= 0:
            break
        body += await _up_to(reader, min(size, BODY_BYTES))
        await reader.readline()
    return body


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()

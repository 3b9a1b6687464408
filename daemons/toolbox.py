"""Runs a toolbox as a unit of the role `toolbox`: `python -m daemons.toolbox`.

Invariants:
- The unit is ready when it listens. It is incomplete until every server has come up or failed to.
- A server that does not start is a problem of the unit, is named in the Service document, and is tried again.
- A drain takes no new sessions and lets open ones end, if there is a sampler or another caller that may use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

from agentrl.config.http_token import http_token
from agentrl.config.outside_access import OutsideAccess
from agentrl.config.serialization import secret_files
from agentrl.errors import ConfigError
from agentrl.formatting.amounts import counted
from agentrl.http.run_hosts import known_as
from agentrl.http.token_server import listening
from agentrl.mcp_endpoint.mcp_listener import mcp_listening, tokens_of
from agentrl.store import owners, run_database
from agentrl.store.database import Database, StoreError
from agentrl.store.documents import Service
from agentrl.telemetry import data_plane_metrics
from agentrl.toolbox.api import build_app
from agentrl.toolbox.served_tool_commands import ServedToolCommands
from agentrl.toolbox.service_report import ServiceReporter, parts_of, problems_of, starting, status_of, waits_of
from agentrl.toolbox.toolbox import Quotas, Toolbox
from agentrl.tracing import log_format
from agentrl.unit import Unit, run_unit
from daemons import run_files

log = logging.getLogger("toolbox")
LOOK_EVERY_S = 0.5
TOOLS_EVERY_S = 2.0
NO_PROGRESS_AT_MOST_S = 60.0
DRAIN_WITHIN_S = 30.0
LEAVE_WITHIN_S = 10.0
LEFT_AFTER_S = 2.0
"""If there is no sampler, sessions that were used more recently belong to a caller outside of the run."""


async def main(unit: Unit) -> None:
    if unit.state_dir is None:
        raise ConfigError("A toolbox needs the state directory of its run.", hint="Start it with `agentrl up`.")
    log_format.set_up()
    # The SDK logs tracebacks for faults of servers; the toolbox logs one sentence.
    for noisy in ("mcp", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    _, config = await run_files.prepared(unit, "toolbox")
    name = f"{unit.name}.{unit.incarnation}"
    # No episode takes longer, so a session without calls for this long belongs to a dead sampler.
    quotas = Quotas(idle_s=max(60.0, config.rollout.episode_s))
    toolbox = Toolbox(config.tools, run_dir=unit.run_dir, name=name, quotas=quotas, secret_files=secret_files(config))
    app = build_app(toolbox, http_token(unit.state_dir))
    database = await run_database.open_database(config, unit.state_dir)
    try:
        async with toolbox.running(), listening(app) as url:
            me = Service(id=name, unit=unit.name, url=known_as(url), slots=quotas.sessions)
            reporter = ServiceReporter(toolbox, database, me)
            _report_servers(unit, toolbox)
            unit.answer(ServedToolCommands(toolbox).answer)
            async with _following(reporter), _outside(unit, toolbox, config.outside):
                unit.ready()
                with unit.phase("serving", at_most_s=NO_PROGRESS_AT_MOST_S):
                    await _serve(unit, toolbox)
                    await _drain(unit, toolbox, reporter, database)
            await reporter.leave("gone")
    finally:
        await database.close()


def _report_servers(unit: Unit, toolbox: Toolbox) -> None:
    servers = toolbox.servers()
    unit.status(status_of(servers, toolbox.open_sessions))
    unit.parts(parts_of(servers))
    unit.publish_waits(waits_of(unit.name, servers))
    unit.incomplete(starting(servers))
    for name, problem in problems_of(servers).items():
        unit.problem(name, problem)


@contextlib.asynccontextmanager
async def _following(reporter: ServiceReporter) -> AsyncIterator[None]:
    task = asyncio.create_task(reporter.follow(), name="report toolbox")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextlib.asynccontextmanager
async def _outside(unit: Unit, toolbox: Toolbox, access: OutsideAccess) -> AsyncIterator[None]:
    """Serve programs outside of the run. If that is not possible, episodes go on."""
    async with contextlib.AsyncExitStack() as serving:
        # Only one toolbox, because a second one would find the port taken.
        if access.port and unit.name.endswith("-0"):
            problem = ""
            try:
                tokens = tokens_of(access)
                url = await serving.enter_async_context(mcp_listening(toolbox, access, tokens))
                log.info("programs outside of the run find its tools at %s", url)
            except OSError as taken:
                problem = f"the port {access.port} (outside.port) cannot be used: {taken.strerror}"
            except ConfigError as missing:
                problem = missing.message
            unit.problem("outside access", problem)
        yield


async def _serve(unit: Unit, toolbox: Toolbox) -> None:
    calls, tools_at = 0, 0.0
    meter = data_plane_metrics.Meter(time.monotonic())
    while await unit.sleep_async(LOOK_EVERY_S):
        unit.tick()
        toolbox.paused = unit.paused
        _report_servers(unit, toolbox)
        unit.metric(data_plane_metrics.RUNNING.name, toolbox.running_calls)
        unit.metric("sessions", toolbox.open_sessions)
        unit.metric("calls_per_s", (toolbox.statistics.calls - calls) / LOOK_EVERY_S)
        unit.metric("infrastructure_errors", toolbox.statistics.infrastructure)
        calls = toolbox.statistics.calls
        now = time.monotonic()
        meter.set(toolbox.running_calls, toolbox.call_slots, now)
        if now >= tools_at:
            tools_at = now + TOOLS_EVERY_S
            _report_tools(unit, toolbox)
            for name, value in meter.read(now).items():
                unit.metric(name, value)


def _report_tools(unit: Unit, toolbox: Toolbox) -> None:
    for name, recent in toolbox.statistics.recent().items():
        unit.metric(data_plane_metrics.named(data_plane_metrics.TOOL_RATE, name), recent.per_s)
        unit.metric(data_plane_metrics.named(data_plane_metrics.TOOL_FAILURES, name), recent.failures)
        if recent.calls:
            unit.metric(data_plane_metrics.named(data_plane_metrics.TOOL_P95, name), recent.p95_s)
    for server in toolbox.servers():
        unit.metric(data_plane_metrics.named(data_plane_metrics.BREAKER_OPEN, server.id), server.breaker != "closed")


async def _drain(unit: Unit, toolbox: Toolbox, reporter: ServiceReporter, database: Database) -> None:
    unit.extend_stop(DRAIN_WITHIN_S + 2 * LEAVE_WITHIN_S)
    toolbox.draining = True
    await reporter.leave("draining")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_WITHIN_S):
            while toolbox.open_sessions and not await _is_left(toolbox, database):
                unit.status(f"draining, {counted(toolbox.open_sessions, 'sessions')} open")
                unit.tick()
                await asyncio.sleep(LOOK_EVERY_S / 5)


async def _is_left(toolbox: Toolbox, database: Database) -> bool:
    """Whether the open sessions wait for samplers that will not come. Samplers that end leave their sessions to their
    successors."""
    if toolbox.idle_s < LEFT_AFTER_S:
        return False
    try:
        return await owners.count_alive(database, "sampler") == 0
    except StoreError:
        return False


if __name__ == "__main__":
    run_unit(main)

"""The main loop of an embedded inference engine: `python -m daemons.engine`, as a unit of the role `engine`.

Invariants: the unit is ready once it listens, whatever the weights; it is routed once it serves a verified version,
which its Service document tells; a drain takes no new calls and lets those under way end; an engine whose thread ended
ends the unit.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import torch

from agentrl.config.tokenfile import http_token
from agentrl.engines.embedded.engine import EmbeddedEngine
from agentrl.engines.embedded.server import build_app
from agentrl.engines.published import StoredPublications
from agentrl.engines.puller import Puller, ServiceReport
from agentrl.errors import ConfigError
from agentrl.http.server import listening
from agentrl.store import access
from agentrl.telemetry.services import Meter
from agentrl.unit import Unit, run_unit

LOOK_EVERY_S = 0.5
STANDS_AT_MOST_S = 120.0
"""One round of computing takes well under a second; an engine that stands this long hangs."""
DRAIN_WITHIN_S = 30.0
LEAVE_WITHIN_S = 5.0


async def main(unit: Unit) -> None:
    if unit.state_dir is None:
        raise ConfigError("An engine needs the state directory of its run.", hint="Start it with `agentrl up`.")
    config = access.configuration(unit.run_dir)
    if config.engines.kind != "embedded":
        # Weights of another engine than the one that was asked for would be sampled from, and nobody would notice.
        raise ConfigError(
            f"This unit runs embedded engines, and engines.kind is {config.engines.kind}.",
            hint="Write engines: {kind: embedded}.",
        )
    torch.set_num_threads(config.engines.threads)
    engine = EmbeddedEngine(slots=config.engines.slots, context=config.sampling.context)
    database = access.open_database(config, unit.state_dir)
    engine.start()
    try:
        async with listening(build_app(engine, http_token(unit.state_dir))) as url:
            me = ServiceReport(id=f"{unit.name}.{unit.incarnation}", unit=unit.name, url=url)
            puller = Puller(
                engine,
                StoredPublications(database),
                me,
                run_dir=unit.run_dir,
                on_version=lambda version: setattr(unit, "weights", version),
                on_news=unit.status,
            )
            unit.status(f"listens at {url}, waits for weights")
            async with _following(puller) as following:
                unit.ready()
                with unit.phase("serving", at_most_s=STANDS_AT_MOST_S):
                    await _serve(unit, engine, following)
                    await _drain(unit, engine, puller)
            await puller.leave("gone")
    finally:
        await engine.close()
        await database.close()


@contextlib.asynccontextmanager
async def _following(puller: Puller) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(puller.follow(), name="follow publications")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _serve(unit: Unit, engine: EmbeddedEngine, following: asyncio.Task[None]) -> None:
    """Watch until the drain. The phase around is touched while the engine computes, or has nothing to compute."""
    steps, tokens, parked = -1, 0, False
    meter = Meter(time.monotonic())
    while await unit.sleep_async(LOOK_EVERY_S):
        if following.done():
            following.result()
        if engine.failure is not None:
            raise engine.failure
        if unit.paused != parked:
            parked = unit.paused
            await (engine.pause("in_place") if parked else engine.resume())
        if engine.steps != steps or not engine.busy:
            steps = engine.steps
            unit.tick()
        load = await engine.load()
        unit.metric("tokens_per_s", (load.generated_tokens - tokens) / LOOK_EVERY_S)
        unit.metric("running", load.running)
        unit.metric("waiting", load.waiting)
        tokens = load.generated_tokens
        meter.set(load.running, load.slots, time.monotonic())
        for name, value in meter.read(time.monotonic()).items():
            unit.metric(name, value)


async def _drain(unit: Unit, engine: EmbeddedEngine, puller: Puller) -> None:
    unit.status("draining")
    unit.extend_stop(DRAIN_WITHIN_S + 2 * LEAVE_WITHIN_S)
    await puller.leave("draining")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_WITHIN_S):
            while engine.busy:
                await asyncio.sleep(LOOK_EVERY_S / 5)
                unit.tick()


if __name__ == "__main__":
    run_unit(main)

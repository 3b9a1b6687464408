"""Runs an inference engine as a unit of the role `engine`: `python -m daemons.engine`.

Invariants:
- The unit is ready once it follows the publications, with or without weights.
- The unit gets calls once its Service document reports a verified version.
- A drain accepts no new calls and lets running calls end.
- An engine that dies, or whose load does not end, ends the unit.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator
from pathlib import Path

from agentrl.config.http_token import TOKEN_FILE, http_token
from agentrl.config.run import RunConfig
from agentrl.engines.canary import Agreement
from agentrl.engines.device_turns import DeviceTurns
from agentrl.engines.http_server import build_app
from agentrl.engines.openai_engine import OpenAiEngine
from agentrl.engines.publication_follower import PublicationFollower, RunningEngine
from agentrl.engines.publication_store import StoredPublications
from agentrl.engines.sglang.sglang_engine import SglangEngine
from agentrl.engines.vllm.vllm_engine import VllmEngine
from agentrl.errors import ConfigError
from agentrl.http.free_ports import free_port
from agentrl.http.run_hosts import known_as
from agentrl.http.token_server import listening
from agentrl.store import run_database, service_registry
from agentrl.store.documents import Service
from agentrl.telemetry.data_plane_metrics import (
    CANARY_AT,
    CANARY_LARGEST,
    CANARY_OVER_LIMIT,
    RUNNING,
    TOKENS_PER_S,
    Meter,
)
from agentrl.tracing import log_format
from agentrl.unit import Unit, run_unit
from daemons import run_files

LOOK_EVERY_S = 0.5
NO_VERSION = "it serves no version yet"
NO_PROGRESS_AT_MOST_S = 120.0
"""A computing round takes far less than a second; an engine without progress for this long hangs."""
DRAIN_WITHIN_S = 30.0
LEAVE_WITHIN_S = 5.0


async def main(unit: Unit) -> None:
    if unit.state_dir is None:
        raise ConfigError("An engine needs the state directory of its run.", hint="Start it with `agentrl up`.")
    log_format.set_up()
    files, config = await run_files.prepared(unit, "engine")
    weights = run_files.EngineFiles(unit, files)
    database = await run_database.open_database(config, unit.state_dir)
    try:
        async with _engine(config, unit.state_dir, of_evaluations=only_evaluates(unit, config)) as running:
            follower = PublicationFollower(
                running.engine,
                StoredPublications(database, load_within_s=config.engines.load_s),
                Service(kind="engine", id=f"{unit.name}.{unit.incarnation}", unit=unit.name, url=known_as(running.url)),
                run_dir=unit.run_dir,
                second=running.second,
                evaluates=config.evaluation.engine == "shared" and (running.second is not None or unit.slot == 0),
                only_evaluates=only_evaluates(unit, config),
                bring=weights.bring,
                keep=weights.keep,
                brought=lambda: files.share,
                load_within_s=config.engines.load_s,
                on_version=functools.partial(_report_version, unit, config),
                on_canary=lambda agreement: _report_canary(unit, agreement),
                on_serving=functools.partial(_report_serving, unit),
                on_problem=functools.partial(_report_problem, unit),
                on_news=unit.status,
                waiting_for=lambda version: unit.wait(
                    "its weights to be loaded", on=f"version {version}", at_most_s=config.engines.load_s
                ),
            )
            unit.status(f"serves at {running.url} once it has weights")
            unit.incomplete("" if only_evaluates(unit, config) else NO_VERSION)
            asked = functools.partial(service_registry.turn_is_taken, database)
            turns = DeviceTurns(follower, running.engine, asked, paused=lambda: unit.paused)
            async with _following(follower, turns if config.engines.takes_turns else None) as following:
                unit.ready()
                with unit.phase("serving", at_most_s=NO_PROGRESS_AT_MOST_S):
                    await _serve(unit, running, following)
                    await _drain(unit, running, follower)
            await follower.leave("gone")
    finally:
        await database.close()


def only_evaluates(unit: Unit, config: RunConfig) -> bool:
    """Whether this unit is only for evaluations: it is the first one after the count in the run file; others exist only
    after `agentrl scale`."""
    return config.evaluation.engine != "shared" and unit.slot == config.engines.count


def _report_version(unit: Unit, config: RunConfig, version: int) -> None:
    # Pinned versions are old on purpose, and would otherwise be reported as lagging behind.
    if not only_evaluates(unit, config):
        unit.weights = version


def _report_serving(unit: Unit, serving: str) -> None:
    unit.serving = serving
    if serving:
        unit.incomplete(f"{serving}, its first version" if unit.weights is None else "")


def _report_problem(unit: Unit, why: str) -> None:
    unit.problem("model", why)
    if why:
        unit.incomplete("")


def _report_canary(unit: Unit, agreement: Agreement) -> None:
    unit.metric(CANARY_AT.name, time.time())
    unit.metric(CANARY_LARGEST.name, agreement.largest)
    unit.metric(CANARY_OVER_LIMIT.name, agreement.largest_over_limit)


@contextlib.asynccontextmanager
async def _engine(config: RunConfig, state_dir: Path, *, of_evaluations: bool) -> AsyncIterator[RunningEngine]:
    """Start the engine of the configured kind; returns it with its address."""
    token = http_token(state_dir)
    kind = "embedded" if of_evaluations and config.evaluation.engine == "embedded" else config.engines.kind
    if kind == "sglang":
        served = SglangEngine(
            config.engines,
            context=config.sampling.context,
            port=free_port(),
            token=token,
            token_file=state_dir / TOKEN_FILE,
        )
        try:
            yield RunningEngine(served, served.url)
        finally:
            await served.close()
        return
    if kind in ("vllm", "openai"):
        async with _forwarding(config) as forwarding, listening(build_app(forwarding, token)) as url:
            yield RunningEngine(forwarding, url)
        return
    # Imported late, because torch is heavy and servers have their own.
    import torch

    from agentrl.engines.embedded.embedded_engine import EmbeddedEngine

    torch.set_num_threads(config.engines.threads)
    # Embedded engines beside servers run on CPUs.
    on_gpu = config.engines.kind == "embedded" and bool(config.engines.gpus)
    if on_gpu and not torch.cuda.is_available():
        raise ConfigError(
            f"engines.gpus is {config.engines.gpus:g}, and torch finds no GPU that the engine may use.",
            hint="Install a torch for GPUs, or leave engines.gpus out: the engine then computes on processors.",
        )
    engine = EmbeddedEngine(
        slots=config.engines.slots,
        context=config.sampling.context,
        gather_s=float(config.engines.gather_s),
        device="cuda" if on_gpu else "cpu",
    )
    engine.start()
    try:
        async with listening(build_app(engine, token)) as url:
            yield RunningEngine(engine, url, second=engine)
    finally:
        await engine.close()


@contextlib.asynccontextmanager
async def _forwarding(config: RunConfig) -> AsyncIterator[VllmEngine | OpenAiEngine]:
    """An engine that passes calls on to a server."""
    served = (VllmEngine if config.engines.kind == "vllm" else OpenAiEngine)(
        config.engines, context=config.sampling.context
    )
    try:
        yield served
    finally:
        await served.close()


@contextlib.asynccontextmanager
async def _following(follower: PublicationFollower, turns: DeviceTurns | None) -> AsyncIterator[asyncio.Task[None]]:
    also = [] if turns is None else [turns.look]
    task = asyncio.create_task(follower.follow(also), name="follow publications")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _serve(unit: Unit, running: RunningEngine, following: asyncio.Task[None]) -> None:
    """Watches the engine until the drain. Ticks the phase while the engine computes or has nothing to compute."""
    engine, steps, tokens, parked = running.engine, -1, 0, False
    meter = Meter(time.monotonic())
    while await unit.sleep_async(LOOK_EVERY_S):
        if following.done():
            following.result()
        engine.check()
        if unit.paused != parked:
            parked = unit.paused
            await (engine.pause("in_place") if parked else engine.resume())
        load = await engine.load()
        if engine.steps != steps or not engine.busy:
            steps = engine.steps
            unit.tick()
        unit.metric(TOKENS_PER_S.name, load.tokens_per_s or (load.generated_tokens - tokens) / LOOK_EVERY_S)
        unit.metric(RUNNING.name, load.running)
        unit.metric("waiting", load.waiting)
        tokens = load.generated_tokens
        meter.set(load.running, load.slots, time.monotonic())
        for name, value in meter.read(time.monotonic()).items():
            unit.metric(name, value)


async def _drain(unit: Unit, running: RunningEngine, follower: PublicationFollower) -> None:
    unit.status("draining")
    unit.extend_stop(DRAIN_WITHIN_S + 2 * LEAVE_WITHIN_S)
    await follower.leave("draining")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_WITHIN_S):
            while running.engine.busy:
                await asyncio.sleep(LOOK_EVERY_S / 5)
                await running.engine.load()
                unit.tick()


if __name__ == "__main__":
    run_unit(main)

"""Waits after an accepted `up` until every unit does its whole work, such as serving a first version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from agentrl.cli.execute import unit_rows
from agentrl.cli.options import Cli
from agentrl.cli.progress import Progress
from agentrl.client import Client
from agentrl.config.readers import live_sections
from agentrl.protocol.rows import UnitRow, UnitState
from agentrl.protocol.specs import Role

_LOOK_EVERY_S = 0.5
_MENDED_WITHIN_S = 15.0
"""How long samplers need to read live sections again, to ask a judge that was away, and to report its answer."""


async def until_complete(cli: Cli, client: Client, until: float) -> None:
    """Returns when no unit is incomplete, when a unit died meanwhile, or at a time of the monotonic clock.

    An engine without a version is not waited for while no trainer will publish one.
    """
    with Progress(cli) as progress:
        while (waiting := _waiting_for(await unit_rows(client))) and time.monotonic() < until:
            progress.units(waiting)
            await asyncio.sleep(_LOOK_EVERY_S)


async def until_mended(cli: Cli, client: Client, changes: Sequence[str], until: float) -> None:
    """If other models or judges changed, returns when no sampler has a problem, at the latest at that time or after
    some seconds."""
    until = min(until, time.monotonic() + _MENDED_WITHIN_S)
    with Progress(cli) as progress:
        while (broken := may_be_mended(await unit_rows(client), changes)) and time.monotonic() < until:
            progress.units(broken)
            await asyncio.sleep(_LOOK_EVERY_S)


def may_be_mended(units: Mapping[str, UnitRow], changes: Sequence[str]) -> tuple[str, ...]:
    """The samplers whose problem these changes of the run file may solve."""
    if not any(change.startswith(tuple(f"{section}." for section in live_sections())) for change in changes):
        return ()
    of_samplers = [unit for unit in units.values() if unit.role == Role.SAMPLER and unit.desired and unit.problems]
    return tuple(f"{unit.unit}: {'; '.join(_problems(unit))}" for unit in of_samplers)


def _waiting_for(units: Mapping[str, UnitRow]) -> tuple[str, ...]:
    wanted = [unit for unit in units.values() if unit.desired and not unit.done]
    if any(unit.state not in (UnitState.READY, UnitState.SUSPECT) for unit in wanted):
        return ()
    trains = any(unit.role == Role.TRAINER and not unit.paused for unit in wanted)
    late = [unit for unit in wanted if unit.incomplete and (trains or unit.serving or unit.role != Role.ENGINE)]
    return tuple(f"{unit.unit}: {'; '.join([unit.incomplete, *_problems(unit)])}" for unit in late)


def _problems(unit: UnitRow) -> list[str]:
    return [f"{of}: {why}" for of, why in unit.problems.items()]

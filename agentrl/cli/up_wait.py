"""Waits after an accepted `up` until every unit does its whole work, such as serving a first version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from agentrl.cli.execute import unit_rows
from agentrl.cli.options import Cli
from agentrl.cli.progress import Progress
from agentrl.client import Client
from agentrl.protocol.rows import UnitRow, UnitState
from agentrl.protocol.specs import Role

_LOOK_EVERY_S = 0.5


async def until_complete(cli: Cli, client: Client, until: float) -> None:
    """Returns when no unit is incomplete, when a unit died meanwhile, or at a time of the monotonic clock.

    An engine without a version is not waited for while no trainer will publish one.
    """
    with Progress(cli) as progress:
        while (waiting := _waiting_for(await unit_rows(client))) and time.monotonic() < until:
            progress.units(waiting)
            await asyncio.sleep(_LOOK_EVERY_S)


def _waiting_for(units: Mapping[str, UnitRow]) -> tuple[str, ...]:
    wanted = [unit for unit in units.values() if unit.desired and not unit.done]
    if any(unit.state not in (UnitState.READY, UnitState.SUSPECT) for unit in wanted):
        return ()
    trains = any(unit.role == Role.TRAINER and not unit.paused for unit in wanted)
    late = [unit for unit in wanted if unit.incomplete and (trains or unit.serving or unit.role != Role.ENGINE)]
    return tuple(f"{unit.unit}: {'; '.join([unit.incomplete, *_problems(unit)])}" for unit in late)


def _problems(unit: UnitRow) -> list[str]:
    return [f"{of}: {why}" for of, why in unit.problems.items()]

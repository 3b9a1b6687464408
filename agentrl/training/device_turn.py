"""The trainer's turn on a device that it shares with engines.

It takes its turn when a batch is ready and keeps it while further batches are ready; engines have the rest of the time.
A turn is a row in the collection of services that expires if the trainer dies.

Invariants: nothing is computed in a turn before the engines have left the device, or have not answered for
`LEAVE_WITHIN_S`; when the turn ends, the trainer's data leaves the device.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from agentrl.store import service_registry
from agentrl.store.database import Database, StoreError
from agentrl.store.documents import Service
from agentrl.training.learner import Learner
from agentrl.unit import Unit

log = logging.getLogger("trainer")
LOOK_EVERY_S = 0.1
RENEW_EVERY_S = 2.0
LEAVE_WITHIN_S = 300.0


class DeviceTurn:
    def __init__(self, database: Database, holder: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._row = Service(kind=service_registry.TURN, id=f"turn-of-{holder}", unit=holder)
        self._clock = clock
        self._began = clock()
        self._held_s = 0.0
        self._since: float | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def held(self) -> bool:
        return self._since is not None

    @property
    def share(self) -> float:
        """The share of the time so far in which the trainer had the device."""
        now = self._clock()
        held = self._held_s + (0.0 if self._since is None else now - self._since)
        return held / max(now - self._began, 1e-9)

    async def take(self) -> None:
        """Returns when the engines have left the device."""
        if self.held:
            return
        await service_registry.take_turn(self._database, self._row)
        self._renewing = asyncio.create_task(self._renew(), name="renew the turn on the device")
        try:
            async with asyncio.timeout(LEAVE_WITHIN_S):
                while await service_registry.on_the_device(self._database):
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            log.warning(
                "engines did not leave the device within %g s; the trainer computes beside them", LEAVE_WITHIN_S
            )
        except BaseException:
            await self._end_renewing()
            raise
        self._since = self._clock()

    async def give(self) -> None:
        if self._since is None:
            return
        self._held_s += self._clock() - self._since
        self._since = None
        await self._end_renewing()
        await service_registry.give_turn(self._database, self._row)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            with contextlib.suppress(StoreError):
                await service_registry.take_turn(self._database, self._row)

    async def _end_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
            self._renewing = None


async def begin(turn: DeviceTurn | None, unit: Unit, learner: Learner) -> None:
    """Begin the turn: with `engines.takes_turns` the trainer has the device alone while it computes."""
    if turn is not None and not turn.held:
        unit.status("waits for the engines to leave the device")
        await turn.take()
        await asyncio.to_thread(learner.return_to_device)


async def end(turn: DeviceTurn | None, unit: Unit, learner: Learner) -> None:
    if turn is not None and turn.held:
        await asyncio.to_thread(learner.leave_device)
        await turn.give()
        unit.metric("device_share", turn.share)

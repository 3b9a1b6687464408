"""An engine that shares its device with the trainer leaves the device while the trainer has its turn.

Invariants:
- the engine reports that it has left only after its calls have ended and the memory of its cache is released;
- no weights are loaded while the trainer has its turn;
- if the trainer dies within its turn, the engine comes back when the device is no longer requested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agentrl.engines.interface import DeviceOrders, EngineBusyError
from agentrl.engines.publication_follower import PublicationFollower, State

AGAIN_S = 0.05


class DeviceTurns:
    def __init__(
        self,
        follower: PublicationFollower,
        engine: DeviceOrders,
        asked: Callable[[], Awaitable[bool]],
        *,
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """`asked`: whether the trainer has its turn or requests it. `paused`: whether an operator has paused the
        unit."""
        self._follower = follower
        self._engine = engine
        self._asked = asked
        self._paused = paused
        self._former: State | None = None
        """The state of the engine before it left; None while it is here."""

    async def look(self) -> None:
        asked = await self._asked()
        if asked and self._former is None:
            await self._leave()
        elif not asked and self._former is not None:
            await self._return(self._former)

    async def _leave(self) -> None:
        """Leaves the device. Samplers continue the calls that end here when an engine serves again."""
        follower = self._follower
        await follower.loading.acquire()
        self._former, follower.state = follower.state, "loading"
        await follower.report()
        await self._engine.pause("abort")
        while True:
            try:
                await self._engine.release_memory()
                break
            except EngineBusyError:
                await asyncio.sleep(AGAIN_S)
        follower.state = "parked"
        await follower.report()

    async def _return(self, former: State) -> None:
        await self._engine.restore_memory()
        if not self._paused():
            await self._engine.resume()
        self._follower.state, self._former = former, None
        self._follower.loading.release()
        await self._follower.report()

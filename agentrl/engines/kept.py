"""An engine as its unit keeps it: what is watched, drained and paused, whichever kind it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agentrl.engines.interface import PauseMode
from agentrl.engines.publication_follower import Beside, Target


class Watched(Target, Protocol):
    """What a unit wants of the engine that it keeps, besides that it can be updated."""

    @property
    def busy(self) -> bool:
        """Is there anything to compute? Then `steps` grows."""
        ...

    @property
    def steps(self) -> int: ...

    def check(self) -> None:
        """Raises what ended it, if something did."""
        ...

    async def pause(self, mode: PauseMode) -> None: ...

    async def resume(self) -> None: ...


@dataclass(frozen=True)
class Kept:
    """An engine and its address."""

    engine: Watched
    url: str
    beside: Beside | None = None
    """The engine itself, if it can hold a second version."""

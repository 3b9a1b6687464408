"""Games of Gymnasium with faults. The program finds them by the name `tests.adapters.planted:NAME`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import gymnasium
from gymnasium.spaces import Discrete


class Counting(gymnasium.Env[int, int]):
    """Rewards each action with its number, and prints. Action 2 exits the process; action 3 blocks."""

    observation_space = Discrete(100)
    action_space = Discrete(7)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        print("a game begins")
        self.steps = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        match int(action):
            case 2:
                os._exit(7)
            case 3:
                time.sleep(1000)
            case 4:
                next(iter(()))
            case 5:
                sys.exit(3)
            case 6:
                raise asyncio.CancelledError
        print("a step" * 1000)
        return self.steps, float(action), self.steps >= 3, False, {}


gymnasium.register("Counting-v0", entry_point=Counting)

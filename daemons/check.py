"""Checks environments against their contract: `python -m daemons.check`, which reads what to check as JSON and writes
lines of JSON.

Invariants:
- Each finding is written as soon as it is found, and each probe before it begins: if this process dies, the command
  that started it knows what was tried, and starts another one for the rest.
- A sign of life is written every second, even while the code of an environment blocks everything else. The program ends
  with the command that reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import re
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil

from agentrl.adapters.player import PlayerError
from agentrl.config.run import RunConfig
from agentrl.environments import user_places, user_tasks
from agentrl.environments.environment import declared
from agentrl.environments.user_code_guard import LoopWatch, no_exit
from agentrl.environments.user_places import Place
from agentrl.errors import AgentrlError, ExitCode
from agentrl.rollout import chat_format, user_code
from agentrl.rollout.agent_loops import loop_named
from agentrl.rollout.contract import leaks
from agentrl.rollout.contract.findings import Finding, Findings
from agentrl.rollout.contract.kit import Kit, StuckError
from agentrl.rollout.contract.scripted_model import ScriptedModel
from daemons.interruptions import until_stopped
from daemons.program_messages import keep_messages_apart, tell
from daemons.trial_services import (
    VERSION,
    surroundings_of,
    tasks_of,
    toolbox,
    without_token_limits,
    words_directory,
)

SLOTS = 1_000
ROWS = 8
ALIVE_EVERY_S = 1.0
LATE_S = 0.25
"""Code that blocks the event loop for this long is a fault."""
LOOK_EVERY_S = 0.02
_FRAME = re.compile(r'File "(.+)", line (\d+) in')


class _WrittenFindings(Findings):
    """Writes findings as soon as they are found."""

    def __init__(self, environment: str) -> None:
        super().__init__()
        self._environment = environment

    def add(self, name: str, sentence: str, place: Place | None = None, **level: Any) -> None:
        before = len(self.all)
        super().add(name, sentence, place, **level)
        for finding in self.all[before:]:
            tell(**finding.plain(self._environment))  # type: ignore[arg-type]


async def main(config: RunConfig, asked: dict[str, Any]) -> bool:
    """Returns False if an episode does not end, so that another process must continue."""
    user_tasks.install()
    begun = leaks.Begun()
    user_code.load(config)
    chosen = {each.name: each for each in declared()}
    with tempfile.TemporaryDirectory(prefix="agentrl-check-") as folder:
        chat = chat_format.of_run(words_directory(config, Path(folder)), config)
        model = ScriptedModel(chat.template, VERSION)
        async with (
            toolbox(config, Path(folder)) as tools,
            surroundings_of(config, chat, model, tools, at_once=SLOTS) as around,
        ):
            own = frozenset(child.pid for child in psutil.Process().children())
            try:
                for name in asked["environments"]:
                    kit = Kit(
                        around,
                        name,
                        [without_token_limits(task) for task in await tasks_of(config, name, ROWS)],
                        model,
                        tools,
                        _WrittenFindings(name),
                        declared=chosen.get(name),
                        at_most_s=float(asked["at_most_s"]),
                        side_by_side=int(asked["side_by_side"]),
                        begun=begun,
                        own_children=own,
                    )
                    with contextlib.suppress(PlayerError):  # Its episodes say so, too.
                        await loop_named(config.environments[name].agent).prepare()
                    await _check(kit, name, asked)
            except StuckError:
                return False
    return True


async def _check(kit: Kit, name: str, asked: dict[str, Any]) -> None:
    at_most_s = float(asked["at_most_s"])

    def stuck(place: Place | None) -> None:
        finding = Finding("hangs", "the code does not end, and goes on when it is interrupted", place)
        tell(**finding.plain(name))  # type: ignore[arg-type]
        tell("stuck")

    watch = LoopWatch(kit.late, at_most_s=at_most_s, late_s=LATE_S, every_s=LOOK_EVERY_S, on_stuck=stuck)
    with watch, no_exit():
        for probe, run in kit.probes.items():
            if not kit.hopeless:
                tell("probe", environment=name, probe=probe)
                await run()
    tell("checked", environment=name)


def _died(died: dict[str, Any], crash_file: Path) -> None:
    """The finding for the death of the process before this one."""
    place = _last_line_of_a_user(crash_file.read_text(errors="replace"))
    signal = -int(died["status"])
    if died["hung"]:
        name, what = "hangs", "the code does not return, and nothing interrupts it"
    elif signal > 0:
        name, what = "crashes", f"the code ends its process by signal {signal}"
    else:
        name, what = "ends-process", f"the code ends its process with status {died['status']}"
    finding = Finding(name, f"{what} ({died['probe']})", place)
    tell(**finding.plain(died["environment"]))  # type: ignore[arg-type]
    crash_file.write_text("")


def _last_line_of_a_user(stacks: str) -> Place | None:
    for file, line in _FRAME.findall(stacks):
        if user_places.is_users(file):
            return Place(file, int(line))
    return None


def _show_life() -> None:
    stop = threading.Event()

    def show() -> None:
        try:
            while not stop.wait(ALIVE_EVERY_S):
                tell("alive")
        except OSError:  # Its command is gone, and code of an environment may go on for ever.
            os._exit(ExitCode.INTERRUPTED)

    threading.Thread(target=show, name="show life", daemon=True).start()


def run(line: str) -> int:
    asked = json.loads(line)
    logging.basicConfig(level=logging.CRITICAL, stream=sys.stderr, format="%(message)s")
    crash_file = Path(asked["crash_file"])
    with crash_file.open("a") as crashes:
        faulthandler.enable(crashes)
        try:
            config = RunConfig.model_validate(asked["config"])
            if asked["died"]:
                _died(asked["died"], crash_file)
            _show_life()
            whole = asyncio.run(until_stopped(main(config, asked))) if asked["environments"] else True
        except asyncio.CancelledError:
            return ExitCode.INTERRUPTED
        except AgentrlError as wrong:
            tell("failed", message=wrong.message, hint=wrong.hint, exit_code=int(wrong.exit_code))
            return int(wrong.exit_code)
        finally:
            faulthandler.disable()
    tell("done" if whole else "stuck")
    return ExitCode.OK


if __name__ == "__main__":
    keep_messages_apart()
    code = run(sys.stdin.readline())
    sys.stderr.flush()
    os._exit(code)  # Ends even if an environment left threads running.

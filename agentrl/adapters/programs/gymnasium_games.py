"""Games of Gymnasium in text: an observation is a message, and an action is what a turn has in `<action>`.

Invariants:
- The start of a game follows from the seed of its task, so all seats of a task start alike.
- A turn without an action of the game changes nothing, and the answer lists the actions.
- The score is the sum of the rewards of the game.
"""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import gymnasium

_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)
_COLOURED = re.compile(r"\x1b\[(\d+)[\d;]*m(.*?)\x1b\[0m", re.DOTALL)
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_SECTIONS = ("Description", "Action Space", "Observation Space", "Rewards")
"""The sections of a game's documentation that tell its rules."""
HELD_OUT_FROM = 1_000_000
"""The first seed of held-out tasks."""
MOST_TURNS = 32
MOST_NUMBERS = 128
"""An observation with more numbers is an image rather than something to read."""


class Environment:
    def __init__(self, name: str, arguments: dict[str, Any], rows: int, held_out: int) -> None:
        self._name, self._arguments = name, arguments
        self._rows, self._held_out = rows, held_out
        if "render_mode" not in arguments:
            game = self.made()
            if "ansi" in game.metadata.get("render_modes", ()):
                self._arguments = {**arguments, "render_mode": "ansi"}
            game.close()

    def made(self) -> Any:
        return gymnasium.make(self._name, **self._arguments)

    def describe(self) -> dict[str, Any]:
        game = self.made()
        limit = getattr(game.spec, "max_episode_steps", None) or MOST_TURNS
        system = f"{_documented(game)}\n\n{_how_to_act(game.action_space)}".strip()
        return {"system": system, "max_turns": min(int(limit), MOST_TURNS), "answer_schema": "action"}

    def rows(self) -> list[dict[str, Any]]:
        game, again = self.made(), self.made()
        seeds = [*range(self._rows), *range(HELD_OUT_FROM, HELD_OUT_FROM + self._held_out)]
        made = [self._row(game, seed) for seed in seeds]
        if made[:4] != [self._row(again, seed) for seed in seeds[:4]]:
            raise ValueError(
                "with the same seed the game starts otherwise, so the members of a group would not start alike; "
                "give it arguments that fix what is drawn when it is made"
            )
        known = {row["query"] for row in made if row["split"] == "train"}
        return [row for row in made if row["split"] == "train" or row["query"] not in known]

    def _row(self, game: Any, seed: int) -> dict[str, Any]:
        observation, _ = game.reset(seed=seed)
        split = "eval" if seed >= HELD_OUT_FROM else "train"
        return {"id": f"seed-{seed}", "query": _shown(game, observation), "split": split, "seed": seed}

    def begin(self, row: dict[str, Any]) -> Game:
        return Game(self.made(), int(row["seed"]))


class Game:
    def __init__(self, game: Any, seed: int) -> None:
        self._game = game
        self._game.reset(seed=seed)
        self._total = 0.0
        self._counts = {"steps": 0, "no_action": 0, "terminated": 0}
        self.done = False

    def answer(self, text: str) -> dict[str, Any]:
        action, known = _action_of(text, self._game.action_space)
        if not known:
            self._counts["no_action"] += 1
            return {"message": f"That is no action. {_how_to_act(self._game.action_space)}"}
        observation, reward, terminated, truncated, _ = self._game.step(action)
        self._total += float(reward)
        self._counts["steps"] += 1
        self._counts["terminated"] = int(terminated)
        self.done = bool(terminated or truncated)
        if self.done:
            return {"done": True}
        return {"message": _shown(self._game, observation)}

    def result(self) -> dict[str, Any]:
        return {"value": self._total, "parts": {"reward": self._total, **self._counts}}

    def close(self) -> None:
        self._game.close()


def _shown(game: Any, observation: Any) -> str:
    """An observation as text, with the character graphics that the game draws."""
    text = f"observation: {json.dumps(_plain(observation))}"
    if game.render_mode != "ansi":
        return text
    picture = _COLOURED.sub(_marked, str(game.render())).strip("\n")
    return f"{picture}\n{text}"


def _marked(coloured: re.Match[str]) -> str:
    """Writes a colour as characters: brackets for a background, which marks a position, and the name of any other
    colour."""
    number, inside = int(coloured[1]), coloured[2]
    if 40 <= number <= 47:
        return f"[{inside}]"
    return f"({inside} {_COLOURS[number - 30]})" if 30 <= number <= 37 else inside


def _plain(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {str(name): _plain(value) for name, value in observation.items()}
    if isinstance(observation, (list, tuple)):
        return [_plain(value) for value in observation]
    if not hasattr(observation, "tolist"):
        return observation
    if getattr(observation, "size", 1) > MOST_NUMBERS:
        raise ValueError(
            f"an observation of this game has {observation.size} numbers; only games that can be read as text are "
            "supported"
        )
    return observation.tolist()


def _action_of(text: str, space: Any) -> tuple[Any, bool]:
    """The last action of a text, and whether it is one of the game."""
    written = _ACTION.findall(text)
    if not written:
        return None, False
    if isinstance(space, gymnasium.spaces.Text):
        return written[-1], space.contains(written[-1])
    try:
        action: Any = json.loads(written[-1])
        if isinstance(space, (gymnasium.spaces.Box, gymnasium.spaces.MultiDiscrete, gymnasium.spaces.MultiBinary)):
            import numpy

            action = numpy.asarray(action, dtype=space.dtype)
        elif isinstance(action, bool):
            return None, False
        return action, bool(space.contains(action))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None, False  # Malformed text of a model is no fault of the game.


def _how_to_act(space: Any) -> str:
    if isinstance(space, gymnasium.spaces.Discrete):
        last = int(space.start + space.n - 1)
        return f"Write <action>NUMBER</action>, a number from {int(space.start)} to {last}."
    return f"Write <action>ACTION</action>, as JSON of {space}."


def _documented(game: Any) -> str:
    """The rules of the game, from its documentation."""
    text = inspect.getdoc(game.unwrapped) or ""
    sections = re.split(r"^ *## +(.+)$", text, flags=re.MULTILINE)
    found = dict(zip(sections[1::2], sections[2::2], strict=True))
    rules = [inspect.cleandoc(found[name]) for name in _SECTIONS if name in found]
    return "\n\n".join(rules) or text.partition("\n\n")[0]

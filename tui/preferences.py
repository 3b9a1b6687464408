"""Reads the person's own theme and keys from `~/.config/agentrl/console.yaml`.

Invariants:
- A fault in the file is reported before the screen is drawn.
- No part of a faulty file is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentrl.errors import ConfigError
from agentrl.formatting.sentences import ended
from tui.action_registry import ACTIONS, BY_ID
from tui.model.actions import of_view, rebound
from tui.model.styled_text import COLOUR_NAMES

Theme = Literal["dark", "light"]


class Preferences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    theme: Theme | None = None
    ascii: bool = False
    key_files: list[str] = []
    """Key files of runs on other hosts, for the list of runs; `~` is the home directory."""
    colours: dict[Theme, dict[str, str]] = {}
    """Colours that replace those of a theme, such as `dark: {good: "#00ff88"}`."""
    keys: dict[str, list[str]] = {}
    """Keys by the id of their action, such as `unit.restart: [f5]`."""


def path(environ: Mapping[str, str] | None = None) -> Path:
    env = os.environ if environ is None else environ
    base = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME", "/"), ".config")
    return Path(base) / "agentrl" / "console.yaml"


def load(file: Path) -> Preferences:
    """Read the file; return the defaults if it does not exist. Raises ConfigError."""
    if not file.exists():
        return Preferences()
    import yaml  # Takes 20 ms, which most starts of the console do not need.

    try:
        body: Any = yaml.safe_load(file.read_text())
        made = msgspec.convert(body or {}, Preferences)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as broken:
        raise ConfigError(f"{file} cannot be read: {ended(str(broken))}") from broken
    except msgspec.ValidationError as wrong:
        raise ConfigError(
            f"{file}: {ended(str(wrong))}", hint="It may have theme, ascii, colours, key_files and keys."
        ) from wrong
    _check_colours(file, made)
    _check_keys(file, made)
    return made


def _check_colours(file: Path, made: Preferences) -> None:
    for theme, colours in made.colours.items():
        for name, colour in colours.items():
            if name not in COLOUR_NAMES:
                known = ", ".join(sorted(COLOUR_NAMES))
                raise ConfigError(f"{file}: the theme {theme} has no colour {name!r}.", hint=f"It has {known}.")
            if not re.fullmatch("#[0-9a-fA-F]{6}", colour):
                raise ConfigError(f"{file}: {theme}.{name}: {colour!r} is not a colour.", hint="Write it as '#34c79f'.")


def _check_keys(file: Path, made: Preferences) -> None:
    for id in made.keys:
        if id not in BY_ID:
            raise ConfigError(f"{file}: there is no action {id!r}.", hint="docs/console.md lists them.")
    actions = rebound({id: tuple(keys) for id, keys in made.keys.items()}, ACTIONS)
    for view in {where for action in actions for where in action.where}:
        taken: dict[str, str] = {}
        for action in of_view(view, actions):
            for key in action.keys:
                if taken.setdefault(key, action.id) != action.id:
                    raise ConfigError(f"{file}: the key {key} means both {taken[key]} and {action.id} in {view}.")

"""Makes the actions of the registry: one line each, and the groups that they are in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tui.model.actions import Action, When
from tui.navigation import Navigation
from tui.view_registry import TABLES
from tui.views.view import View

ALL_TABLES = " ".join(TABLES)
Run = Callable[..., None]


def action(
    id: str, keys: str, title: str, help: str, run: Run, command: str = "", footer: int = 0, args: tuple[Any, ...] = ()
) -> Action:
    return Action(id, tuple(keys.split()), title, help, run, args, command=command, footer=footer)


def at(where: str, *actions: Action) -> Iterable[Action]:
    """Actions of the views of these names."""
    return (replace(action, where=tuple(where.split())) for action in actions)


def by(target: type[Any], *actions: Action) -> Iterable[Action]:
    """Actions of a service."""
    return (replace(action, target=target) for action in actions)


def live(*actions: Action) -> Iterable[Action]:
    """Actions that a recording does not offer."""
    return (replace(action, when=When.LIVE) for action in actions)


def recorded(*actions: Action) -> Iterable[Action]:
    """Actions that only a recording offers."""
    return (replace(action, when=When.PLAYBACK) for action in actions)


def for_rows(*actions: Action) -> Iterable[Action]:
    """Actions whose keys wait for the rows of a view that was just opened."""
    return (replace(action, needs_rows=True) for action in actions)


def page(make: Callable[[], View]) -> Run:
    def run(navigation: Navigation) -> None:
        navigation.open_page(make())

    return run


def move(how: str) -> Run:
    def run(view: View) -> None:
        view.do_move(how)

    return run

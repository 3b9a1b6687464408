"""What a file of functions may import: the error that a model reads, effects, and the state of a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

Effect = Literal["pure", "session", "outside"]
"""What a call changes: nothing; the session of its episode; something that outlives the session."""
DEFAULT_EFFECT: Effect = "session"
EFFECT_ATTRIBUTE = "agentrl_effect"
_Function = TypeVar("_Function", bound=Callable[..., Any])


class ToolError(Exception):
    """The call cannot be done. The model reads the text as it is, without the type of the exception."""


class Session:
    """Base of a class whose object is the state of one session.

    A parameter that has this class as its type is no argument of the tool: it gets the object of the session, which is
    made without arguments when the session first calls such a function. Calls of one session take turns.
    """


def effect(name: Effect) -> Callable[[_Function], _Function]:
    """Declares what calls of the decorated function change. A run file may declare something else, which then holds."""
    if name not in get_args(Effect):
        raise ValueError(f"there is no effect {name!r}; effects are {', '.join(get_args(Effect))}")

    def mark(function: _Function) -> _Function:
        setattr(function, EFFECT_ATTRIBUTE, name)
        return function

    return mark

"""What a file of functions may import: the error that a model reads, effects, and the state of a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args, overload

Effect = Literal["pure", "session", "outside"]
"""What a call changes: nothing; the session of its episode; something that outlives the session."""
DEFAULT_EFFECT: Effect = "session"
EFFECT_ATTRIBUTE = "agentrl_effect"
TOOL_ATTRIBUTE = "agentrl_tool"
STATE_TOOL = "agentrl_state"
"""The tool that says what the functions of a file keep for a session. Only agent loops may call it."""
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


_declared = effect
"""The argument of `tool` has the same name."""


@overload
def tool(function: _Function) -> _Function: ...
@overload
def tool(*, effect: Effect = DEFAULT_EFFECT) -> Callable[[_Function], _Function]: ...
def tool(
    function: _Function | None = None, *, effect: Effect = DEFAULT_EFFECT
) -> _Function | Callable[[_Function], _Function]:
    """Mark a function as a tool. In a file with such a mark, functions without one are no tools."""
    declare = _declared(effect)

    def mark(marked: _Function) -> _Function:
        setattr(marked, TOOL_ATTRIBUTE, True)
        return declare(marked)

    return mark if function is None else mark(function)


def is_tool(function: object) -> bool:
    return bool(getattr(function, TOOL_ATTRIBUTE, False))

"""What a file of functions may import: the error that a model reads, effects, and the state of a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, overload

Effect = Literal["pure", "session", "outside"]
"""What a call changes: nothing; the session of its episode; something that outlives the session."""
DEFAULT_EFFECT: Effect = "session"
EFFECT_ATTRIBUTE = "agentrl_effect"
TOOL_ATTRIBUTE = "agentrl_tool"
STATE_TOOL = "agentrl_state"
"""The tool that returns the state that the functions of a file keep for a session. Only agent loops may call it."""
SETUP_TOOL = "agentrl_setup"
"""The tool that lets the functions of a file make the state of a session; its arguments are the task."""
SET_UP = "ready"
"""The result of the setup tool."""
END_TOOL = "agentrl_end"
"""The tool that a toolbox calls when a session ends."""
PUT_TOOL = "agentrl_put"
"""The tool that puts files into a session."""
VERIFY_TOOL = "agentrl_verify"
"""The tool that runs a verifier in a session."""
HIDDEN_TOOLS = frozenset({STATE_TOOL, SETUP_TOOL, END_TOOL, PUT_TOOL, VERIFY_TOOL})
"""Tools that are not offered to models."""
NO_JSON = "cannot be written as JSON"
"""Part of the message for a call whose result is not a plain value."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Image:
    """An image that a tool returns: alone, or in a list with texts and other images."""

    def __init__(self, content: bytes | str | Path) -> None:
        """Its bytes, or the path of its file."""
        self.data = content if isinstance(content, bytes) else Path(content).read_bytes()


class ToolError(Exception):
    """The call cannot be done. The model reads the text as it is, without the type of the exception."""


@dataclass(frozen=True)
class Task:
    """The task of an episode: a row of the dataset."""

    query: str
    truth: str
    """The `answer` of the row."""
    row: Mapping[str, Any]
    """The columns that agentrl does not use itself."""


class Session:
    """Base of a class whose object is the state of one session.

    A parameter that has this class as its type is not an argument of the tool: it gets the object of the session, which
    is made without arguments when the session first calls such a function. Calls of one session take turns.

    A subclass may have two methods, async or not: `setup(self, task)`, before the first call of the episode, and
    `teardown(self)`, when the session ends for any reason.
    """


def has_life(kind: type) -> bool:
    """Whether objects of this class are set up or torn down."""
    return callable(getattr(kind, "setup", None)) or callable(getattr(kind, "teardown", None))


def effect(name: Effect) -> Callable[[_Function], _Function]:
    """Declares what calls of the decorated function change. A run file may override it."""
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
def tool(
    *, effect: Effect = DEFAULT_EFFECT, example: Mapping[str, Any] | None = None
) -> Callable[[_Function], _Function]: ...
def tool(
    function: _Function | None = None,
    *,
    effect: Effect = DEFAULT_EFFECT,
    example: Mapping[str, Any] | None = None,
) -> _Function | Callable[[_Function], _Function]:
    """Mark a function as a tool. In a file with such a mark, functions without one are not tools.

    `example` are arguments with which it can be tried before a run, such as `{"item": "tea"}`.
    """
    declare = _declared(effect)

    def mark(marked: _Function) -> _Function:
        setattr(marked, TOOL_ATTRIBUTE, True)
        return declare(marked)

    return mark if function is None else mark(function)


def is_tool(function: object) -> bool:
    return bool(getattr(function, TOOL_ATTRIBUTE, False))

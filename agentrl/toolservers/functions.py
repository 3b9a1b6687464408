"""A tool server whose tools are the functions of a Python file.

Invariants:
- The file runs here, in the sandbox of the server, and nowhere else.
- Functions that are not async run in a thread each; those of one session with a state take turns.
- An exception becomes the text of a failed call: its type and its message, or only the text of a ToolError.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.toolservers import user_files
from agentrl.toolservers.argument_types import converted_fields, schema_of
from agentrl.toolservers.function_tools import FunctionFileError, FunctionTool, tools_of
from agentrl.toolservers.mcp_stdio import Call, Result, Server, Tool
from agentrl.toolservers.user_names import (
    DEFAULT_EFFECT,
    END_TOOL,
    NO_JSON,
    SET_UP,
    SETUP_TOOL,
    STATE_TOOL,
    Image,
    Session,
    Task,
    ToolError,
    has_life,
)

MOST_SESSIONS = 20_000
"""If there are more sessions, the state of the least recently used one is dropped."""
TURN_WITHIN_S = 3.0
"""How long the end of a session waits for a call, so that a call that hangs does not prevent the teardown."""
_MODULE = "tools_of_the_run"
_TASK = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "truth": {"type": "string"},
        "row": {"type": "object"},
        "tools": {"type": "array"},
    },
    "required": ["query", "truth", "row", "tools"],
}


class SessionStates:
    """The objects of all sessions, each with the lock that its calls take."""

    def __init__(self) -> None:
        self._states: OrderedDict[tuple[str, type], tuple[Session, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, session: str, kind: type[Session]) -> tuple[Session, threading.Lock]:
        with self._lock:
            key = (session, kind)
            if key not in self._states:
                self._states[key] = (kind(), threading.Lock())
                if len(self._states) > MOST_SESSIONS:
                    self._states.popitem(last=False)  # The toolbox did not report the end of the oldest session.
            self._states.move_to_end(key)
            return self._states[key]

    def end(self, session: str) -> list[tuple[Session, threading.Lock]]:
        """Forget a session; returns its objects."""
        with self._lock:
            return [self._states.pop(key) for key in [key for key in self._states if key[0] == session]]

    def sessions(self) -> set[str]:
        with self._lock:
            return {session for session, _ in self._states}

    def kept(self, session: str) -> dict[str, Session]:
        """The objects of a session, by the name of their class."""
        with self._lock:
            return {kind.__name__: state for (of, kind), (state, _) in self._states.items() if of == session}


class EventLoop:
    """Runs async functions, all in one thread that starts with the first of them."""

    def __init__(self) -> None:
        self._loop: Any = None
        self._lock = threading.Lock()

    def result_of(self, work: Coroutine[Any, Any, Any], call: Call) -> Any:
        import asyncio  # imported late: few files need it, and it takes as long as all other imports

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(_without_exit(work), self._loop)
        call.on_cancel(future.cancel)
        return future.result()


async def _without_exit(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine. Exceptions that would end the loop become errors of the call."""
    try:
        return await work
    except (KeyboardInterrupt, SystemExit) as left:
        raise ToolError(f"{type(left).__name__}: {left}") from None


class FunctionRunner:
    """Runs the calls of one file."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._sessions = SessionStates()
        self._loop = EventLoop()

    def tool(self, found: FunctionTool) -> Tool:
        function = getattr(self._module, found.name)

        def run(arguments: dict[str, Any], call: Call) -> Result:
            return as_result(self._call(found, function, arguments, call))

        return Tool(found.name, found.description, found.schema, run, found.effect or DEFAULT_EFFECT, found.example)

    def state_tool(self) -> Tool:
        """Reads the state of the session, as JSON."""

        def run(arguments: dict[str, Any], call: Call) -> str:
            return as_text({name: vars(state) for name, state in self._sessions.kept(call.session).items()})

        return Tool(STATE_TOOL, "What the tools keep for this episode.", schema_of(()), run, DEFAULT_EFFECT)

    def setup_tool(self, kinds: Mapping[str, type[Session]]) -> Tool:
        """Makes the state of a session from its task. `kinds`: the class that each tool gets."""

        def run(arguments: dict[str, Any], call: Call) -> str:
            task = Task(str(arguments["query"]), str(arguments["truth"]), dict(arguments["row"]))
            wanted = {kinds[tool]: None for tool in arguments["tools"] if tool in kinds}
            for kind in wanted:
                state, turn = self._sessions.of(call.session, kind)
                if (setup := getattr(state, "setup", None)) is not None:
                    with turn:
                        self._finished(setup(task), call)
            return SET_UP

        return Tool(SETUP_TOOL, "Makes the state of an episode.", _TASK, run, DEFAULT_EFFECT)

    def end_tool(self) -> Tool:
        """Tears down the state of a session."""

        def run(arguments: dict[str, Any], call: Call) -> str:
            self.end(call)
            return SET_UP

        return Tool(END_TOOL, "Ends the state of an episode.", schema_of(()), run, DEFAULT_EFFECT)

    def end(self, call: Call) -> None:
        """Tears down each object of the session, even if another one fails; raises the first failure."""
        failed: BaseException | None = None
        for state, turn in self._sessions.end(call.session):
            if (teardown := getattr(state, "teardown", None)) is not None:
                free = turn.acquire(timeout=TURN_WITHIN_S)
                try:
                    self._finished(teardown(), call)
                except BaseException as broken:  # noqa: BLE001 - raised after the others are torn down
                    failed = failed or broken
                finally:
                    if free:
                        turn.release()
        if failed is not None:
            raise failed

    def end_all(self) -> None:
        for session in self._sessions.sessions():
            try:
                self.end(Call(session))
            except BaseException:  # noqa: BLE001 - the process ends, and each session has its turn
                traceback.print_exc()

    def _finished(self, result: Any, call: Call) -> Any:
        return self._loop.result_of(result, call) if isinstance(result, Coroutine) else result

    def _call(self, found: FunctionTool, function: Callable[..., Any], arguments: dict[str, Any], call: Call) -> Any:
        by_name = converted_fields(found.fields, arguments, "", lambda name: getattr(self._module, name))
        if not found.session_class:
            return self._result(found, function, by_name, call)
        state, turn = self._sessions.of(call.session, self.session_class(found.session_class))
        with turn:
            return self._result(found, function, {**by_name, found.session_parameter: state}, call)

    def _result(self, found: FunctionTool, function: Callable[..., Any], by_name: dict[str, Any], call: Call) -> Any:
        first = [by_name.pop(name) for name in found.positional if name in by_name]
        return self._finished(function(*first, **by_name), call)

    def session_class(self, name: str) -> type[Session]:
        found: type[Session] = getattr(self._module, name)
        return found


def as_result(result: object) -> Result:
    """A text, or texts and images in a list."""
    parts = list(result) if isinstance(result, list | tuple) else [result]
    if not any(isinstance(part, Image) for part in parts):
        return as_text(result)
    return [part.data if isinstance(part, Image) else as_text(part) for part in parts]


def as_text(result: object) -> str:
    """A text unchanged, everything else as JSON."""
    if isinstance(result, str):
        return str(result)
    try:
        return json.dumps(result, default=_as_json, ensure_ascii=False)
    except (ValueError, RecursionError) as wrong:
        raise ToolError(f"the result {NO_JSON}: {wrong}") from None
    except TypeError:
        raise ToolError(f"the result {NO_JSON}: its type is {type(result).__name__}, or it contains one") from None


def _as_json(value: object) -> object:
    from dataclasses import fields, is_dataclass
    from enum import Enum

    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if type(value).__module__ in ("datetime", "decimal", "fractions", "pathlib", "uuid"):
        return str(value)
    raise TypeError


def main(arguments: list[str]) -> None:
    path = Path(arguments[0]).absolute()
    try:
        found = tools_of(path)
    except FunctionFileError as wrong:
        sys.exit(f"{wrong}. {wrong.hint}".strip())
    try:
        runner = FunctionRunner(user_files.load(path, _MODULE, first=True))
        tools = [runner.tool(each) for each in found]
        classes = {each.name: runner.session_class(each.session_class) for each in found if each.session_class}
        if classes:
            tools.append(runner.state_tool())
        if kinds := {tool: kind for tool, kind in classes.items() if has_life(kind)}:
            tools += [runner.setup_tool(kinds), runner.end_tool()]
    except BaseException as broken:  # noqa: BLE001 - the code of a user may raise anything, SystemExit too
        own = [frame for frame in traceback.extract_tb(broken.__traceback__) if frame.filename == str(path)]
        place = f", line {own[-1].lineno}" if own else ""
        sys.exit(f"{path}{place}: {''.join(traceback.format_exception_only(broken)).strip()}")
    Server(path.stem, "", tools, at_end=runner.end_all).serve()

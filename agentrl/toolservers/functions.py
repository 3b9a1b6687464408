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
from collections.abc import Callable, Coroutine
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.toolservers.argument_types import converted_fields, schema_of
from agentrl.toolservers.function_tools import FunctionFileError, FunctionTool, tools_of
from agentrl.toolservers.mcp_stdio import Call, Server, Tool
from agentrl.toolservers.user_names import DEFAULT_EFFECT, STATE_TOOL, Session, ToolError

MOST_SESSIONS = 20_000
"""The state of the session that was used longest ago is dropped."""
_MODULE = "tools_of_the_run"


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
                    self._states.popitem(last=False)
            self._states.move_to_end(key)
            return self._states[key]

    def kept(self, session: str) -> dict[str, Session]:
        """What there is of a session, by the name of the class."""
        with self._lock:
            return {kind.__name__: state for (of, kind), (state, _) in self._states.items() if of == session}


class EventLoop:
    """Runs async functions, all in one thread that starts with the first of them."""

    def __init__(self) -> None:
        self._loop: Any = None
        self._lock = threading.Lock()

    def result_of(self, work: Coroutine[Any, Any, Any], call: Call) -> Any:
        import asyncio  # few files need it, and it takes as long as all else

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

        def run(arguments: dict[str, Any], call: Call) -> str:
            return as_text(self._call(found, function, arguments, call))

        return Tool(found.name, found.description, found.schema, run, found.effect or DEFAULT_EFFECT)

    def state_tool(self) -> Tool:
        """Reads what the session keeps, as JSON."""

        def run(arguments: dict[str, Any], call: Call) -> str:
            return as_text({name: vars(state) for name, state in self._sessions.kept(call.session).items()})

        return Tool(STATE_TOOL, "What the tools keep for this episode.", schema_of(()), run, DEFAULT_EFFECT)

    def _call(self, found: FunctionTool, function: Callable[..., Any], arguments: dict[str, Any], call: Call) -> Any:
        by_name = converted_fields(found.fields, arguments, "", self._class)
        if not found.session_class:
            return self._result(found, function, by_name, call)
        state, turn = self._sessions.of(call.session, self._class(found.session_class))
        with turn:
            return self._result(found, function, {**by_name, found.session_parameter: state}, call)

    def _result(self, found: FunctionTool, function: Callable[..., Any], by_name: dict[str, Any], call: Call) -> Any:
        first = [by_name.pop(name) for name in found.positional if name in by_name]
        result = function(*first, **by_name)
        return self._loop.result_of(result, call) if isinstance(result, Coroutine) else result

    def _class(self, name: str) -> Any:
        return getattr(self._module, name)


def as_text(result: object) -> str:
    """A text as it is, everything else as JSON."""
    if isinstance(result, str):
        return str(result)
    try:
        return json.dumps(result, default=_as_json, ensure_ascii=False)
    except (ValueError, RecursionError) as wrong:
        raise ToolError(f"the result cannot be written as JSON: {wrong}") from None
    except TypeError:
        raise ToolError(f"the result has the type {type(result).__name__}, or contains one, without JSON") from None


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


def imported(path: Path) -> ModuleType:
    """The file as a module. It finds the modules beside it."""
    sys.path.insert(0, str(path.parent))
    spec = spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    # Dataclasses look for their module by its name.
    module = sys.modules[_MODULE] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(arguments: list[str]) -> None:
    path = Path(arguments[0]).absolute()
    try:
        found = tools_of(path)
    except FunctionFileError as wrong:
        sys.exit(f"{wrong}. {wrong.hint}".strip())
    try:
        runner = FunctionRunner(imported(path))
        tools = [runner.tool(each) for each in found]
        if any(each.session_class for each in found):
            tools.append(runner.state_tool())
    except BaseException as broken:  # noqa: BLE001 - the code of a user may raise anything, SystemExit too
        own = [frame for frame in traceback.extract_tb(broken.__traceback__) if frame.filename == str(path)]
        place = f", line {own[-1].lineno}" if own else ""
        sys.exit(f"{path}{place}: {''.join(traceback.format_exception_only(broken)).strip()}")
    Server(path.stem, "", tools).serve()

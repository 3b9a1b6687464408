"""Calls every tool of a run once before the run starts, where that is safe.

Invariants:
- A tool is called only if it declares that it changes nothing beyond its session, or if a person gave example
  arguments; every other tool is reported as not tried. A call that may have changed something beyond its session is
  never repeated.
- Each tool ends as one that works, fails or is untried, with one sentence and what to do.
- Servers are tried in parallel, the tools of one server one after the other, in one session.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentrl.config.data_plane import ToolServer
from agentrl.config.run import RunConfig
from agentrl.config.serialization import secret_files
from agentrl.config.tool_lock import keep_pins
from agentrl.errors import AgentrlError
from agentrl.formatting.sentences import ended
from agentrl.policies.example_arguments import arguments_for
from agentrl.store import datasets
from agentrl.toolbox.api_messages import CallAnswer, CallTool, OpenSession, ServerInfo, ToolboxError, ToolInfo
from agentrl.toolbox.toolbox import Toolbox
from agentrl.toolservers.user_names import HIDDEN_TOOLS, NO_JSON, SETUP_TOOL

LOOK_EVERY_S = 0.02
TRIES = 2
"""How often a call that fails for infrastructure is tried, because one failure may be chance. A call that may have
changed something is tried once."""
_MOST_SHOWN = 300
_SAYS_NOTHING = "its server does not say that it changes nothing outside of its session"
Verdict = Literal["works", "fails", "untried"]
TaskOf = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Returns the data from which a server makes the state of a session."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one tool, or for the whole server if `tool` is empty."""

    server: str
    tool: str = ""
    verdict: Verdict
    sentence: str = ""
    hint: str = ""


async def try_tools(
    config: RunConfig, names: Collection[str], show: Callable[[Trial], None], *, run_file: Path | None = None
) -> None:
    """Start these servers of a run, call their tools, and end them again. The lock file of packages is beside
    `run_file`."""

    async def task_of(server: str) -> Mapping[str, Any]:
        users = (environment for environment in config.environments.values() if server in environment.tools)
        row = next((row for user in users for row in datasets.read(user.dataset)), None)
        return {} if row is None else {"query": row.query, "truth": row.answer, "row": row.extra}

    async def try_server(name: str) -> None:
        for trial in await _tried(toolbox, name, config.tools[name], task_of):
            show(trial)

    with tempfile.TemporaryDirectory(prefix="agentrl-tools-") as folder:
        toolbox = _toolbox(config, names, Path(folder), run_file)
        async with toolbox.running(), asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(try_server(name), name=f"try {name}")


def _toolbox(config: RunConfig, names: Collection[str], folder: Path, run_file: Path | None) -> Toolbox:
    """A toolbox for the trial. `folder` replaces the run's directory if the run was never started."""
    run_dir = Path(config.dir) if Path(config.dir).is_dir() else folder
    if run_file is not None:
        keep_pins(config, run_file, run_dir)  # Toolboxes find installed packages by their pins.
    return Toolbox(
        {name: config.tools[name].model_copy(update={"pool": 1}) for name in names},
        run_dir=run_dir,
        name="preflight",
        secret_files=secret_files(config),
    )


async def _tried(toolbox: Toolbox, server: str, config: ToolServer, task_of: TaskOf) -> list[Trial]:
    """Try all tools of one server. The toolbox must be running."""
    info = await _started(toolbox, server)
    if not info.usable:
        return [_fails(server, "", f"the server does not start: {info.problem}", "Run its command by hand.")]
    tools = [tool for tool in toolbox.tools(server) if tool.name not in HIDDEN_TOOLS]
    found = [
        _untried(tool, "it acts outside of its session" if toolbox.effect(tool) == "outside" else _SAYS_NOTHING)
        for tool in tools
        if _arguments(toolbox, tool, config) is None
    ]
    for name in config.examples:
        if name not in {tool.name for tool in tools}:
            known = ", ".join(tool.name for tool in tools) or "none"
            found.append(_fails(server, name, "is not there, and has an example", f"Its tools are: {known}."))
    calls = {tool.name: arguments for tool in tools if (arguments := _arguments(toolbox, tool, config)) is not None}
    session = _Session(toolbox, server, config, task_of, [tool.name for tool in tools])
    try:
        for tool in tools:
            if tool.name in calls:
                given = example_of(tool, config) is not None
                found.append(await session.tried(tool, calls[tool.name], given=given))
    finally:
        await session.close()
    return found


def example_of(tool: ToolInfo, config: ToolServer) -> Mapping[str, Any] | None:
    """The example arguments of a tool: from the run file, from its health check, or from its own declaration."""
    if tool.name in config.examples:
        return config.examples[tool.name]
    return config.health.arguments if tool.name == config.health.tool else tool.example


def _arguments(toolbox: Toolbox, tool: ToolInfo, config: ToolServer) -> Mapping[str, Any] | None:
    """The arguments with which it may be called; None if only a person may decide to call it."""
    if (example := example_of(tool, config)) is not None:
        return example
    return arguments_for(tool.schema) if _is_safe(toolbox, tool) else None


def _is_safe(toolbox: Toolbox, tool: ToolInfo) -> bool:
    """Whether it declares that it changes nothing beyond its session."""
    effect = toolbox.effect(tool)
    return effect in ("pure", "session") or (tool.reads_only and effect != "outside")


async def _started(toolbox: Toolbox, server: str) -> ServerInfo:
    while True:
        info = next(each for each in toolbox.servers() if each.id == server)
        if info.usable or info.problem:
            return info
        await asyncio.sleep(LOOK_EVERY_S)


class _Session:
    """One session of a server, made again after a call that ended it."""

    def __init__(self, toolbox: Toolbox, server: str, config: ToolServer, task_of: TaskOf, offered: list[str]) -> None:
        self._toolbox = toolbox
        self._server = server
        self._config = config
        self._task_of = task_of
        self._offered = offered
        self._calls = itertools.count(1)
        self._number = 0
        self._open = ""

    async def tried(self, tool: ToolInfo, arguments: Mapping[str, Any], *, given: bool) -> Trial:
        """`given`: a person gave the arguments, so the tool should accept them."""
        for left in reversed(range(TRIES)):
            try:
                session = await self._opened()
                answer = await self._call(session, tool.name, arguments)
            except AgentrlError as refused:  # For example, there is no dataset whose first row makes the state.
                await self.close()
                if not left:
                    return _fails(self._server, tool.name, f"cannot be called: {refused.message}", refused.hint)
                continue
            if answer.status in ("timeout", "lost", "cancelled"):
                await self.close()
            if answer.status in ("ok", "tool_error") and answer.error_class != "infrastructure":
                break
            if not _is_safe(self._toolbox, tool):
                break
        return _judged(tool, self._config, arguments, answer, given=given)

    async def _opened(self) -> str:
        if not self._open:
            self._number += 1
            name = f"preflight/{self._server}/{self._number}"
            await self._toolbox.open(OpenSession(id=name, servers=(self._server,)))
            self._open = name
            if any(tool.name == SETUP_TOOL for tool in self._toolbox.tools(self._server)):
                task = dict(await self._task_of(self._server)) | {"tools": self._offered}
                made = await self._call(name, SETUP_TOOL, task)
                if made.status != "ok":
                    raise ToolboxError(f"the state of its session is not made: {made.content[:_MOST_SHOWN]}")
        return self._open

    async def _call(self, session: str, tool: str, arguments: Mapping[str, Any]) -> CallAnswer:
        call = CallTool(session=session, call=f"{session}/{next(self._calls)}", arguments=dict(arguments))
        return await self._toolbox.call(f"{self._server}.{tool}", call)

    async def close(self) -> None:
        if self._open:
            await self._toolbox.close(self._open)
            self._open = ""


def _judged(
    tool: ToolInfo, config: ToolServer, arguments: Mapping[str, Any], answer: CallAnswer, *, given: bool
) -> Trial:
    shown = json.dumps(dict(arguments), ensure_ascii=False)[:_MOST_SHOWN]
    said = answer.content[:_MOST_SHOWN]
    match answer.status:
        case "ok":
            return Trial(server=tool.server, tool=tool.name, verdict="works")
        case "timeout":
            hint = f"Give it less to do, or more time: `tools: {{{tool.server}: {{timeout_s: ...}}}}`."
            return _fails(tool.server, tool.name, f"does not answer {shown} within {config.timeout_s:g} s", hint)
        case "lost" | "cancelled":
            hint = "Raise an error in the tool instead; what the server wrote is above."
            return _fails(tool.server, tool.name, f"ends its server when it is called with {shown}: {said}", hint)
    if answer.error_class == "infrastructure" or NO_JSON in answer.content:
        return _fails(tool.server, tool.name, f"fails with {shown}: {said}", "Mend it, or its service.")
    if given:
        hint = "Mend the tool, or the example in the run file or the decorator."
        return _fails(tool.server, tool.name, f"refuses its example {shown}: {said}", hint)
    if config.shipped:
        return Trial(server=tool.server, tool=tool.name, verdict="works")  # It says what is wrong with them.
    return _untried(tool, f"it refuses made-up arguments {shown}: {said}")


def _fails(server: str, tool: str, what: str, hint: str = "") -> Trial:
    subject = f"the tool {tool} " if tool else ""
    return Trial(
        server=server, tool=tool, verdict="fails", sentence=f"tools.{server}: {subject}{ended(what)}", hint=hint
    )


def _untried(tool: ToolInfo, why: str) -> Trial:
    example = json.dumps(arguments_for(tool.schema), ensure_ascii=False)
    return Trial(
        server=tool.server,
        tool=tool.name,
        verdict="untried",
        sentence=f"tools.{tool.server}: the tool {tool.name} is untried, because {ended(why)}",
        hint=f"Give it arguments: `tools: {{{tool.server}: {{examples: {{{tool.name}: {example}}}}}}}`.",
    )

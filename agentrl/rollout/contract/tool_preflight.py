"""Calls every tool of an environment once, and looks at what it gives.

Invariants:
- A tool that acts outside of its session is not called; it is reported as not tried.
- Each tool is called in a session of its own, so that none depends on another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.environments.user_places import Place
from agentrl.policies.example_arguments import arguments_for
from agentrl.policies.replay_verdicts import ToolEffect, effect_of, merged_effects
from agentrl.rollout.contract.findings import Findings
from agentrl.toolbox.api_messages import CallAnswer, ToolboxError, ToolInfo
from agentrl.toolbox.client import ToolboxClient
from agentrl.toolservers.user_names import END_TOOL, NO_JSON, SETUP_TOOL

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EXCEPTION = re.compile(r"(\w+\.)*[A-Z]\w*(Error|Exception|Exit|Interrupt)\b")
_ALLOWED = "\n\t\r"
MOST_CHARS = 16_000
"""A longer result is of no use to a model: a few of them would fill its context."""
_MOST_ERROR_CHARS = 2_000


class Preflight:
    """Calls the tools of one environment."""

    def __init__(
        self, toolbox: ToolboxClient, findings: Findings, places: Mapping[str, Place], at_most_s: float
    ) -> None:
        """`places` are the definitions of the tools, where they are known."""
        self._toolbox = toolbox
        self._findings = findings
        self._places = places
        self._at_most_s = at_most_s

    async def run(
        self,
        tools: Sequence[ToolInfo],
        effects: Mapping[str, Mapping[str, ToolEffect]],
        setups: Mapping[str, Mapping[str, Any]],
    ) -> list[ToolInfo]:
        """Returns the tools that answer. `effects`: what the run file declares, by server. `setups`: the data from
        which servers make the state of a session."""
        usable = []
        for tool in tools:
            place = self._places.get(tool.name)
            if not _NAME.fullmatch(tool.name):
                self._findings.add("names", f"the tool {tool.name} has a name that models cannot write", place)
            if (
                effect_of(merged_effects({tool.name: tool.effect}, effects.get(tool.server, {})), tool.name)
                == "outside"
            ):
                why = "its effect is outside, so it is not called here"
                self._findings.add("untried", f"the tool {tool.name} is untried: {why}", place, level="note")
                continue
            if await self._answers(tool, place, setups.get(tool.server)):
                usable.append(tool)
        return usable

    async def life(self, server: str, task: Mapping[str, Any], place: Place | None) -> None:
        """Makes the state of a session and ends it. `place` is the class of the state."""
        session = f"check/{server}/life"
        await self._toolbox.open(session, [server])
        try:
            for tool, arguments, name in ((SETUP_TOOL, task, "setup-fails"), (END_TOOL, {}, "teardown-fails")):
                call = f"{session}.{name}"
                answer = await self._toolbox.call(
                    session, call, server, tool, dict(arguments), timeout_s=self._at_most_s
                )
                if answer.status != "ok":
                    self._findings.add(
                        name, f"the {name.partition('-')[0]} of the tools fails: {answer.content}", place
                    )
        except ToolboxError as refused:
            self._findings.add("setup-fails", f"the state of the tools cannot be made: {refused.message}", place)
        finally:
            await self._toolbox.close(session, forget=True)

    async def _answers(self, tool: ToolInfo, place: Place | None, setup: Mapping[str, Any] | None) -> bool:
        session = f"check/{tool.id}"
        try:
            await self._toolbox.open(session, [tool.server])
            try:
                if setup is not None:
                    await self._toolbox.call(session, f"{session}.setup", tool.server, SETUP_TOOL, dict(setup))
                answer = await self._toolbox.call(
                    session,
                    f"{session}.0",
                    tool.server,
                    tool.name,
                    arguments_for(tool.schema) if tool.example is None else tool.example,
                    timeout_s=self._at_most_s,
                )
            finally:
                await self._toolbox.close(session, forget=True)
        except ToolboxError as refused:
            self._findings.add("untried", f"the tool {tool.name} is untried: {refused.message}", place, level="note")
            return False
        return self._is_usable(tool.name, answer, place)

    def _is_usable(self, name: str, answer: CallAnswer, place: Place | None) -> bool:
        add = self._findings.add
        text = answer.content
        if answer.status == "timeout":
            add("tool-hangs", f"the tool {name} does not answer within {self._at_most_s:g} s", place)
            return False
        if answer.status == "lost":
            add("tool-ends-process", f"the tool {name} ends the process of its server: {text}", place)
            return False
        if answer.status == "tool_error" and NO_JSON in text:
            add("tool-result-type", f"the tool {name} gives what no model can read: {text}", place)
            return True
        if answer.status == "tool_error" and _EXCEPTION.match(text):
            add("tool-fails", f"the tool {name} raises {text[:200]}", place, level="note")
        most = _MOST_ERROR_CHARS if answer.status == "tool_error" else MOST_CHARS
        if answer.left_out or len(text) > most:
            length = len(text) + answer.left_out
            add("tool-result-huge", f"the tool {name} gives {length} characters in one result", place)
        if strange := {each for each in text if not _is_plain(each)}:
            listed = ", ".join(sorted(f"U+{ord(each):04X}" for each in strange)[:5])
            add("tool-result-characters", f"the tool {name} gives characters that are no text: {listed}", place)
        return True


def _is_plain(character: str) -> bool:
    return character in _ALLOWED or (character.isprintable() and character != "\ufffd") or character.isspace()

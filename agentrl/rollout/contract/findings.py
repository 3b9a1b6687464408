"""What the contract kit finds. Pure.

Invariants:
- Each finding has a name, one sentence with the line of the user's code, and what to do about it.
- A fault breaks the contract; a note only informs a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentrl.environments.user_places import Place
from agentrl.rollout.user_code_faults import shown

Level = Literal["fault", "note"]

HINTS = {
    "names": "Names are words of letters, digits, _ and -, of at most 64 characters.",
    "tool-fails": "Raise rl.ToolError with a sentence that helps the model.",
    "tool-hangs": "Give its own waiting a deadline, and raise rl.ToolError.",
    "tool-ends-process": "Raise rl.ToolError instead; what must be able to crash belongs into a process of its own.",
    "tool-result-type": "Return a text, a number, a list, a dict, or a dataclass of them.",
    "tool-result-characters": "Decode bytes with errors='replace', and take control characters out.",
    "tool-result-huge": "Return what the model needs: a part, a page, a summary.",
    "tool-differs": "Seed what is random by the arguments, and keep state in an rl.Session; what reads the world is "
    "@rl.tool(effect='outside').",
    "setup-fails": "`setup(self, task)` makes the state from task.query, task.truth and task.row.",
    "teardown-fails": "Let `teardown(self)` end what is there, whatever happened before.",
    "state-no-json": "Keep plain values, lists and dicts in the attributes of an rl.Session.",
    "untried": "Call it once by hand, or with --say.",
    "agent-fails": "Handle what a model may say; an agent that raises is a failure of the infrastructure.",
    "agent-outcome": "Return nothing, or one of the outcomes of docs/agents.md.",
    "agent-hangs": "Await something that ends; every wait needs a deadline.",
    "agent-differs": "Ask the same when the answers are the same: no randomness, no global variables.",
    "shared-state": "Keep nothing of an episode in global variables or defaults of arguments.",
    "keeps-on-after-cancel": "Do not catch CancelledError or BaseException, or raise it again.",
    "scorer-fails": "Return a number for whatever a model may answer; 0 if it makes no sense.",
    "scorer-no-number": "Return a finite number, or an rl.Score of finite numbers.",
    "hangs": "What may hang belongs into a tool, which runs in a process of its own.",
    "scorer-hangs": "Give its own waiting a deadline.",
    "scorer-differs": "A score follows from the episode alone: no randomness, no clock, no global variables.",
    "blocks": "Make it async, or call it by await asyncio.to_thread(...).",
    "ends-process": "Raise an exception instead.",
    "crashes": "What may crash belongs into a tool, which runs in a process of its own.",
    "leaks-tasks": "Await the tasks that it starts, for example in an asyncio.TaskGroup.",
    "leaks-threads": "Join the threads that it starts, or use asyncio.to_thread.",
    "leaks-files": "Close it, for example by a with statement.",
    "leaks-processes": "End and wait for the processes that it starts.",
}
"""What to do, by the name of the finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    sentence: str
    place: Place | None = None
    level: Level = "fault"

    def plain(self, environment: str) -> dict[str, object]:
        """As one line of JSON."""
        return {
            "event": "finding",
            "environment": environment,
            "name": self.name,
            "level": self.level,
            "file": self.place.file if self.place else "",
            "line": self.place.line if self.place else 0,
            "sentence": shown(self.sentence),
            "hint": HINTS.get(self.name, ""),
        }


class Findings:
    """The findings. Each fault is kept once, however often it occurs."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def add(self, name: str, sentence: str, place: Place | None = None, *, level: Level = "fault") -> None:
        key = (name, place or sentence)
        if all((each.name, each.place or each.sentence) != key for each in self.all):
            self.all.append(Finding(name, sentence, place, level))

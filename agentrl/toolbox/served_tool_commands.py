"""Serves the commands that the table of commands gives to toolboxes.

Invariants:
- It serves exactly these commands (a test compares them).
- The coordinator has checked the permission; a query changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.errors import UnknownNameError
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.protocol.wire import decode_as
from agentrl.toolbox.tool_manager import ToolManager
from agentrl.toolbox.tool_operations import ToolOperations
from agentrl.toolbox.toolbox import Toolbox

Query = Callable[[Any], Any]


class ServedToolCommands:
    """From the name of a command to the function that serves it."""

    def __init__(self, toolbox: Toolbox) -> None:
        manager, operations = ToolManager(toolbox), ToolOperations(toolbox)
        self.changes = operations.table
        self.queries: dict[str, Query] = {
            "list_tool_servers": manager.servers,
            "list_tools": manager.tools,
            "list_sandboxes": manager.sandboxes,
            "list_tool_sessions": manager.sessions,
            "tool_logs": manager.logs,
            "show_exec_output": operations.output,
        }

    async def answer(self, question: AskUnit) -> Any:
        spec = COMMANDS.get(question.name)
        query, change = self.queries.get(question.name), self.changes.get(question.name)
        if spec is None or (query is None and change is None):
            raise UnknownNameError(
                f"This toolbox does not serve {question.name!r}.", hint="Use the same version on both sides."
            )
        args = decode_as(spec.args, question.args)
        if change is None:
            assert query is not None
            return query(args)
        return change.preview(args) if question.dry_run else await change.carry_out(args, question)

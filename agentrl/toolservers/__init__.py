"""Tool servers that come with agentrl: functions of a Python file, Python cells, workspace files, calculator, search.

Each is an MCP server over stdio that a toolbox starts in a sandbox. A start must cost little more than a bare Python,
and a virtual environment of a server does not have agentrl's dependencies. So this room imports only the standard
library, and implements the few messages of MCP itself (`mcp_stdio.py`).

A file of functions imports its names from here: `from agentrl.toolservers import Session, ToolError, effect`.
"""

from __future__ import annotations

from agentrl.toolservers.user_names import Session, ToolError, effect, tool

__all__ = ["Session", "ToolError", "effect", "tool"]

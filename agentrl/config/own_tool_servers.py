"""The tool servers that agentrl provides: those of `shipped`, and the server that offers the functions of a Python
file.

They are MCP servers over stdio like any other (`agentrl/toolservers`); this module derives their command and defaults
from the few keys that they have in the run file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

Shipped = Literal["", "python", "files", "calculator", "search"]
STATELESS = ("calculator", "search")
"""One process serves all episodes."""
PROGRAM = str(Path(__file__).parents[1] / "toolservers" / "__main__.py")
_CELL_SHARE = 0.8
"""The share of a call's time that a cell of code gets: it ends before the call does, so that its interpreter
survives."""


def with_defaults(plain: Any) -> Any:
    """The section of a tool server with the defaults of the shipped server that it names."""
    if not isinstance(plain, dict) or not plain.get("shipped"):
        return plain
    filled = dict(plain)
    if filled["shipped"] in STATELESS:
        filled.setdefault("session", "shared")
    if filled["shipped"] == "python":
        # If this server takes too long or dies, the model's code is the cause.
        filled.setdefault("timeout_means", "policy")
        filled.setdefault("crash_means", "policy")
        sandbox = filled.get("sandbox", {})
        sandbox = {"kind": sandbox} if isinstance(sandbox, str) else sandbox
        if isinstance(sandbox, dict) and sandbox.get("kind", "process") != "none":
            # Code of a model must never run with the rights of the user, even if a host lacks sandboxes.
            filled["sandbox"] = {"required": True, **sandbox}
    return filled


def command_of(
    functions: str, shipped: Shipped, *, corpus: Sequence[str], workspace: str, timeout_s: float, has_packages: bool
) -> tuple[str, ...]:
    """The command that starts the server; empty if neither `shipped` nor `functions` is set."""
    # The command names the program by its path, because agentrl is not installed in the server's virtual environment.
    start = ("python" if has_packages else "{python}", PROGRAM)
    match shipped:
        case "python":
            return (*start, "python", "--cell-s", f"{timeout_s * _CELL_SHARE:g}")
        case "files":
            return (*start, "files", *([workspace] if workspace else []))
        case "search":
            return (*start, "search", *corpus)
        case "calculator":
            return (*start, "calculator")
    return (*start, "functions", functions) if functions else ()


def problem_of(
    functions: str,
    shipped: Shipped,
    *,
    corpus: Sequence[str],
    workspace: str,
    session: str,
    sandbox: str,
    has_npm: bool,
) -> str:
    """Why these keys cannot be combined; empty if they can."""
    if (shipped == "search") != bool(corpus):
        return "corpus is needed by shipped: search, and by no other"
    if workspace and shipped != "files":
        return "workspace is for shipped: files"
    if shipped in ("python", "files") and session != "process":
        return f"session must be process for shipped: {shipped}, which keeps the state of one episode"
    if (functions or shipped) and has_npm:
        return "npm is for a server with a command; functions and shipped servers are Python"
    if (functions or shipped) and sandbox == "container":
        return "functions and shipped servers run with the Python of the run, which no container has"
    return ""

"""Says what may help a tool server that does not come up, from its last lines.

A program does not know that it runs in a sandbox, so its own message seldom names the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agentrl.sandboxes.launch_environment import Launch

_MISFIT = re.compile(r"\b(AttributeError|ImportError|ModuleNotFoundError|ERR_MODULE_NOT_FOUND|SyntaxError)\b")
_IN_SANDBOX = (
    (
        re.compile(r"Read-only file system|EROFS"),
        "Its sandbox shows that file read-only: name a place below /tmp, which is private, or allow it by "
        "{place}.write",
    ),
    (
        re.compile(r"ENOTFOUND|EAI_AGAIN|name resolution|Name or service not known|Network is unreachable|ENETUNREACH"),
        "Its sandbox has no network: {place}.network names the hosts that it needs",
    ),
    (
        re.compile(r"No such file or directory|ENOENT|not found|Permission denied|EACCES"),
        "Its sandbox shows no home directory, cache or other file that the run file does not name: {place}.read and "
        "{place}.write show them, and python or npm in tools.{name} install packages",
    ),
)


def advice_for(name: str, launch: Launch, last_lines: Iterable[str]) -> str:
    """Empty if nothing is known."""
    text = "\n".join(last_lines)
    if launch.interpreters and _MISFIT.search(text):
        return f"Its packages may not fit together: pin other versions in tools.{name}."
    if launch.sandbox == "none":
        return ""
    general = "It runs in a sandbox: {place}.network, read and write allow what it lacks"
    found = next((sentence for pattern, sentence in _IN_SANDBOX if pattern.search(text)), general)
    return f"{found.format(name=name, place=f'tools.{name}.sandbox')}."

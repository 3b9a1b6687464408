"""Suggests what may help a tool server that does not start, from its last lines of output.

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
        "{place}.write show them{packages}",
    ),
)


def advice_for(place: str, launch: Launch, last_lines: Iterable[str]) -> str:
    """`place` is that of the server in the run file, such as `tools.search`. Empty if nothing is known."""
    text = "\n".join(last_lines)
    if launch.interpreters and _MISFIT.search(text):
        return f"Its packages may not fit together: pin other versions in {place}."
    if launch.sandbox == "none":
        return ""
    packages = f", and python or npm in {place} install packages"
    general = f"It runs in a sandbox: {place}.sandbox.network, read and write allow what it lacks."
    return lacking(place, text, packages=packages) or general


def lacking(place: str, text: str, *, packages: str = "") -> str:
    """What the sandbox of `place` lacks according to this error text; empty if the text does not tell."""
    found = next((sentence for pattern, sentence in _IN_SANDBOX if pattern.search(text)), "")
    return f"{found.format(place=f'{place}.sandbox', packages=packages)}." if found else ""

"""Runs pip and npm, and finds the line of their output that says what went wrong.

Invariants:
- They have the environment and the configuration files of the person who installs, except settings that would make them
  install elsewhere.
- No password of an address is in a message.
- An index that refuses downloads for now (429) is named within seconds, whatever time it asks to wait.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.errors import OperationFailedError

WITHIN_S = 1_200.0
PIP = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "0", "-vv")
"""pip's own retries wait as long as an index asks for. Only its most verbose output has the answer of an index."""
_WAITS_S = (1.0, 4.0)
"""The pauses before the second and the third try, if the index cannot be reached or refuses for now."""
_ELSEWHERE = ("PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV", "PIP_ROOT", "PIP_TARGET", "PIP_USER", "PYTHONHOME", "PYTHONPATH")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*@")
_CODE = re.compile(r"^(code\s+)?(E[A-Z0-9]+|\d{3}|notarget)\b\s*")
_REFUSED_FOR_NOW = re.compile(r"\b(429|50[0234]) (Client|Server) Error\b|Too Many Requests")
_UNREACHABLE = re.compile(r"connection|name resolution|ENOTFOUND|ECONN|timed out|Max retries", re.IGNORECASE)
_NO_REASON = ("A complete log", "Note that you can", "This is not", "verbose stack", "errno", "syscall")


class InstallError(OperationFailedError):
    """pip or npm failed."""


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    what: str,
    lock: int | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run an installer. Raises InstallError that says which step (`what`) failed, with its last useful line."""
    for wait_s in (*_WAITS_S, None):
        reason = _failure(command, cwd=cwd, what=what, lock=lock, env=env)
        if not reason:
            return
        if wait_s is None or not (_REFUSED_FOR_NOW.search(reason) or _UNREACHABLE.search(reason)):
            raise InstallError(f"{what}: {reason.rstrip('.')}.", hint=_cure(reason))
        time.sleep(wait_s)


def _failure(
    command: Sequence[str | Path], *, cwd: Path, what: str, lock: int | None, env: Mapping[str, str] | None
) -> str:
    """Why the installer failed; empty if it did not."""
    environ = {key: value for key, value in os.environ.items() if key not in _ELSEWHERE} | dict(env or {})
    try:
        done = subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=WITHIN_S,
            check=False,
            pass_fds=() if lock is None else (lock,),
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"{what}: it took longer than {WITHIN_S:g} s.") from None
    except OSError as broken:
        raise InstallError(f"{what}: {command[0]} cannot be started: {broken.strerror}.") from broken
    if done.returncode == 0:
        return ""
    index = _of_index(done.stdout) or _of_index(done.stderr)
    return index or reason_in(done.stderr) or reason_in(done.stdout) or f"exit {done.returncode}"


def _of_index(output: str) -> str:
    """The answer of an index instead of a list of packages. The error of pip is then that there is no such package."""
    found = [line for line in _PASSWORD.sub("", output).splitlines() if "Could not fetch URL" in line]
    wrong = [line for line in found if _REFUSED_FOR_NOW.search(line) or _UNREACHABLE.search(line)]
    return wrong[0].strip().removesuffix(" - skipping") if wrong else ""


def reason_in(output: str) -> str:
    """The line that says why an installer failed; empty if there is none."""
    lines = [line.strip() for line in _PASSWORD.sub("", output).splitlines() if line.strip()]
    if pip := [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]:
        # If packages cannot be resolved, the last error line is only a reference to documentation.
        useful = [line for line in pip if "for help visit" not in line]
        return (useful or pip)[-1]
    npm = [line.partition(" ")[2].partition(" ")[2] for line in lines if line.startswith(("npm error", "npm ERR!"))]
    if stated := [_CODE.sub("", line, count=1).strip() for line in npm if not line.startswith(_NO_REASON)]:
        return next((line for line in stated if line), "")
    return lines[-1] if lines else ""


def _cure(reason: str) -> str:
    if _REFUSED_FOR_NOW.search(reason):
        return (
            "The index refuses downloads for now, as when a quota is used up. A toolbox tries again by itself; no "
            "attempt of a task is spent meanwhile."
        )
    if _UNREACHABLE.search(reason):
        return "The index is not reachable: pip takes it from its configuration (`pip config list`), npm from .npmrc."
    if "binary" in reason or "wheel" in reason or "No matching distribution" in reason:
        return (
            "Is the name right? A package without a wheel for this host needs `build: true`, which runs its code "
            "during the installation."
        )
    return ""

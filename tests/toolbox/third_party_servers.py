"""Builds third-party tool servers, each kind in an environment of its own.

Invariants:
- An environment is built once for its pins and kept in the checkout, in a directory that git ignores.
- An incomplete environment is never used.
- A server that cannot be built fails the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".venv-toolservers"
# They set no upper bound on the SDK, and they do not work with its second major version.
PYTHON = ("mcp-server-time==2026.10.10", "mcp-server-git==2026.10.10", "mcp<2")
NODE = ("@modelcontextprotocol/server-everything@2026.8.31",)
BUILD_WITHIN_S = 280


@dataclass(frozen=True)
class Others:
    """Commands of the servers."""

    time: tuple[str, ...]
    git: tuple[str, ...]
    everything: tuple[str, ...]

    @staticmethod
    def built() -> Others:
        python = _once("python", PYTHON, _build_python)
        node = _once("node", NODE, _build_node)
        everything = "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
        return Others(
            time=(str(python / "bin/mcp-server-time"), "--local-timezone", "Europe/Paris"),
            git=(str(python / "bin/mcp-server-git"),),
            everything=("node", str(node / everything)),
        )


def _once(kind: str, pins: tuple[str, ...], build: object) -> Path:
    assert callable(build)
    ROOT.mkdir(exist_ok=True)
    place = ROOT / f"{kind}-{hashlib.blake2b(' '.join(pins).encode(), digest_size=4).hexdigest()}"
    done = place / "complete"
    with (ROOT / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(place, ignore_errors=True)
            build(place, pins)
            done.touch()
    return place


def _build_python(place: Path, pins: tuple[str, ...]) -> None:
    _run(sys.executable, "-m", "venv", str(place))
    _run(str(place / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", *pins)


def _build_node(place: Path, pins: tuple[str, ...]) -> None:
    _run("npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), *pins)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_WITHIN_S)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}\n{done.stderr}"

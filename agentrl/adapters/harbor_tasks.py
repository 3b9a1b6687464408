"""Folders of tasks in the form of Harbor: `instruction.md`, `task.toml`, `environment/` and `tests/test.sh`.

Invariants:
- A task that needs an image is refused with the reason, because here its files are put into an empty directory of a
  sandbox.
- A task, with its digest, follows from its files alone, and no file outside of its folder is a part of it.
- A task whose files no session could have is refused before an episode begins.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import math
import posixpath
import re
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.adapters.player import PlayerError

WORKDIR = "/app"
PRIVATE = (WORKDIR, "/tests", "/logs")
LARGEST_ARCHIVE = 1 << 20
"""The most bytes of packed files that are put into a session."""
_COPIES = re.compile(r"(?:COPY|ADD)\s+(?P<from>\S+)\s+(?P<to>\S+)\s*$", re.IGNORECASE)
_ARCHIVES = re.compile(r".*\.(tar|tgz|tbz2?|txz|tar\.\w+)", re.IGNORECASE)
_HARMLESS = ("FROM", "WORKDIR", "LABEL", "MAINTAINER", "CMD", "ENTRYPOINT", "SHELL", "EXPOSE", "ARG")
_BASES = re.compile(r"(?:[\w.-]+(?:/[\w.-]+)*/)?(ubuntu|debian|alpine|busybox|bash|python)(?:[:@].*)?$")
"""Images with a shell and perhaps a Python, which a sandbox has too."""
_NETWORK = re.compile(r"\b(apt-get|apt|apk|curl|wget|pip3? install|uvx?|npm|git clone)\b")


@dataclass(frozen=True, slots=True)
class HarborTask:
    folder: Path
    instruction: str
    settings: dict[str, Any]
    copies: tuple[tuple[str, str], ...]
    """The paths that are copied from `environment/`, each with its target below the directory in which commands run."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def verifier_s(self) -> float:
        return float(self.settings.get("verifier", {}).get("timeout_sec", 600.0))

    @property
    def row(self) -> dict[str, Any]:
        about = self.settings.get("metadata", {})
        kept = {key: about[key] for key in ("difficulty", "category", "tags") if key in about}
        return {"id": self.name, "query": self.instruction, "task_folder": str(self.folder), **kept}

    def files(self) -> str:
        """The files that exist when the agent begins, packed."""
        return _packed(self, [(self.folder / "environment" / source, place) for source, place in self.copies])

    def tests(self) -> str:
        return _packed(self, [(self.folder / "tests", ".")])


def tasks_in(place: Path, *, has_network: bool) -> list[HarborTask]:
    """The tasks of a folder of tasks, or of the folder of one task. Raises PlayerError."""
    if not place.is_dir():
        raise PlayerError(f"harbor:{place}: there is no such directory.", hint="It is relative to the run file.")
    folders = [place] if (place / "task.toml").is_file() else sorted(each.parent for each in place.glob("*/task.toml"))
    if not folders:
        raise PlayerError(f"harbor:{place} has no tasks.", hint="A task is a folder with task.toml and instruction.md.")
    tasks = [task_at(folder, has_network=has_network) for folder in folders]
    for task in tasks:
        # What cannot be packed is refused before an episode begins.
        task.files()
        task.tests()
    return tasks


def task_at(folder: Path, *, has_network: bool) -> HarborTask:
    try:
        settings = tomllib.loads((folder / "task.toml").read_text())
        instruction = (folder / "instruction.md").read_text().strip()
        script = (folder / "tests" / "test.sh").read_text()
        copies = _copies(folder)
    except OSError as missing:
        raise PlayerError(f"harbor:{folder} is no whole task: {missing.filename}: {missing.strerror}.") from None
    except tomllib.TOMLDecodeError as wrong:
        raise PlayerError(f"harbor:{folder / 'task.toml'} is no TOML: {wrong}.") from None
    except UnicodeDecodeError as wrong:
        raise PlayerError(f"harbor:{folder} has a file that is no text in UTF-8: {wrong.reason}.") from None
    for name in ("environment", "verifier", "metadata"):
        if not isinstance(settings.get(name, {}), dict):
            raise PlayerError(f"harbor:{folder / 'task.toml'}: {name} must be a table.")
    limit = settings.get("verifier", {}).get("timeout_sec", 1.0)
    if not isinstance(limit, int | float) or not (math.isfinite(limit) and limit > 0):
        what = f"verifier.timeout_sec must be a number of seconds, got {limit!r}"
        raise PlayerError(f"harbor:{folder / 'task.toml'}: {what}.")
    if settings.get("environment", {}).get("docker_image"):
        raise _needs_image(folder, "task.toml names a docker_image")
    if (folder / "environment" / "docker-compose.yaml").exists():
        raise _needs_image(folder, "it has a docker-compose.yaml")
    if not has_network and (wanted := _NETWORK.search(script)):
        raise PlayerError(
            f"harbor:{folder}: its tests/test.sh calls {wanted[1]}, and its sandbox has no network.",
            hint="Allow it: `tools: {NAME: {sandbox: {network: [HOST, ...]}}}`, or install what it needs beforehand.",
        )
    return HarborTask(folder, instruction, settings, copies)


def _copies(folder: Path) -> tuple[tuple[str, str], ...]:
    file = folder / "environment" / "Dockerfile"
    if not file.is_file():
        return ((".", "."),) if (folder / "environment").is_dir() else ()
    copies, workdir = [], WORKDIR
    for line in re.sub(r"\\\n", " ", file.read_text()).splitlines():
        word, _, rest = line.strip().partition(" ")
        if not word or word.startswith("#"):
            continue
        match word.upper():
            case "FROM" if not _BASES.fullmatch(rest.partition(" ")[0]):
                raise _needs_image(folder, f"its Dockerfile begins with {rest.partition(' ')[0]}")
            case "WORKDIR":
                workdir = rest.strip().rstrip("/") or "/"
                if workdir != WORKDIR:
                    raise _needs_image(folder, f"it works in {workdir}, and a sandbox has {WORKDIR}")
            case "COPY" | "ADD":
                copies.append(_copy(folder, line.strip()))
            case instruction if instruction not in _HARMLESS:
                raise _needs_image(folder, f"its Dockerfile has {instruction} {rest.strip()[:60]}".rstrip())
    return tuple(copies)


def _copy(folder: Path, line: str) -> tuple[str, str]:
    found = _COPIES.fullmatch(line)
    if found is None or not _is_copied_below(line, found["from"], found["to"]):
        raise _needs_image(folder, f"its Dockerfile has {line[:80]}")
    named = found["from"].lstrip("/")  # As Docker has it, the root of a source is environment/.
    inside, source = (folder / "environment").resolve(), folder / "environment" / named
    if not source.exists() or not source.resolve().is_relative_to(inside):
        raise PlayerError(f"harbor:{folder}: its Dockerfile copies {found['from']}, which is not in environment/.")
    target = found["to"].removeprefix(WORKDIR).lstrip("/") or "."
    if not source.is_dir() and (target == "." or target.endswith("/")):
        target = f"{target.rstrip('/')}/{source.name}"
    return named or ".", target.rstrip("/")


def _is_copied_below(line: str, source: str, place: str) -> bool:
    """Whether files of the task come below the directory in which commands run, as they are."""
    below = place == WORKDIR or place.startswith((f"{WORKDIR}/", "./")) or not place.startswith("/")
    up = ".." in Path(source).parts or ".." in Path(place).parts
    changed = line.upper().startswith("ADD") and ("://" in source or _ARCHIVES.fullmatch(source))
    return below and not up and not changed and not source.startswith("-")


def _needs_image(folder: Path, why: str) -> PlayerError:
    return PlayerError(
        f"harbor:{folder} needs an image: {why}.",
        hint="Tasks are played in a sandbox without images: leave this one out, or run it by its own program.",
    )


def _packed(task: HarborTask, files: list[tuple[Path, str]]) -> str:
    """The files as packed text. The same files give the same text, so an episode that is played again makes the same
    calls."""
    written = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=written, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for source, place in files:
            is_context = source.resolve() == (task.folder / "environment").resolve()
            own = posixpath.normpath(f"{place}/Dockerfile") if is_context else ""

            def plain(info: tarfile.TarInfo, own: str = own) -> tarfile.TarInfo | None:
                # The Dockerfile itself is no file of the task.
                return None if posixpath.normpath(info.name) == own else _plain(task, info, written.tell())

            archive.add(source, arcname=place, filter=plain)
    if written.tell() > LARGEST_ARCHIVE:
        raise _too_large(task)
    return base64.b64encode(written.getvalue()).decode()


def _plain(task: HarborTask, info: tarfile.TarInfo, written: int) -> tarfile.TarInfo:
    """Leaves out the owner, so that the archive does not depend on who packs it. `written`: the bytes so far. Raises
    PlayerError for what a session would not unpack."""
    if written > LARGEST_ARCHIVE:
        raise _too_large(task)
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    try:
        tarfile.data_filter(info, WORKDIR)
    except tarfile.FilterError as wrong:  # The session would not unpack it.
        raise PlayerError(f"harbor:{task.folder} has a file that no session may have: {wrong}.") from None
    return info


def _too_large(task: HarborTask) -> PlayerError:
    return PlayerError(f"harbor:{task.folder} is too large: at most {LARGEST_ARCHIVE} bytes of packed files.")


def digest(tasks: list[HarborTask]) -> str:
    """Changes with any file of the tasks."""
    hashed = hashlib.blake2b(digest_size=8)
    for task in tasks:
        for file in sorted(path for path in task.folder.rglob("*") if path.is_file()):
            hashed.update(f"{file}\0".encode())
            hashed.update(file.read_bytes())
    return hashed.hexdigest()

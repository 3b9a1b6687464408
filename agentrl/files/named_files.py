"""The files that the run file names, for hosts that do not share the directories in which they are.

Invariants:
- A file is listed only for the roles that read it.
- On the other host a file of the run's directory has the same place in the run's directory. Every other file has its
  whole path below `copied`, so neighbouring files stay neighbours.
- Of the working directory of a tool server only scripts and the files that its command names are listed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.config.data_plane import ToolServer
from agentrl.config.file_checks import SCRIPTS
from agentrl.config.paths import IN_FORCE, PINS
from agentrl.config.run import RunConfig
from agentrl.config.run_marker import MARKER
from agentrl.files.frames import FilesError, Listed
from agentrl.files.pieces import Content, content_of

COPIED = "copied"
MOST_FILES = 20_000
_NOT_ENTERED = ("__pycache__", "node_modules")
Known = dict[tuple[str, int, int, int], Content]
"""Contents that need not be read again, by path, inode, size and time of change."""


def listed(run_dir: Path, role: str, known: Known) -> Listed:
    """The files that units of the role need, by the configuration in force. Reads every file that is not in `known`."""
    try:
        text = (run_dir / IN_FORCE).read_text()
        config = RunConfig.model_validate_json(text)
    except (OSError, ValueError) as broken:
        return Listed(problem=f"The configuration in force, {run_dir / IN_FORCE}, cannot be read: {broken}.")
    files: dict[str, Content] = {}
    executable = []
    try:
        for file in _files_of(config, run_dir, role):
            if str(file) in files:
                continue
            stat = file.stat()
            key = (str(file), stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if key not in known:
                known[key] = content_of(file)
            files[str(file)] = known[key]
            if stat.st_mode & 0o100:
                executable.append(str(file))
            if len(files) > MOST_FILES:
                raise FilesError(
                    f"The run names more than {MOST_FILES} files, which is too many to copy.",
                    hint="Name smaller directories, or let the hosts share them.",
                )
    except OSError as broken:
        return Listed(problem=f"{broken.filename} cannot be read: {broken.strerror}.")
    except FilesError as many:
        return Listed(problem=str(many))
    return Listed(text, files, executable)


def place_here(path: str, run_dir_there: Path, run_dir: Path) -> Path:
    """The path on this host of a file of the other host."""
    clean = Path(os.path.normpath(path))
    if clean.is_relative_to(run_dir_there):
        return run_dir / clean.relative_to(run_dir_there)
    return run_dir / COPIED / clean.relative_to("/")


def config_here(text: str, run_dir: Path) -> tuple[Path, bytes]:
    """The run's directory on the other host, and the configuration with the paths of this host. Makes the working
    directories of tool servers."""
    plain = json.loads(text)
    there = Path(plain["dir"])

    def move(section: dict[str, Any], *keys: str) -> None:
        for key in keys:
            match section.get(key):
                case str(path) if path.startswith("/"):
                    section[key] = str(place_here(path, there, run_dir))
                case [*paths]:
                    section[key] = [str(place_here(one, there, run_dir)) if one[:1] == "/" else one for one in paths]

    for environment in plain.get("environments", {}).values():
        move(environment, "code", "dataset", "evaluation")
    for server in plain.get("tools", {}).values():
        cwd = server.get("cwd", "")
        inside = [cwd.startswith("/") and Path(word).is_relative_to(cwd) for word in server.get("command", ())]
        words = [
            str(place_here(word, there, run_dir)) if own else word
            for word, own in zip(server.get("command", ()), inside, strict=True)
        ]
        move(server, "cwd", "functions", "corpus", "workspace")
        server |= {"command": words} if words else {}
        for folder in filter(None, (server.get("cwd"), server.get("workspace"))):
            if folder.startswith("/"):
                Path(folder).mkdir(parents=True, exist_ok=True)
    move(plain.get("rollout", {}), "code")
    move(plain.get("model") or {}, "path")
    training = plain.get("training", {})
    move(training, "demonstrations")
    move(training.get("warmup", {}), "dataset")
    plain["dir"] = str(run_dir)
    return there, json.dumps(plain, indent=1, sort_keys=True).encode()


def _files_of(config: RunConfig, run_dir: Path, role: str) -> Iterator[Path]:
    match role:
        case "sampler":
            yield from map(Path, config.rollout.code)
            yield from (Path(environment.code) for environment in config.environments.values() if environment.is_apart)
            yield from _datasets(config)
        case "toolbox":
            yield from _below(run_dir / PINS, run_dir)
            for server in config.tools.values():
                if not server.address:
                    yield from _files_of_server(server, run_dir)
        case "trainer":
            yield from _datasets(config)
            for path in (config.training.warmup.dataset, config.training.demonstrations):
                yield from _below(Path(path), run_dir) if path else ()
            if config.model is not None and config.model.path:
                yield from _below(Path(config.model.path), run_dir)


def _datasets(config: RunConfig) -> Iterator[Path]:
    for environment in config.environments.values():
        for path in filter(None, (environment.dataset, environment.evaluation)):
            if Path(path).is_file():
                yield Path(path)


def _files_of_server(server: ToolServer, run_dir: Path) -> Iterator[Path]:
    if server.functions:
        yield Path(server.functions)
    for path in filter(None, (*server.corpus, server.workspace)):
        yield from _below(Path(path), run_dir)
    cwd = Path(server.cwd)
    if server.cwd and not server.cwd.startswith("{"):
        yield from (file for file in _below(cwd, run_dir) if file.suffix in SCRIPTS)
        for word in _words(server):
            yield from _below(cwd / word, run_dir)


def _words(server: ToolServer) -> list[str]:
    """Arguments that name files or directories of the project, not of the machine."""
    cwd = Path(server.cwd or "/")
    return [word for word in server.command[1:] if (cwd / word).exists() and (cwd / word).is_relative_to(cwd)]


def _below(path: Path, run_dir: Path) -> Iterator[Path]:
    """The file itself, or the files of a directory, without hidden ones, virtual environments and the run's own
    directory."""
    if path.is_file():
        yield path
    for folder, names, files in os.walk(path):
        here = Path(folder)
        names[:] = [name for name in names if _is_entered(here / name, run_dir)]
        yield from (here / file for file in files if not file.startswith(".") and (here / file).is_file())


def _is_entered(folder: Path, run_dir: Path) -> bool:
    if folder.name.startswith(".") or folder.name in _NOT_ENTERED or (folder / "pyvenv.cfg").exists():
        return False
    is_copy = folder.name == COPIED and (folder.parent / IN_FORCE).exists()
    return not is_copy and folder != run_dir and not (folder / MARKER).exists()

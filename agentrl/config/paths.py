"""Finds and creates the directories of a run on this host, and lists the runs.

Invariants:
- The name of a run gives exactly one state directory and one uuid, also under concurrent creation.
- `run.json` is written whole, under a lock. Only the identity of the database is added later, once.
- The module imports nothing heavy, because every quick command loads it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agentrl.errors import ConfigError, ConflictError, DiskError

RUN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
RUN_NAME_RULE = "a name of 1 to 40 small letters, digits and dashes that does not begin with a dash"
RUN_FILE = "run.json"
LAST_UP = "last_up.json"
"""The run file and the settings of the last `up`."""
PINS = "tools"
"""The directory of pins of tool servers, in the run directory. `up` writes it and toolboxes read it."""
MADE = ("checkpoints", "dumps", "logs", "reference", "stacks", "supervised", "tensorboard", "wandb", "weights")
"""Directories of the run's directory that a run makes."""
IN_FORCE = "config.json"
"""The configuration in force, in the run directory. The coordinator writes it and units read it."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """The content of `run.json`: the identity of a run."""

    name: str
    uuid: str
    run_dir: str
    created_at: float
    database: str = ""
    """The identity of the embedded database, once its server was writable. Without that data nothing is served."""
    broken: str = ""
    """The reason why the file could not be read; the other fields are then empty."""


def is_run_name(name: str) -> bool:
    return RUN_NAME.fullmatch(name) is not None


def home(environ: Mapping[str, str] | None = None) -> Path:
    """The directory of the state of all runs of this user: `$AGENTRL_HOME`, else below `$XDG_STATE_HOME`."""
    env = os.environ if environ is None else environ
    if given := env.get("AGENTRL_HOME"):
        return Path(given).expanduser().absolute()
    base = env.get("XDG_STATE_HOME")
    # The specification says that a relative XDG path is to be ignored.
    if base and Path(base).is_absolute():
        return Path(base) / "agentrl"
    return Path("~/.local/state/agentrl").expanduser()


def cache(environ: Mapping[str, str] | None = None) -> Path:
    """The directory for files that can be made again: `$AGENTRL_CACHE`, else below `$XDG_CACHE_HOME`."""
    env = os.environ if environ is None else environ
    if given := env.get("AGENTRL_CACHE"):
        return Path(given).expanduser().absolute()
    base = env.get("XDG_CACHE_HOME")
    return Path(base) / "agentrl" if base and Path(base).is_absolute() else Path("~/.cache/agentrl").expanduser()


def state_dir(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """The state directory of a run, which need not exist. Raises ConfigError if the name cannot be one of a run."""
    if not is_run_name(name):
        raise ConfigError(f"{name!r} is no name of a run: it must be {RUN_NAME_RULE}.")
    return home(environ) / name


def read_run(state: Path) -> RunFile | None:
    """The run of a state directory, or None. Raises ConfigError if its file is damaged."""
    path = state / RUN_FILE
    try:
        plain = json.loads(path.read_bytes())
        return RunFile(
            name=str(plain["name"]),
            uuid=str(uuid.UUID(plain["uuid"])),
            run_dir=str(plain["run_dir"]),
            created_at=float(plain["created_at"]),
            database=str(plain.get("database", "")),
        )
    except FileNotFoundError:
        return None
    except OSError as broken:
        raise ConfigError(f"{path} cannot be read: {broken.strerror}.") from broken
    except (ValueError, KeyError, TypeError) as broken:
        raise ConfigError(
            f"{path} is damaged.",
            hint=f"Move {state} away if nothing of the run is needed; `agentrl up` makes a new one.",
        ) from broken


def make_run_dir(run_dir: Path) -> None:
    """Create the directory for logs and results. Raises DiskError if it cannot be created or written."""
    hint = "Set `dir` in the run file to a directory of yours."
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as broken:
        raise DiskError(f"The run's directory {run_dir} cannot be made: {broken.strerror}.", hint=hint) from broken
    if not os.access(run_dir, os.W_OK | os.X_OK):
        raise DiskError(f"The run's directory {run_dir} may not be written.", hint=hint)


def create_run(name: str, run_dir: Path, *, elsewhere: Path | None = None) -> RunFile:
    """The run of this name, created if it does not exist. Concurrent callers get the same run.

    `elsewhere` is a state directory outside of `home`. A link in `home` points to it, so that the name finds it later.
    Raises ConflictError if the run exists with other directories.
    """
    make_run_dir(run_dir)
    usual = state_dir(name)
    try:
        _make_private(usual.parent)
        with _locked(usual.parent):
            state = _place(usual, elsewhere)
            found = read_run(state)
            if found is None:
                found = RunFile(name, str(uuid.uuid4()), str(run_dir), time.time())
                _write(state / RUN_FILE, found)
    except OSError as broken:
        raise DiskError(f"The state directory {usual} cannot be made: {broken.strerror}.") from broken
    if found.run_dir != str(run_dir):
        raise ConflictError(
            f"The run {name} exists already with the directory {found.run_dir}, not {run_dir}.",
            hint="Give this one another name, or set `dir` to that directory.",
        )
    return found


def record_database(state: Path, identity: str) -> None:
    """Add the identity of the embedded database to `run.json`. Raises ConflictError if it has another one."""
    with _locked(state):
        found = read_run(state)
        if found is None:
            raise ConfigError(f"{state} has no {RUN_FILE}.")
        if found.database and found.database != identity:
            raise ConflictError(f"The run {found.name} has the database {found.database}, not {identity}.")
        if not found.database:
            _write(state / RUN_FILE, replace(found, database=identity))


def restore_run(state: Path, run: RunFile) -> None:
    """Write the removed `run.json` of a run again."""
    with _locked(state):
        if read_run(state) is None:
            _write(state / RUN_FILE, run)


def list_runs(environ: Mapping[str, str] | None = None) -> list[RunFile]:
    """All runs of this user on this host, by name. A run with a damaged file is in the list as `broken`.

    Raises ConfigError if the directory of the runs cannot be read.
    """
    try:
        names = sorted(entry.name for entry in home(environ).iterdir() if is_run_name(entry.name) and entry.is_dir())
    except FileNotFoundError:
        return []
    except OSError as unreadable:
        raise ConfigError(
            f"The directory of the runs, {home(environ)}, cannot be read: {unreadable.strerror}.",
            hint="Make it readable, or set AGENTRL_HOME.",
        ) from unreadable
    found = (_read_or_broken(name, home(environ) / name) for name in names)
    return [run for run in found if run is not None]


def _read_or_broken(name: str, state: Path) -> RunFile | None:
    try:
        return read_run(state)
    except ConfigError as broken:
        return RunFile(name, "", "", 0.0, broken=broken.message)


def _place(usual: Path, elsewhere: Path | None) -> Path:
    if elsewhere is None or elsewhere == usual:
        _keep_private(usual)
        return usual
    _keep_private(elsewhere)
    if usual.is_symlink() and usual.resolve() == elsewhere.resolve():
        return usual
    if usual.exists() or usual.is_symlink():
        raise ConflictError(
            f"The state of the run {usual.name} is in {usual.resolve()}, not in {elsewhere}.",
            hint="Leave coordinator.state_dir as it was, or give the run another name.",
        )
    usual.symlink_to(elsewhere, target_is_directory=True)
    return usual


def _make_private(path: Path) -> None:
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _keep_private(state: Path) -> None:
    """Make a state directory that only its user can open, because journal and keys hold the secrets of the run.

    Raises ConfigError if it belongs to another user, or if others can open it and it holds something else than a run.
    """
    _make_private(state)
    status = state.stat()
    if status.st_uid != os.geteuid():
        if status.st_uid == 0:
            return  # a volume that was mounted for this user
        raise ConfigError(
            f"The state directory {state} belongs to another user (uid {status.st_uid}).",
            hint="Name a directory of yours: AGENTRL_HOME, or coordinator.state_dir in the run file.",
        )
    if not status.st_mode & 0o077:
        return
    if not (state / RUN_FILE).exists() and any(state.iterdir()):
        raise ConfigError(
            f"Other users can open {state}, and it holds files that are not those of a run.",
            hint=f"Name another directory as coordinator.state_dir, or `chmod 700 {state}`.",
        )
    state.chmod(0o700)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """The lock is on the directory itself: no lock file is left behind, and the kernel drops it with its holder."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, run: RunFile) -> None:
    plain = asdict(run)
    del plain["broken"]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(plain, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

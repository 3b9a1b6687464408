"""Finds the files that a sandboxed tool server needs to start, and those that it must never see.

Invariants:
- A server sees no home directory, state directory, socket directory or run directory as a whole.
- A path that the operator names (in the command, `read` or `write`) is visible, except the state of runs.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import agentrl
from agentrl.config.paths import home
from agentrl.errors import ConfigError
from agentrl.toolbox.launch_environment import Launch

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = (
    *("alternatives", "ca-certificates", "crypto-policies", "fonts", "group", "host.conf", "hosts", "ld.so.cache"),
    *("ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "os-release", "passwd", "pki"),
    *("protocols", "resolv.conf", "services", "ssl", "timezone"),
)
"""Files of /etc without secrets that programs expect."""
_SHARED = (
    "/",
    "/dev",
    "/etc",
    "/home",
    "/mnt",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
)
"""Directories of which only parts may be visible."""
_LONGEST_FIRST_LINE = 512


@dataclass(frozen=True, slots=True)
class Visible:
    """What a server sees of the file system, in the order in which it is mounted."""

    found: tuple[Path, ...] = ()
    """Read-only: what its program needs."""
    covered: tuple[Path, ...] = ()
    """Directories and files below the found ones that appear empty."""
    read: tuple[Path, ...] = ()
    """Read-only: what the operator named."""
    write: tuple[Path, ...] = ()
    covered_always: tuple[Path, ...] = ()
    """The state of runs, which appears empty also below a named directory."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """What no server may see."""

    state: tuple[Path, ...]
    """State directories and sockets: not even if they are named."""
    others: tuple[Path, ...] = field(default=())
    """The run directory and files with secrets: only if they are named."""

    @staticmethod
    def of_this_host(environ: Mapping[str, str], run_dir: Path, files: Iterable[Path] = ()) -> Secrets:
        runtime = environ.get("XDG_RUNTIME_DIR")
        state = [home(environ), Path(f"/run/user/{os.getuid()}"), Path(tempfile.gettempdir(), f"agentrl-{os.getuid()}")]
        state += [Path(f"/tmp/agentrl-{os.getuid()}")]
        state += [Path(place) for place in (environ.get("AGENTRL_STATE_DIR"), runtime) if place]
        runs = run_dir.parent if run_dir.parent.name == "runs" else run_dir
        return Secrets(tuple(dict.fromkeys(path.resolve() for path in state)), (runs.resolve(), *files))


def visible_files(launch: Launch, *, read: Sequence[Path], write: Sequence[Path], secrets: Secrets) -> Visible:
    """What the server of this start sees. Raises ConfigError if a named path cannot be shown."""
    cwd, env = launch.cwd, launch.env
    for path in (*read, *write):
        _refuse_if_impossible(path, secrets)
    found = [*_python_environment(), *_of_program(Path(launch.program))]
    found += [Path(env[name]) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in env]
    named: list[Path] = []
    for word in launch.command[1:]:
        path = cwd / word
        if word.startswith("-") or not path.exists():
            continue
        (named if path.is_absolute() and Path(word).is_absolute() else found).append(_with_neighbours(path))
    if not _within(cwd.resolve(), (*secrets.state, *secrets.others)):
        found.append(cwd)
    found = [path for path in dict.fromkeys(found) if path.exists() and not _is_shared(path) and not _in_system(path)]
    named = [path for path in named if not _is_shared(path) and not _within(path.resolve(), secrets.state)]
    return Visible(
        found=_outermost(found),
        covered=_below((*secrets.state, *secrets.others), found),
        read=tuple(dict.fromkeys((*named, *read))),
        write=tuple(write),
        covered_always=_below(secrets.state, (*named, *read, *write)),
    )


def _below(secret: Sequence[Path], visible: Sequence[Path]) -> tuple[Path, ...]:
    """The outermost secret places that exist in visible ones."""
    shown = [path.resolve() for path in visible]
    return _outermost([path for path in secret if path.exists() and _within(path, shown)])


def _refuse_if_impossible(path: Path, secrets: Secrets) -> None:
    if not path.exists():
        raise ConfigError(f"The sandbox cannot show {path}: it does not exist.")
    if _within(path.resolve(), secrets.state):
        raise ConfigError(f"The sandbox does not show {path}: it belongs to the state of a run.")


def _with_neighbours(path: Path) -> Path:
    """A script is shown with its directory, because it imports files beside it; other files alone."""
    if path.is_dir() or path.suffix not in (".py", ".js", ".mjs", ".cjs", ".sh", ".rb"):
        return path
    place = path.parent
    if "node_modules" in place.parts:
        place = Path(*place.parts[: place.parts.index("node_modules")])
    return path if _is_shared(place) else place


def _of_program(program: Path) -> Iterator[Path]:
    """The directories of a program: its prefix, if it is in the `bin` of one."""
    for each in dict.fromkeys((program, program.resolve())):
        prefix = each.parent.parent
        own = each.parent.name == "bin" and not _is_shared(prefix) and prefix.name != ".local"
        yield prefix if own else each.parent if each.parent.name == "bin" else each
        if (settings := prefix / "pyvenv.cfg").is_file():
            yield from _base_of(settings)
    interpreter = _interpreter_of(program)
    if interpreter is not None:
        yield from _of_program(interpreter)


def _interpreter_of(script: Path) -> Path | None:
    """The program that the first line of a script names."""
    try:
        with script.open("rb") as file:
            line = file.readline(_LONGEST_FIRST_LINE)
    except OSError:
        return None
    words = line.removeprefix(b"#!").split() if line.startswith(b"#!") else []
    found = Path(os.fsdecode(words[0])) if words else None
    return found if found is not None and found.is_absolute() and found != script else None


def _base_of(settings: Path) -> Iterator[Path]:
    """The installation on which a virtual environment is based."""
    for line in settings.read_text(errors="replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "home" and value.strip():
            yield Path(value.strip()).parent
            yield Path(value.strip()).resolve().parent


@cache
def _python_environment() -> tuple[Path, ...]:
    """The Python that runs here, with its packages, also those that are installed as links to a checkout."""
    packages = Path(sysconfig.get_path("purelib"))
    found = [Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)).parent.parent, packages]
    own = Path(agentrl.__file__).parent
    found += [own, own.parent / "assets"]
    for links in packages.glob("*.pth"):
        lines = links.read_text(errors="replace").splitlines()
        found += [Path(line) for line in lines if line.startswith("/") and Path(line) != own.parent]
    return tuple(path for path in found if path.is_dir())


def _is_shared(path: Path) -> bool:
    """Whether this directory has more in it than one program's files."""
    resolved = path.resolve()
    homes = Path.home().resolve()
    return str(resolved) in _SHARED or resolved == homes or resolved in homes.parents


def _in_system(path: Path) -> bool:
    return any(path.is_relative_to(place) for place in SYSTEM)


def _within(path: Path, places: Iterable[Path]) -> bool:
    return any(path.is_relative_to(place) for place in places)


def _outermost(paths: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(path for path in paths if not any(path != other and path.is_relative_to(other) for other in paths))

"""Finds the files that a sandboxed tool server needs to start, and those that it must never see.

Invariants:
- A server sees no home directory, state directory, socket directory or run directory as a whole.
- A path that the operator names (in the command, `read` or `write`) is visible, except the state of runs.
- The deepest rule decides: a named directory shows the run directory in it only if that is named as well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import agentrl
from agentrl.config.paths import home
from agentrl.errors import ConfigError
from agentrl.files.named_files import COPIED
from agentrl.sandboxes.launch_environment import CERTIFICATES, Launch

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
_STORES = ("/nix/store", "/gnu/store")
"""Directories whose programs link to other files in them; all users may read them."""
_LONGEST_FIRST_LINE = 512


@dataclass(frozen=True, slots=True)
class Rule:
    """What a server may do with a path. The rule of a deeper path replaces the rule of its directory."""

    path: Path
    access: Literal["read", "write", "nothing"]
    """`nothing`: the path appears empty."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """What no server may see."""

    state: tuple[Path, ...]
    """State directories and sockets, hidden even if they are named."""
    others: tuple[Path, ...] = field(default=())
    """The run directory and files with secrets, visible only if they are named."""
    copied: tuple[Path, ...] = field(default=())
    """Within the run directory: the project of the run file, on a host that does not share it."""

    def hide(self, place: Path) -> bool:
        """Whether the directory must not be shown just because it is the working directory or contains the script."""
        return _within(place, self.state) or (_within(place, self.others) and not _within(place, self.copied))

    @staticmethod
    def of_this_host(environ: Mapping[str, str], run_dir: Path, files: Iterable[Path] = ()) -> Secrets:
        runtime = environ.get("XDG_RUNTIME_DIR")
        state = [home(environ), Path(f"/run/user/{os.getuid()}"), Path(tempfile.gettempdir(), f"agentrl-{os.getuid()}")]
        state += [Path(f"/tmp/agentrl-{os.getuid()}")]
        state += [Path(place) for place in (environ.get("AGENTRL_STATE_DIR"), runtime) if place]
        with contextlib.suppress(OSError):
            # The state of a run may be elsewhere, behind a link.
            state += [entry for entry in home(environ).iterdir() if entry.is_symlink()]
        runs = run_dir.parent if run_dir.parent.name == "runs" else run_dir
        copied = (run_dir / COPIED).resolve()
        return Secrets(tuple(dict.fromkeys(path.resolve() for path in state)), (runs.resolve(), *files), (copied,))


def visible_files(launch: Launch, *, read: Sequence[Path], write: Sequence[Path], secrets: Secrets) -> tuple[Rule, ...]:
    """What the server of this start sees, in the order in which it is mounted.

    Raises ConfigError if a named path cannot be shown.
    """
    cwd, env = launch.cwd, launch.env
    for path in (*read, *write):
        _refuse_if_impossible(path, secrets)
    _refuse_shim(Path(launch.program))
    search = env.get("PATH", os.defpath)
    programs = (Path(launch.program), *launch.interpreters)
    needed = [*_python_environment(), *(path for program in programs for path in _of_program(program, search))]
    needed += [Path(env[name]) for name in CERTIFICATES if name in env]
    if not secrets.hide(cwd.resolve()):
        needed.append(cwd)
    words = [os.path.normpath(cwd / word) for word in launch.command[1:] if not word.startswith("-")]
    # `Path.exists` fails if the word is a long text, such as the program after `-c`.
    scripts = [_with_neighbours(Path(word), secrets) for word in words if os.path.exists(word)]
    found, named = (
        [path for path in _with_targets(paths) if path.exists() and not _is_shared(path) and not _in_system(path)]
        for paths in (needed, scripts)
    )
    # A file that the command names may be one that the server writes.
    elsewhere = (*secrets.state, *(path.resolve() for path in write))
    named = [path for path in named if not _within(path.resolve(), elsewhere)]
    read, write = _with_targets(read), _with_targets(write)
    targets = {path: path.resolve() for path in (*found, *named, *read, *write)}
    shown = {path: target for path, target in targets.items() if not _behind_a_link(path, targets)}
    rules = [
        *(Rule(path, "read") for path in found if path in shown),
        *(Rule(path, "nothing") for path in _below(secrets.others, shown)),
        *(Rule(path, "read") for path in (*named, *read) if path in shown),
        *(Rule(path, "write") for path in write if path in shown),
        *(Rule(path, "nothing") for path in _below(secrets.state, shown)),
    ]
    # Of several rules for one path the last decides.
    last = {rule.path: rule for rule in rules}
    return tuple(sorted(last.values(), key=lambda rule: len(rule.path.parts)))


def search_path(path: str, rules: Sequence[Rule]) -> str:
    """The entries of a PATH that a server with these rules sees. Other entries would only reveal facts about the
    host."""
    seen = [place for place in path.split(":") if place.startswith("/") and _is_visible(Path(place), rules)]
    return ":".join(seen) or os.defpath


def _is_visible(place: Path, rules: Sequence[Rule]) -> bool:
    if _in_system(place):
        return True
    # The rule of the deepest directory decides.
    above = [rule for rule in rules if place.is_relative_to(rule.path)]
    return bool(above) and above[-1].access != "nothing"


def _with_targets(paths: Iterable[Path]) -> list[Path]:
    """The paths, and the targets of their links, because a link may lead out of a visible directory."""
    return list(dict.fromkeys(each for path in paths for each in (path, path.resolve())))


def _behind_a_link(path: Path, targets: Mapping[Path, Path]) -> bool:
    """Whether a visible directory contains a link on the way to this path, where nothing can be mounted."""
    return any(
        path.is_relative_to(other) and path != other and targets[path] != target / path.relative_to(other)
        for other, target in targets.items()
    )


def _below(secret: Sequence[Path], visible: Mapping[Path, Path]) -> tuple[Path, ...]:
    """Where existing secret paths appear in visible directories, which may be reached by links."""
    inside = (
        path / place.relative_to(target)
        for path, target in visible.items()
        for place in secret
        if place.is_relative_to(target) and place.exists()
    )
    return tuple(dict.fromkeys(inside))


def _refuse_if_impossible(path: Path, secrets: Secrets) -> None:
    if not path.exists():
        raise ConfigError(f"The sandbox cannot show {path}: it does not exist.")
    if _within(path.resolve(), secrets.state):
        raise ConfigError(f"The sandbox does not show {path}: it belongs to the state of a run.")


def _refuse_shim(program: Path) -> None:
    """A shim of pyenv, asdf, mise or rbenv looks for the version in the home directory."""
    if program.parent.name == "shims":
        raise ConfigError(
            f"{program} is a shim, which finds no program in a sandbox.",
            hint=f"Name the program itself; `pyenv which {program.name}` or its like shows the path.",
        )


def _with_neighbours(path: Path, secrets: Secrets) -> Path:
    """A script is shown with its directory, because it imports files beside it. Other files, and scripts in the run
    directory, are shown alone.
    """
    if path.is_dir() or path.suffix not in (".py", ".js", ".mjs", ".cjs", ".sh", ".rb"):
        return path
    place = path.parent
    if "node_modules" in place.parts:
        place = Path(*place.parts[: place.parts.index("node_modules")])
    hidden = _within(place.resolve(), secrets.others) and secrets.hide(place.resolve())
    return path if _is_shared(place) or hidden else place


def _of_program(program: Path, search: str) -> Iterator[Path]:
    """The directories of a program: its prefix, if the program is in the `bin` of a prefix. `search` is its PATH."""
    for each in dict.fromkeys((program, program.resolve())):
        prefix = each.parent.parent
        yield from _of_prefix(prefix) if each.parent.name == "bin" else (each,)
        yield from (Path(store) for store in _STORES if each.is_relative_to(store))
        if (settings := prefix / "pyvenv.cfg").is_file():
            yield from _base_of(settings)
    interpreter = _interpreter_of(program, search)
    if interpreter is not None:
        yield from _of_program(interpreter, search)


def _of_prefix(prefix: Path) -> list[Path]:
    """The prefix. If it contains more than programs, such as ~/.local, only the programs and their libraries."""
    if _is_shared(prefix):
        return [prefix / "bin"]
    return [prefix / name for name in ("bin", "lib", "lib64")] if prefix.name == ".local" else [prefix]


def _interpreter_of(script: Path, search: str) -> Path | None:
    """The program that the first line of a script names, also by `env`."""
    try:
        with script.open("rb") as file:
            line = file.readline(_LONGEST_FIRST_LINE)
    except OSError:
        return None
    words = line.removeprefix(b"#!").split() if line.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == b"env":
        named = next((word for word in words[1:] if not word.startswith(b"-") and b"=" not in word), b"")
        words = [os.fsencode(shutil.which(os.fsdecode(named), path=search) or "")]
    found = Path(os.fsdecode(words[0])) if words and words[0] else None
    return found if found is not None and found.is_absolute() and found != script else None


def _base_of(settings: Path) -> Iterator[Path]:
    """The installation on which a virtual environment is based."""
    for line in settings.read_text(errors="replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "home" and value.strip():
            yield from _of_prefix(Path(value.strip()).parent)
            yield from _of_prefix(Path(value.strip()).resolve().parent)


@cache
def _python_environment() -> tuple[Path, ...]:
    """The Python that runs here, with its packages, including packages that are links to a checkout."""
    packages = Path(sysconfig.get_path("purelib"))
    prefixes = (Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)).parent.parent)
    found = [*(path for prefix in prefixes for path in _of_prefix(prefix)), packages]
    own = Path(agentrl.__file__).parent
    found += [own, own.parent / "assets"]
    for links in packages.glob("*.pth"):
        lines = links.read_text(errors="replace").splitlines()
        found += [Path(line) for line in lines if line.startswith("/") and Path(line) != own.parent]
    return tuple(path for path in found if path.is_dir())


def _is_shared(path: Path) -> bool:
    """Whether this directory contains more than the files of one program."""
    resolved = path.resolve()
    homes = Path.home().resolve()
    return str(resolved) in _SHARED or resolved == homes or resolved in homes.parents


def _in_system(path: Path) -> bool:
    return any(path.is_relative_to(place) for place in SYSTEM)


def _within(path: Path, places: Iterable[Path]) -> bool:
    return any(path.is_relative_to(place) for place in places)

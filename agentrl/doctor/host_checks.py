"""Checks of this host, whatever runs on it: the interpreter, limits, disks, processes, clocks, programs, terminal."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from agentrl.config import installed_packages
from agentrl.control.persistence.state_lock import refuse_network_file_system
from agentrl.doctor.check import Check, Verdict
from agentrl.errors import AgentrlError, ConfigError
from agentrl.formatting.amounts import size
from agentrl.store.mongod_binary import find_mongod, mongod_version
from agentrl.transport.addresses import IPC_PATH_MAX_BYTES, hub_address

PYTHON_AT_LEAST = (3, 11)
FILES_AT_LEAST = 256
FILES_COMFORTABLE = 4096
DISK_AT_LEAST_BYTES = 256 << 20
DISK_COMFORTABLE_BYTES = 5 << 30
CLOCK_WATCHED_S = 0.1
CLOCK_STEP_S = 0.02


def check_python(version: tuple[int, ...]) -> Check:
    found, least = (".".join(map(str, each)) for each in (version, PYTHON_AT_LEAST))
    if version < PYTHON_AT_LEAST:
        return Check("python", "fail", f"Python {found} is too old.", f"Use Python {least} or newer.")
    return Check("python", "ok", f"Python {found}.")


def check_packages(version: str, installed: Mapping[str, tuple[str, Sequence[str]]]) -> Check:
    """`installed`: name -> version and requirements, of agentrl and its dependencies; no version: missing."""
    if "agentrl" not in installed:
        sentence = f"agentrl {version} runs from a directory; the versions of its dependencies are not checked."
        return Check("packages", "warn", sentence, "Install it: `pip install -e .` in the checkout.")
    own, requirements = installed["agentrl"]
    wrong = [] if own == version else [f"agentrl is {version} here, but {own} is installed"]
    for requirement in requirements:
        name, _, condition = installed_packages.requirement_of(requirement)
        found = installed.get(name, ("", ()))[0]
        if not found:
            wrong.append(f"{name} is missing")
        elif not installed_packages.satisfies(found, condition):
            wrong.append(f"{name} is {found}, wanted {condition}")
    if wrong:
        return Check("packages", "fail", f"{'; '.join(wrong)}.", "Install again: `pip install -U agentrl`.")
    return Check("packages", "ok", f"agentrl {version} and {len(requirements)} dependencies agree.")


def check_open_files(soft: int, hard: int) -> Check:
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= FILES_COMFORTABLE:
        return Check("open files", "ok", f"{'Any number of' if soft == unlimited else soft} files may be open.")
    reachable = FILES_COMFORTABLE if hard == unlimited else min(hard, FILES_COMFORTABLE)
    hint = f"`ulimit -n {reachable}` before `agentrl up`."
    sentence = f"Only {soft} files may be open; each unit needs a few."
    return Check("open files", "warn" if soft >= FILES_AT_LEAST else "fail", sentence, hint)


def check_state_dir(directory: Path) -> Check:
    existing = _existing(directory)
    try:
        refuse_network_file_system(existing)
        with tempfile.TemporaryFile(dir=existing):
            pass
    except ConfigError as remote:
        return Check("state directory", "fail", remote.message, remote.hint)
    except OSError as refused:
        sentence = f"{directory} cannot be written: {refused.strerror}."
        return Check("state directory", "fail", sentence, "Set AGENTRL_HOME to a directory of yours on a local disk.")
    return Check("state directory", "ok", f"{directory} is on a local disk and can be written.")


def check_disk(directory: Path) -> Check:
    free = shutil.disk_usage(_existing(directory)).free
    sentence = f"{size(free)} are free for {directory}."
    if free >= DISK_COMFORTABLE_BYTES:
        return Check("disk", "ok", sentence)
    verdict: Verdict = "warn" if free >= DISK_AT_LEAST_BYTES else "fail"
    return Check("disk", verdict, sentence, "Free some space, or set AGENTRL_HOME to a larger disk.")


def check_sockets() -> Check:
    """The directory of local sockets, with the path length that the system allows."""
    try:
        path = Path(hub_address(uuid.uuid4().hex).removeprefix("ipc://"))
    except AgentrlError as refused:
        return Check("sockets", "fail", refused.message, refused.hint)
    with suppress(OSError):
        path.parent.rmdir()
    length = len(os.fsencode(path))
    return Check(
        "sockets", "ok", f"Socket paths below {path.parent.parent} have {length} of {IPC_PATH_MAX_BYTES} bytes."
    )


def check_processes(proc: Path = Path("/proc")) -> Check:
    """Whether processes can be found by their mark and watched by pidfd."""
    try:
        own = (proc / "self" / "environ").read_bytes() is not None and (proc / "self" / "stat").exists()
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as refused:
        sentence = f"Processes cannot be watched here: {refused}."
        return Check("processes", "fail", sentence, "Linux 5.3 or newer with /proc mounted is needed.")
    if not own:
        return Check("processes", "fail", "/proc is not complete.", "Mount /proc.")
    if not (proc / "1" / "stat").exists():
        sentence = "/proc hides the processes of others; the proof of `down` covers your own."
        return Check("processes", "warn", sentence, "Mount /proc without hidepid if others' processes belong to runs.")
    return Check("processes", "ok", "Processes can be found by their mark and watched.")


def check_cgroups(*, usable: bool) -> Check:
    if usable:
        return Check("cgroups", "ok", "Every unit gets a cgroup, by which its process tree is found and killed.")
    return Check(
        "cgroups",
        "warn",
        "No cgroup can be made: process trees are found by a scan of /proc, memory limits are enforced by sampling.",
        "Start under `systemd-run --user --scope -p Delegate=yes` to have them.",
    )


def check_clock(wall: Callable[[], float], steady: Callable[[], float], sleep: Callable[[float], None]) -> Check:
    """Whether the monotonic clock and the wall clock agree. Supervision uses the first, people read the second."""
    before = wall() - steady()
    sleep(CLOCK_WATCHED_S)
    step = wall() - steady() - before
    built = Path(__file__).stat().st_mtime
    if wall() < built - 86_400:
        sentence = "The clock is behind: this program was installed in its future."
        return Check("clock", "warn", sentence, "Set the time; times in logs and alerts would be wrong.")
    if abs(step) > CLOCK_STEP_S:
        sentence = f"The wall clock moved by {step * 1000:+.0f} ms against the steady one."
        return Check("clock", "warn", sentence, "Let ntp or chrony slew it; supervision itself is not affected.")
    return Check("clock", "ok", "Wall clock and steady clock run alike.")


def check_mongod(*, needed: bool) -> Check:
    try:
        binary = find_mongod()
        return Check("mongod", "ok", f"mongod {mongod_version(binary)} runs: {binary}.")
    except ConfigError as missing:
        return Check("mongod", "fail" if needed else "warn", missing.message, missing.hint)


def check_gpu(tool: str | None) -> Check:
    if tool is None:
        return Check("gpu", "ok", "There is no nvidia-smi; this host counts as one without GPUs.")
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as broken:
        return Check("gpu", "warn", f"nvidia-smi does not answer: {broken}.", "Look at the driver.")
    if answer.returncode != 0:
        complaint = (answer.stderr or answer.stdout).strip().partition("\n")[0]
        return Check("gpu", "warn", f"nvidia-smi fails: {complaint}", "Look at the driver: `nvidia-smi`.")
    cards = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    return Check("gpu", "ok", f"{len(cards)} GPU{'s' if len(cards) != 1 else ''}: {'; '.join(cards)}.")


def check_terminal(is_terminal: bool, kind: str, encoding: str) -> Check:
    if "utf" not in encoding.lower():
        sentence = f"The encoding is {encoding}; other characters will be displayed wrongly."
        return Check("terminal", "warn", sentence, "`export LANG=C.UTF-8`.")
    if is_terminal and kind in ("", "dumb"):
        return Check("terminal", "warn", f"TERM is {kind!r}: no colours, no screen.", "`export TERM=xterm-256color`.")
    return Check("terminal", "ok", f"{kind if is_terminal else 'No terminal'}, {encoding}.")


def _existing(directory: Path) -> Path:
    """The directory itself or the nearest one above it that exists."""
    return next(each for each in (directory.absolute(), *directory.absolute().parents) if each.exists())

"""The lock of the state directory allows one coordinator, and the marker in the run directory names it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config.run_marker import FRESH_S, read_marker
from agentrl.control.persistence.state_lock import NETWORK_FILE_SYSTEMS, RunDirMarker, StateLock, file_system_of
from agentrl.errors import ConfigError, ConflictError

HOLD = """
import sys
from pathlib import Path
from agentrl.control.persistence.state_lock import StateLock
lock = StateLock.acquire(Path(sys.argv[1]), host="here", at=1.0)
print("held", flush=True)
sys.stdin.read()
"""


def hold(state_dir: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_second_coordinator_gets_the_name_of_the_holder(tmp_path: Path) -> None:
    child = hold(tmp_path)
    try:
        with pytest.raises(ConflictError, match=f"pid {child.pid} on host here"):
            StateLock.acquire(tmp_path, host="here", at=2.0)
    finally:
        child.communicate()


def test_kill_9_releases_the_lock(tmp_path: Path) -> None:
    child = hold(tmp_path)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    StateLock.acquire(tmp_path, host="here", at=2.0).release()


def test_child_of_the_holder_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = StateLock.acquire(tmp_path, host="here", at=1.0)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        lock.release()
        StateLock.acquire(tmp_path, host="here", at=2.0).release()
        assert child.poll() is None


def test_two_directories_are_two_locks(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = StateLock.acquire(tmp_path / "a", host="here", at=1.0)
    StateLock.acquire(tmp_path / "b", host="here", at=1.0).release()
    first.release()


MOUNTS = """\
21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
22 21 0:40 / /home rw shared:2 - nfs4 server:/home rw
23 22 0:41 / /home/ann/local\\040disk rw - xfs /dev/sdb1 rw
24 21 0:42 / /mnt rw - fuse.sshfs server:/mnt rw
25 24 0:43 / /mnt rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/home", "nfs4"),
        ("/home/ann/x", "nfs4"),
        ("/homes/ann", "ext4"),
        ("/home/ann/local disk/x", "xfs"),
        ("/mnt/x", "tmpfs"),
    ],
)
def test_file_system_of_a_path_is_found_in_mountinfo(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


def test_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = file_system_of(tmp_path.resolve(), Path("/proc/self/mountinfo").read_text())
    monkeypatch.setattr("agentrl.control.persistence.state_lock.NETWORK_FILE_SYSTEMS", NETWORK_FILE_SYSTEMS | {here})
    with pytest.raises(ConfigError, match=f"network file system \\({here}\\)"):
        StateLock.acquire(tmp_path, host="here", at=1.0)
    assert not (tmp_path / "lock").exists()


def marker(run_dir: Path, host: str = "far", boot: str = "boot-far", uuid: str = "uuid-1") -> RunDirMarker:
    return RunDirMarker(run_dir, host, boot, "my-run", uuid)


def test_unreadable_marker_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "coordinator.json").write_bytes(b"\xff{")
    assert read_marker(tmp_path) is None


def test_marker_that_cannot_be_written_gives_a_sentence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert "cannot be written" in marker(gone).refresh(1.0)
    marker(gone).remove()


def test_marker_of_another_coordinator_is_not_removed(tmp_path: Path) -> None:
    marker(tmp_path).refresh(1.0)
    with pytest.raises(ConflictError, match="my-run is up on host far"):
        marker(tmp_path, uuid="uuid-2").refresh(1.0 + FRESH_S)
    marker(tmp_path, uuid="uuid-2").remove()
    assert read_marker(tmp_path) is not None
    marker(tmp_path).remove()
    assert read_marker(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("aabb"))))
def test_of_two_coordinators_that_share_the_run_directory_one_goes_on(tmp_path: Path, order: tuple[str, ...]) -> None:
    """In any order of their turns, also if the clock of one is far behind, so that its marker looks old."""
    living = {name: marker(tmp_path, host=name, boot=f"boot-{name}") for name in ("a", "b")}
    at = {"a": 0.0, "b": 10 * FRESH_S}
    for name in (*order, "a", "b"):
        if name in living:
            try:
                living[name].refresh(at[name])
            except ConflictError:
                del living[name]
    (last,) = living
    found = read_marker(tmp_path)
    assert found is not None
    assert found.host == last

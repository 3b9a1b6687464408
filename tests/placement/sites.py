"""Where the contract of placements is tested: one Site for each backend, with two hosts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl import __version__
from agentrl.config.placement import Placement as Settings
from agentrl.errors import NotProvenError
from agentrl.host import procfs
from agentrl.placement import HostRequest, Invitation, PlacedRun, Placement
from agentrl.placement.agent_process import living_agent
from agentrl.placement.backends import open_placement
from agentrl.placement.notes import Notes
from agentrl.placement.ray_actors import RayNote
from agentrl.transport.curve_keys import new_keypair
from tests.placement.ray_cluster import RayCluster
from tests.placement.slurm_cluster import SlurmCluster
from tests.ports import free_port
from tests.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).parents[2]


class Site:
    """A backend with two hosts. A subclass says what is special about its machines."""

    hosts = ("h1", "h2")
    settings: dict[str, object]
    leave_within_s = 0.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = PlacedRun(str(uuid.uuid4()), "demo", str(folder / "state"))
        self._server = new_keypair()

    def open(self) -> Placement:
        """Open the placement like another process, which knows only its notes."""
        return open_placement(Settings.model_validate(self.settings), self.run)

    def wanted(self, host: str, version: str = __version__) -> HostRequest:
        pair = new_keypair()
        invitation = Invitation(
            host=host,
            run=self.run.uuid,
            version=version,
            state_dir=str(self.state_dir(host)),
            run_dir=str(self.folder / "run"),
            coordinator=f"tcp://127.0.0.1:{free_port()}",
            key_name=f"{host}-key",
            public=pair.public,
            secret=pair.secret,
            server_public=self._server.public,
            leave_within_s=self.leave_within_s,
        )
        return HostRequest(host, invitation, self.node(host))

    def node(self, host: str) -> str:
        return ""

    def state_dir(self, host: str) -> Path:
        return self.folder / "disks" / host

    def agents(self, host: str) -> list[int]:
        """The processes that are an agent of this host."""
        return [
            pid
            for pid in procfs.all_pids()
            if (marks := procfs.marks(pid) or {}).get(procfs.MARK_RUN) == self.run.uuid.encode()
            and marks.get(procfs.MARK_HOST) == host.encode()
            and b"daemons.host" in _command(pid)
        ]

    def kill_agent(self, host: str) -> None:
        # The step of a scheduler is alive a moment before the agent in it has written its file.
        known = eventually(lambda: living_agent(self.state_dir(host), host), what=f"the agent of {host}")
        os.kill(known.pid, signal.SIGKILL)
        eventually(lambda: not known.identity.alive(), what="its end")

    def take_away(self, host: str) -> None:
        """Make the machine of the host unreachable."""
        raise NotImplementedError

    def close(self) -> None:
        for host in self.hosts:
            for pid in self.agents(host):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class LocalSite(Site):
    settings: dict[str, object] = {}  # noqa: RUF012

    def take_away(self, host: str) -> None:
        self.kill_agent(host)


class SshSite(Site):
    """A real sshd for each host."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._keys = folder / "keys"
        self._keys.mkdir()
        for name in ("machine", "person"):
            make_ssh_key(self._keys / name)
        self._daemons = {host: Sshd(self._keys, folder / host, free_port()) for host in self.hosts}
        config = folder / "ssh_config"
        config.write_text("".join(self._entry(host) for host in self.hosts))
        self.ssh: dict[str, object] = {"identity": str(self._keys / "person"), "config": str(config)}
        self.settings = {"ssh": self.ssh}

    def _entry(self, host: str) -> str:
        lines = ("HostName 127.0.0.1", f"Port {self._daemons[host].port}", f"UserKnownHostsFile {self.folder}/known")
        return "\n  ".join((f"Host {host}", *lines, "StrictHostKeyChecking accept-new\n"))

    def take_away(self, host: str) -> None:
        self._daemons[host].close()

    def close(self) -> None:
        for daemon in self._daemons.values():
            daemon.close()
        super().close()


class SlurmSite(Site):
    """Nodes of a real Slurm; the job is submitted."""

    leave_within_s = 5.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cluster = SlurmCluster.shared()
        self.settings = {"slurm": {"drain_s": 0}}

    def take_away(self, host: str) -> None:
        self.cluster.free()

    def close(self) -> None:
        self.cluster.free()
        super().close()


class Sshd:
    """An OpenSSH server that admits the key `person`."""

    def __init__(
        self, keys: Path, folder: Path, port: int, *, address: str = "127.0.0.1", inside: tuple[str, ...] = ()
    ):
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            pytest.fail("This test needs sshd: `apt-get install openssh-server`.")
        folder.mkdir()
        self.port, self._log = port, folder / "log"
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # the directory in which sshd confines its unprivileged process
        (folder / "config").write_text(
            f"ListenAddress {address}:{port}\nHostKey {keys}/machine\nAuthorizedKeysFile {keys}/person.pub\n"
            f"PidFile {folder}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        )
        command = [*inside, program, "-D", "-e", "-f", str(folder / "config")]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        eventually(lambda: "Server listening" in self._log.read_text(), what=f"sshd at {port}")

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)


def make_ssh_key(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class RaySite(Site):
    """A real Ray cluster, which the tests share. Each host has a node for itself."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._cluster = RayCluster.shared()
        self.ray = {"address": self._cluster.address}
        self.settings = {"ray": self.ray}

    def wanted(self, host: str, version: str = __version__) -> HostRequest:
        self._cluster.mend()  # an earlier test may have left only one node, and a group that waits for another
        return super().wanted(host, version)

    def take_away(self, host: str) -> None:
        (note,) = [note for name, note in Notes(self.run.state_dir, "ray", RayNote).all().items() if name == host]
        self._cluster.kill_node(note.node)

    def close(self) -> None:
        super().close()
        with contextlib.suppress(NotProvenError):
            self.open().release(self.hosts)


SITES: dict[str, type[Site]] = {"local": LocalSite, "ssh": SshSite, "ray": RaySite, "slurm": SlurmSite}


@contextlib.contextmanager
def opened(kind: str, folder: Path) -> Iterator[Site]:
    (folder / "state").mkdir()
    site = SITES[kind](folder)
    try:
        yield site
    finally:
        site.close()

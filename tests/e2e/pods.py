"""Pods without Kubernetes: the containers of the manifests, each in namespaces of its own, as a kubelet would run them.

Command, arguments, environment, mounts and probes come from the rendered manifests, the environment of the image from
the Containerfile. Like a pod, each has a hostname, an address, process 1, a read-only root, a user that is not root and
no disk in common with the others. What is simulated: the image (this checkout), volumes (directories), service names
(/etc/hosts).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.e2e.networks import Network
from tests.e2e.running import PYTHON
from tests.waiting import PATIENCE_S, eventually

POLL_S = 0.3
"""Each poll of a pod runs a command in it, so polls are rare."""
CHECKOUT = Path(__file__).parents[2]
DEPLOY = CHECKOUT / "assets/deploy"
_FROM_THIS_MACHINE = (
    "passwd",
    "group",
    "nsswitch.conf",
    "ssl",
    "ld.so.cache",
    "alternatives",
    "localtime",
    "machine-id",
)


@cache
def rendered(overlay: str) -> tuple[dict[str, Any], ...]:
    """What `kubectl apply -k` would apply."""
    kubectl = Path(PYTHON).with_name("kubectl")
    command = [str(kubectl), "kustomize", str(DEPLOY / "kubernetes" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def find(overlay: str, kind: str, name: str) -> dict[str, Any]:
    return next(each for each in rendered(overlay) if (each["kind"], each["metadata"]["name"]) == (kind, name))


def image_environment() -> dict[str, str]:
    """The ENV of the image, with the programs of this checkout."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    found = dict(pair.split("=", 1) for pair in line.split())
    path = found["PATH"].replace("/opt/agentrl/bin", str(Path(PYTHON).parent)).replace("$PATH", os.defpath)
    return found | {"PATH": path}


class Pod:
    """One pod of a StatefulSet of the example. Its volumes outlive it."""

    def __init__(self, name: str, folder: Path, network: Network, files: dict[str, Path], etc_hosts: str) -> None:
        """`files`: directories of config maps and secrets, by the name of the volume."""
        self.name = name
        self.log = folder / f"{name}.log"
        self._network = network
        template = find("base", "StatefulSet", name.rpartition("-")[0])["spec"]["template"]["spec"]
        self.grace_s = template["terminationGracePeriodSeconds"]
        (self._container,) = template["containers"]
        self._volumes = {
            "state": folder / f"{name}-state",
            **{each["name"]: files.get(each["name"]) for each in template["volumes"]},
        }
        self._volumes["state"].mkdir(exist_ok=True)  # type: ignore[union-attr]
        self._hosts = folder / f"{name}-hosts"
        self._hosts.write_text(f"127.0.0.1 localhost\n{etc_hosts}")
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    @property
    def environment(self) -> dict[str, str]:
        found = image_environment()
        for each in self._container["env"]:
            # metadata.name is the only field that the manifests read.
            found[each["name"]] = each.get("value", self.name)
        return found

    def start(self) -> None:
        container = self._container
        words = [*container.get("command", ["agentrl"]), *container["args"]]
        command = [re.sub(r"\$\((\w+)\)", lambda found: self.environment[found[1]], word) for word in words]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._network.inside(self.name), *self._sandbox(), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.pid = eventually(self._first_process, what=f"process 1 of {self.name}")

    def _first_process(self) -> int:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        children = psutil.Process(self._process.pid).children()
        return next((child.pid for child in children if child.name() != "bwrap"), 0)

    def _sandbox(self) -> list[str]:
        security = self._container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        words = ["bwrap", "--unshare-user", "--uid", "10001", "--gid", "10001", "--unshare-pid", "--unshare-uts"]
        words += ["--unshare-ipc", "--as-pid-1", "--hostname", self.name, "--die-with-parent", "--clearenv"]
        words += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/var/lib", "--tmpfs", "/etc"]
        for name in _FROM_THIS_MACHINE:
            words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        words += ["--ro-bind", str(self._hosts), "/etc/hosts"]
        for mount in self._container["volumeMounts"]:
            source = self._volumes[mount["name"]]
            kind = "--ro-bind" if mount.get("readOnly") else "--bind"
            words += [kind, str(source), mount["mountPath"]] if source else ["--tmpfs", mount["mountPath"]]
        # The checkout, which stands for the image, must stay visible even if it lies below a volume such as /tmp.
        words += ["--ro-bind", str(CHECKOUT), str(CHECKOUT)]
        words += ["--remount-ro", "/var/lib", "--remount-ro", "/etc", "--chdir", "/var/lib/agentrl"]
        for name, value in self.environment.items():
            words += ["--setenv", name, value]
        return words

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """`kubectl exec`."""
        enter = ["nsenter", "--target", str(self.pid), "--user", "--mount", "--pid", "--net", "--uts", "--ipc"]
        program = shutil.which(command[0], path=self.environment["PATH"])
        assert program is not None
        return subprocess.run(
            [*enter, "--preserve-credentials", "--wdns=/var/lib/agentrl", program, *command[1:]],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def agentrl(self, *arguments: str) -> Any:
        done = self.run("agentrl", *arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return yaml.safe_load(done.stdout)

    def probe(self, kind: str) -> str:
        """What the kubelet shows of the probe: empty if it succeeds."""
        done = self.run(*self._container[f"{kind}Probe"]["exec"]["command"])
        assert "Traceback" not in done.stderr, done.stderr
        assert bool(done.returncode) == bool(done.stderr)
        return done.stderr

    def wait_ready(self) -> None:
        def ready() -> bool:
            why = self.probe("readiness")
            assert not why, f"{why}\n{self.log.read_text()}"
            return True

        eventually(ready, what=f"{self.name} to be ready", within_s=3 * PATIENCE_S, every_s=POLL_S)

    def evict(self) -> int:
        """SIGTERM to process 1, which then has the grace. Returns the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(min(self.grace_s, 3 * PATIENCE_S))

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()  # its processes die with process 1
            self._process.wait(PATIENCE_S)

"""Images, compose file, manifests and systemd units are what their tools accept, and agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import compose_spec
import kubernetes_validate
import pytest
import yaml

from agentrl.config.load import load_config
from tests.e2e.pods import DEPLOY, find, image_environment, rendered
from tests.e2e.running import PYTHON

CHECKOUT = DEPLOY.parents[1]
OLDEST = "1.27.0"
"""The oldest Kubernetes of the manifests."""
STATEFUL_SETS = ("agentrl-coordinator", "agentrl-agents")


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def pod_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = find("base", "StatefulSet", name)["spec"]["template"]
    return found


# ---- images ----


def test_containerfile_has_nothing_that_a_linter_rejects() -> None:
    command = [str(Path(PYTHON).with_name("hadolint")), str(DEPLOY / "Containerfile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_image_is_built_from_every_package_and_from_the_pins() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    copied = {word for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for word in line.split()[:-1]}
    assert packages <= copied
    allowed = set(re.findall(r"^!(\S+)$", (CHECKOUT / ".containerignore").read_text(), re.MULTILINE))
    assert {word.partition("/")[0] for word in copied if not word.startswith(("--", "/"))} <= allowed
    installs = re.findall(r"pip install[^&\n]*", text)
    assert all("-c constraints.txt" in each or "-r " in each for each in installs), installs
    assert re.search(r"^USER 10001", text.rpartition("FROM ")[2], re.MULTILINE), "not root"
    without_comments = [
        [line for line in (CHECKOUT / name).read_text().splitlines() if not line.startswith("#")]
        for name in (".containerignore", ".dockerignore")
    ]
    assert without_comments[0] == without_comments[1]


# ---- compose ----


def test_compose_file_follows_the_specification() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    compose_spec.PyCompose.from_yaml(text).to_spec()
    with pytest.raises(Exception, match="stop_grace"):
        compose_spec.PyCompose.from_yaml(text.replace("stop_grace_period: 2m", "stop_grace_period: [2m]")).to_spec()
    (run,) = compose()["services"].values()
    leave_s = float(run["environment"]["AGENTRL_LEAVE_WITHIN_S"])
    assert compose_spec.parse_duration(run["stop_grace_period"]) > leave_s + 5, "units end before Docker kills them"
    assert run["build"]["target"] in re.findall(r" AS (\S+)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)


def test_compose_file_of_mongodb_follows_the_specification_and_names_existing_files() -> None:
    folder = DEPLOY / "mongodb"
    values = {"MEMBER": "a.example", "SECRETS": "./secrets"}
    text = re.sub(r"\$\{(\w+)[^}]*\}", lambda found: values[found[1]], (folder / "compose.yaml").read_text())
    compose_spec.PyCompose.from_yaml(text).to_spec()
    services, volumes = yaml.safe_load(text)["services"], yaml.safe_load(text)["volumes"]
    for each in services.values():
        assert each["cap_drop"] == ["ALL"]
        for source, _, _ in (
            volume.rpartition(":ro")[0].rpartition(":") for volume in each["volumes"] if "ro" in volume
        ):
            assert source == "./secrets/a.example" or source in volumes or (folder / source).exists(), source


# ---- Kubernetes ----


@pytest.mark.parametrize("overlay", ["base", "example"])
def test_manifests_follow_the_published_schemas(overlay: str) -> None:
    for version in (OLDEST, kubernetes_validate.latest_version()):
        for each in rendered(overlay):
            kubernetes_validate.validate(each, version, strict=True)
    broken = {**rendered(overlay)[0], "metadata": {"name": 7}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", STATEFUL_SETS)
def test_agent_has_ended_before_kubernetes_kills_it(name: str) -> None:
    template = pod_of(name)["spec"]
    (container,) = template["containers"]
    settings = {each["name"]: each.get("value", "") for each in container["env"]}
    words = " ".join(container["args"])
    within = re.search(r"--leave-within=(\d+)", words) or re.search(r"(\d+)", settings["AGENTRL_LEAVE_WITHIN_S"])
    assert within is not None
    assert float(within[1]) + 10 <= template["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", STATEFUL_SETS)
def test_pods_are_restricted(name: str) -> None:
    """As the pod security standard `restricted` requires."""
    template = pod_of(name)["spec"]
    assert template["automountServiceAccountToken"] is False
    assert template["securityContext"]["runAsNonRoot"] is True
    assert template["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in template["containers"]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
    kinds = {kind for volume in template["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"configMap", "secret", "emptyDir"}
    assert image_environment()["HOME"] in {mount["mountPath"] for mount in template["containers"][0]["volumeMounts"]}


def test_services_policy_and_run_file_name_the_same_ports_and_pods() -> None:
    (policy,) = [each for each in rendered("example") if each["kind"] == "NetworkPolicy"]
    (rule,) = policy["spec"]["ingress"]
    allowed = {port for each in rule["ports"] for port in range(each["port"], each.get("endPort", each["port"]) + 1)}
    for service in (each for each in rendered("example") if each["kind"] == "Service"):
        assert {each["port"] for each in service["spec"]["ports"]} <= allowed
        selected = pod_of(service["spec"]["selector"]["app.kubernetes.io/name"])["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= selected.items()
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= selected.items()
    config = load_config(DEPLOY / "kubernetes/example/run.yaml").config
    pods = {
        f"{each['metadata']['name']}-{number}"
        for each in rendered("example")
        if each["kind"] == "StatefulSet"
        for number in range(each["spec"]["replicas"])
    }
    assert set(config.all_hosts) == pods
    assert {host.port for host in config.all_hosts.values()} | {7400} <= allowed
    assert config.coordinator.listen == "tcp://0.0.0.0:7400"


# ---- systemd ----


def test_units_of_systemd_are_accepted_by_systemd(tmp_path: Path) -> None:
    """Checked as a unit of a user and, with the drop-in, as a unit of the system. This needs no running systemd."""
    folder = CHECKOUT / "assets/systemd"
    drop_in = (folder / "system.conf").read_text().replace("User=agentrl", "User=daemon")
    for source in sorted(folder.glob("*.service")):
        unit = tmp_path / source.name.replace("@.", "@demo.")
        unit.write_text(source.read_text())
        assert verify(unit, "--user") == "", source.name
        (tmp_path / f"{unit.name}.d").mkdir()
        (tmp_path / f"{unit.name}.d" / "system.conf").write_text(drop_in)
        assert verify(unit) == "", source.name
        unit.write_text(unit.read_text().replace("KillMode", "KilMode"))
        assert "KilMode" in verify(unit)


def verify(unit: Path, *options: str) -> str:
    """What systemd finds wrong."""
    command = ["systemd-analyze", *options, "verify", "--man=no", str(unit)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(unit.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    lines = [line for line in done.stderr.splitlines() if unit.name in line]
    assert lines or done.returncode == 0, done.stderr
    return "\n".join(lines)

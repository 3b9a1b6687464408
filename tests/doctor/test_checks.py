"""The checks of the doctor: each finding has a verdict and a hint, and only one that prevents a run is a failure."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl.config.data_plane import Environment, ToolServer
from agentrl.config.tool_packages import Packages
from agentrl.config.tool_sandbox import Sandbox, required
from agentrl.doctor import host_checks, run_checks
from agentrl.errors import ConfigError, ExitCode
from agentrl.sandboxes import sandbox_cgroups
from agentrl.sandboxes.sandbox_choice import choose
from agentrl.tool_environments import npm_packages, python_packages


def run(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRL_")}
    return subprocess.run(
        [sys.executable, "-m", "agentrl.doctor", *arguments],
        env=env | {"AGENTRL_HOME": str(home)} | environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_every_line_has_a_verdict_and_a_hint(tmp_path: Path) -> None:
    seen = run("--json", home=tmp_path / "home")
    checks = json.loads(seen.stdout)
    names = [check["name"] for check in checks]
    assert {"python", "packages", "open files", "state directory", "disk", "sockets", "cgroups", "mongod"} < set(names)
    assert len(names) == len(set(names))
    for check in checks:
        assert check["sentence"].endswith((".", ":")), check
        assert bool(check["hint"]) == (check["verdict"] != "ok"), check
    failed = any(check["verdict"] == "fail" for check in checks)
    assert seen.returncode == (ExitCode.UNHEALTHY if failed else 0)
    assert not (tmp_path / "home").exists(), "a look leaves nothing behind"


def test_output_for_people_has_one_line_per_check(tmp_path: Path) -> None:
    seen = run(home=tmp_path)
    assert any(line.startswith("ok    python") for line in seen.stdout.splitlines())


def test_run_file_adds_the_checks_of_its_run(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = min(taken.getsockname()[1], 65_533)
        file = tmp_path / "run.yaml"
        file.write_text(f"name: probe\nmongo: {{embedded: true}}\ncoordinator: {{listen: 'tcp://127.0.0.1:{port}'}}\n")
        seen = run("--json", str(file), home=tmp_path)
    checks = {check["name"]: check for check in json.loads(seen.stdout)}
    assert checks["run file"]["verdict"] == "ok"
    assert checks["ports"]["verdict"] == "fail"
    assert str(port) in checks["ports"]["sentence"]
    assert seen.returncode == ExitCode.UNHEALTHY


def test_wrong_run_file_is_one_finding(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("name: probe\nsidecar: {}\n")
    seen = run("--json", str(file), home=tmp_path)
    first = json.loads(seen.stdout)[0]
    assert (first["name"], first["verdict"]) == ("run file", "fail")
    assert "sidecars" in first["sentence"] + first["hint"]
    assert seen.returncode == ExitCode.UNHEALTHY


def test_old_python_fails() -> None:
    assert host_checks.check_python((3, 10, 12)).verdict == "fail"
    assert host_checks.check_python((3, 13, 0)).verdict == "ok"


@pytest.mark.parametrize(
    ("installed", "verdict", "part"),
    [
        ({"agentrl": ("1.0", ["pyzmq<28,>=27"]), "pyzmq": ("27.3.0", [])}, "ok", "agree"),
        ({"agentrl": ("1.0", ["pyzmq<28,>=27"]), "pyzmq": ("28.0", [])}, "fail", "pyzmq is 28.0, wanted <28,>=27"),
        ({"agentrl": ("1.0", ["mcp[cli]>=2.3"]), "mcp": ("2.3", [])}, "ok", "agree"),
        ({"agentrl": ("1.0", ["mcp>=2.3"])}, "fail", "mcp is missing"),
        ({"agentrl": ("0.9", [])}, "fail", "0.9 is installed"),
        ({}, "warn", "runs from a directory"),
    ],
)
def test_package_versions_are_compared(installed: dict[str, tuple[str, list[str]]], verdict: str, part: str) -> None:
    check = host_checks.check_packages("1.0", installed)
    assert (check.verdict, part in check.sentence) == (verdict, True), check


def test_few_open_files_warn_and_very_few_fail() -> None:
    assert host_checks.check_open_files(65536, 65536).verdict == "ok"
    assert host_checks.check_open_files(resource.RLIM_INFINITY, resource.RLIM_INFINITY).verdict == "ok"
    few = host_checks.check_open_files(1024, 4096)
    assert (few.verdict, "ulimit -n 4096" in few.hint) == ("warn", True)
    assert host_checks.check_open_files(64, 64).verdict == "fail"


def test_state_directory_that_cannot_be_written_fails(tmp_path: Path) -> None:
    assert host_checks.check_state_dir(tmp_path / "not" / "yet").verdict == "ok"
    check = host_checks.check_state_dir(Path("/proc/agentrl"))
    assert (check.verdict, "AGENTRL_HOME" in check.hint) == ("fail", True)


def test_state_directory_on_a_network_file_system_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def remote(directory: Path) -> None:
        raise ConfigError(f"{directory} is on a network file system (nfs4).", hint="Set AGENTRL_HOME.")

    monkeypatch.setattr(host_checks, "refuse_network_file_system", remote)
    assert host_checks.check_state_dir(tmp_path).verdict == "fail"


def test_small_disk_warns_and_a_full_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, verdict in ((6 << 30, "ok"), (1 << 30, "warn"), (10 << 20, "fail")):
        monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        assert host_checks.check_disk(tmp_path).verdict == verdict


def test_runtime_directory_with_too_long_a_name_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    check = host_checks.check_sockets()
    assert check.verdict == "fail"
    assert "107" in check.sentence
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    assert host_checks.check_sockets().verdict == "ok"


def test_clock_that_jumps_warns() -> None:
    times = iter([2e9, 2e9 + 5.0, 2e9 + 5.0])
    steady = iter([0.0, 0.1])
    check = host_checks.check_clock(lambda: next(times), lambda: next(steady), lambda seconds: None)
    assert (check.verdict, "+4900 ms" in check.sentence) == ("warn", True)


def test_clock_in_the_past_warns() -> None:
    assert "behind" in host_checks.check_clock(lambda: 1e9, lambda: 5.0, lambda seconds: None).sentence


def test_missing_mongod_fails_only_a_run_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise ConfigError("There is no mongod on this host.", hint="Install it.")

    monkeypatch.setattr(host_checks, "find_mongod", missing)
    assert host_checks.check_mongod(needed=False).verdict == "warn"
    assert host_checks.check_mongod(needed=True).verdict == "fail"


def test_gpus_are_listed_and_a_broken_driver_warns(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB'\n")
    tool.chmod(0o755)
    assert host_checks.check_gpu(str(tool)).sentence == "1 GPU: NVIDIA H100, 81559 MiB."
    tool.write_text("#!/bin/sh\necho 'Failed to initialize NVML: mismatch'\nexit 18\n")
    broken = host_checks.check_gpu(str(tool))
    assert (broken.verdict, "mismatch" in broken.sentence) == ("warn", True)
    assert host_checks.check_gpu(None).verdict == "ok"


def test_terminal_that_cannot_show_text_warns() -> None:
    assert host_checks.check_terminal(True, "xterm-256color", "UTF-8").verdict == "ok"
    assert host_checks.check_terminal(True, "dumb", "UTF-8").verdict == "warn"
    assert host_checks.check_terminal(False, "", "ANSI_X3.4-1968").verdict == "warn"


def test_ports_in_use_are_no_problem_while_the_own_coordinator_is_up() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"tcp://127.0.0.1:{min(taken.getsockname()[1], 65_533)}"
        assert run_checks.check_ports(listen, 0).verdict == "fail"
        assert run_checks.check_ports(listen, os.getpid()).verdict == "ok"
    elsewhere = run_checks.check_ports("tcp://203.0.113.1:7600", 0)
    assert elsewhere.verdict == "fail"
    assert "an address of this host" in elsewhere.hint


def test_missing_proc_fails(tmp_path: Path) -> None:
    assert host_checks.check_processes(tmp_path).verdict == "fail"
    assert host_checks.check_processes().verdict != "fail"


def test_datasets_are_checked_with_the_code_of_the_steward(tmp_path: Path) -> None:
    (tmp_path / "fine.jsonl").write_text(
        '{"query": "a", "answer": "1"}\n{"query": "b", "answer": "2", "split": "test"}\n'
    )
    (tmp_path / "bad.jsonl").write_text('{"query": "a"}\n[]\n')
    file = tmp_path / "run.yaml"
    environments = "{good: {dataset: fine.jsonl}, ill: {dataset: bad.jsonl}}"
    file.write_text(f"name: probe\nmodel: {{build: tiny}}\nenvironments: {environments}\n")
    seen = run("--json", "--inputs", str(file), home=tmp_path / "home")
    checks = {check["name"]: check for check in json.loads(seen.stdout)}
    assert checks.keys() == {"run file", "dataset of good", "dataset of ill"}
    assert checks["dataset of good"]["sentence"] == "1 rows to train on, 1 held out."
    assert checks["dataset of ill"]["verdict"] == "fail"
    assert "bad.jsonl line 2 is no object" in checks["dataset of ill"]["sentence"]
    assert seen.returncode == ExitCode.UNHEALTHY


def test_a_missing_sandbox_is_a_warning_and_a_required_one_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    (fine,) = run_checks.check_sandboxes({})
    assert fine.verdict == "ok"
    monkeypatch.setattr("agentrl.sandboxes.bubblewrap.problem", lambda: "bubblewrap is not installed; install it")
    (general,) = run_checks.check_sandboxes({})
    assert (general.verdict, general.sentence) == (
        "warn",
        "Tool servers run without a sandbox: bubblewrap is not installed.",
    )
    assert general.hint == "Install it."
    preferred, strict, none = (Sandbox(), Sandbox(required=True), Sandbox(kind="none"))
    servers = {
        name: ToolServer(command=("x",), sandbox=sandbox)
        for name, sandbox in (("a", preferred), ("b", strict), ("c", none))
    }
    environments = {
        name: Environment(code="e.py", dataset="d.jsonl", sandbox=required(plain))
        for name, plain in (("d", "process"), ("e", "none"))
    }
    first, second, third = run_checks.check_sandboxes(servers, environments)
    assert [each.verdict for each in (first, second, third)] == ["warn", "fail", "fail"]
    assert third.sentence.startswith("The environment d is not started: bubblewrap")
    assert first.sentence.startswith("The tool server a runs without a sandbox: bubblewrap")
    assert second.sentence.startswith("The tool server b is not started: bubblewrap")


def test_missing_cgroup_is_named_by_the_doctor_and_in_the_row_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    only_memory = ((Path("/sys/fs/cgroup/memory"), frozenset({"memory.limit_in_bytes"})),)
    for places, what in (((), "memory and number"), (only_memory, "number")):
        monkeypatch.setattr(sandbox_cgroups, "usable_places", lambda places=places: places)
        row = choose(Sandbox()).sentence
        assert row.startswith(f"in a process sandbox: no cgroup limits the {what} of all its processes; start")
    monkeypatch.setattr("agentrl.host.cgroups.place_of", lambda controller: None)
    (missing,) = run_checks.check_sandboxes({"a": ToolServer(command=("x",), sandbox=Sandbox(required=True))})
    assert missing.verdict == "warn", "each process still has its limits, so the server starts"
    assert missing.sentence == "Of a sandbox no cgroup limits the memory and number of all its processes."
    assert "Delegate=yes" in missing.hint


def test_packages_of_tool_servers_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    of_pip = Packages.model_validate({"packages": "git"})
    servers = {
        "git": ToolServer(command=("git",), python=of_pip),
        "memory": ToolServer(command=("m",), npm=Packages.model_validate({"packages": "memory"})),
    }
    monkeypatch.setattr(npm_packages, "lacks_node", lambda: "node is not installed")
    loose, pip, node = run_checks.check_tool_packages(servers)
    assert (loose.verdict, pip.verdict, node.verdict) == ("fail", "ok", "warn")
    assert "git, memory" in loose.sentence
    assert "node is not installed" in node.sentence
    monkeypatch.setattr(python_packages, "find_spec", lambda name: None)
    assert "ensurepip" in list(run_checks.check_tool_packages({"git": servers["git"]}))[1].hint
    assert list(run_checks.check_tool_packages({"plain": ToolServer(command=("x",))})) == []

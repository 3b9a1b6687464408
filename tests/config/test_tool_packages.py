"""Packages of tool servers in the run file, and the lock file that pins them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.config.tool_lock import ToolLock, problems_of
from agentrl.errors import ConfigError

FILE = """
name: with-packages
model: {build: tiny}
environments: {notes: {dataset: train.jsonl, tools: [git, memory]}}
tools:
  git: {python: mcp-server-git==1.0, command: [mcp-server-git]}
  memory: {npm: {packages: ["@scope/memory@2.0", other]}, command: [mcp-server-memory]}
"""
PINS = {"any": [{"name": "mcp-server-git", "version": "1.0", "hashes": ["sha256:00"]}]}


def _locked(folder: Path, *, packages: tuple[str, ...] = ("mcp-server-git==1.0",)) -> Path:
    file = folder / "run.yaml"
    file.write_text(FILE)
    git = {"kind": "python", "packages": list(packages), "build": False, "pins": PINS}
    ToolLock(folder / "run.tools.lock", {"git": git}).write()
    return file


def _digests(config: RunConfig) -> tuple[str, str]:
    git, memory = config.tools["git"].python, config.tools["memory"].npm
    assert git is not None
    assert memory is not None
    return git.locked, memory.locked


def test_changed_pins_change_the_configuration(tmp_path: Path) -> None:
    file = _locked(tmp_path)
    before, unlocked = _digests(load_config(file).config)
    assert before
    assert not unlocked
    lock = json.loads((tmp_path / "run.tools.lock").read_text())
    lock["servers"]["git"]["pins"]["any"][0]["hashes"] = ["sha256:11"]
    (tmp_path / "run.tools.lock").write_text(json.dumps(lock))
    assert _digests(load_config(file).config)[0] not in ("", before)


def test_problem_names_what_the_lock_file_does_not_pin(tmp_path: Path) -> None:
    file = _locked(tmp_path)
    (memory,) = problems_of(load_config(file).config, file)
    assert memory.message == "tools.memory.npm: run.tools.lock does not pin @scope/memory@2.0 other."
    assert "agentrl tools lock" in memory.hint
    git, _ = problems_of(load_config(_locked(tmp_path, packages=("mcp-server-git==0.9",))).config, file)
    assert "names mcp-server-git==1.0, but run.tools.lock pins mcp-server-git==0.9" in git.message
    (tmp_path / "run.tools.lock").write_text("<<<<<<< HEAD")
    assert "it is damaged" in next(problems_of(load_config(file).config, file)).message


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("{python: a, npm: b, command: x}", "packages of one kind"),
        ("{python: a, url: 'http://127.0.0.1/mcp'}", "with a command"),
        ("{python: [], command: x}", "tools.git.python"),
        (
            f"{{python: a, command: x, sandbox: {{kind: container, image: 'a@sha256:{'0' * 64}'}}}}",
            "is not a container",
        ),
    ],
)
def test_invalid_packages_are_refused(tmp_path: Path, server: str, why: str) -> None:
    (tmp_path / "run.yaml").write_text(f"name: a\ntools: {{git: {server}}}")
    with pytest.raises(ConfigError, match=why):
        load_config(tmp_path / "run.yaml")


@pytest.mark.parametrize("kind", ["python", "npm"])
@pytest.mark.parametrize("package", ["--pre", "-e", "one\\ntwo"])
def test_options_of_the_installer_are_no_packages(tmp_path: Path, kind: str, package: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(FILE.replace("python: mcp-server-git==1.0", f'{kind}: ["{package}"]'))
    with pytest.raises(ConfigError, match=f"run.yaml:6.*tools.git.{kind}.*is not a package"):
        load_config(file)

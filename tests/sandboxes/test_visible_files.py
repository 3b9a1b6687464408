"""The place where programs are installed decides which part of a home directory a tool server sees."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agentrl.config.tool_sandbox import Sandbox
from agentrl.errors import ConfigError
from agentrl.sandboxes import bubblewrap
from agentrl.sandboxes import visible_files as files
from agentrl.sandboxes.launch_environment import Launch
from agentrl.sandboxes.start_advice import advice_for
from agentrl.sandboxes.visible_files import Secrets, visible_files

NONE = Secrets(())


def _program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def _visible(home: Path, program: Path, **env: str) -> set[str]:
    launch = Launch((str(program),), {"PATH": os.defpath, **env}, home / "work")
    return {
        str(rule.path.relative_to(home))
        for rule in visible_files(launch, read=(), write=(), secrets=NONE)
        if rule.path.is_relative_to(home)
    }


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    (tmp_path / ".local/share/keyrings").mkdir(parents=True)
    for name in ("lib/python3.11", "bin"):
        (tmp_path / ".local" / name).mkdir(parents=True)
    return tmp_path


def test_program_in_the_users_prefix_shows_programs_and_libraries_only(home: Path) -> None:
    python = _program(home / ".local/bin/python3.11")
    (home / "venv").mkdir()
    (home / "venv/pyvenv.cfg").write_text(f"home = {python.parent}\n")
    server = _program(home / "venv/bin/server", f"#!{home}/venv/bin/python\n")
    expected = {"work", ".local/bin", ".local/lib"}
    assert _visible(home, python) == expected
    assert _visible(home, server) == {*expected, "venv"}


def test_run_on_a_python_of_the_users_prefix_shows_programs_and_libraries_only(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "base_prefix", str(home / ".local"))
    files._python_environment.cache_clear()
    try:
        assert _visible(home, Path("/bin/true")) == {"work", ".local/bin", ".local/lib"}
    finally:
        files._python_environment.cache_clear()


def test_project_that_was_copied_into_the_run_directory_is_visible_and_the_rest_of_it_is_not(home: Path) -> None:
    run_dir = home / "run"
    project = run_dir / "copied/home/me/project"
    _program(project / "server.py")
    launch = Launch((sys.executable, "server.py"), {"PATH": os.defpath}, project)
    secrets = Secrets.of_this_host({"AGENTRL_HOME": str(home / "state")}, run_dir)
    rules = visible_files(launch, read=(), write=(), secrets=secrets)
    assert {rule.path for rule in rules if rule.path.is_relative_to(home)} == {project}


def test_interpreter_that_env_finds_is_visible(home: Path) -> None:
    node = _program(home / "nodes/v22/bin/node")
    server = _program(home / "servers/bin/server", "#!/usr/bin/env node\n")
    assert {"nodes/v22", "servers"} <= _visible(home, server, PATH=str(node.parent))


def test_store_of_linked_programs_is_visible_as_a_whole(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_STORES", (str(home / "store"),))
    (home / "store/other-lib").mkdir(parents=True)
    assert "store" in _visible(home, _program(home / "store/a-python/bin/python"))


def test_certificates_that_variables_name_are_visible(home: Path) -> None:
    (home / "secrets").mkdir()
    (home / "secrets/ca.pem").touch()
    seen = _visible(home, Path("/bin/true"), NODE_EXTRA_CA_CERTS=str(home / "secrets/ca.pem"))
    assert seen == {"work", "secrets/ca.pem"}


def test_shim_is_refused_with_what_to_name(home: Path) -> None:
    with pytest.raises(ConfigError, match="is a shim") as refused:
        _visible(home, _program(home / ".pyenv/shims/python"))
    assert "pyenv which python" in refused.value.hint


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("OSError: [Errno 30] Read-only file system: '/root/.cache/x'", "tools.a.sandbox.write"),
        ("getaddrinfo ENOTFOUND registry.example.org", "tools.a.sandbox.network"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/root/models'", "shows no home directory"),
        ("something else", "It runs in a sandbox"),
    ],
)
def test_advice_names_the_key_that_allows_what_a_server_lacks(line: str, named: str) -> None:
    launch = Launch(("a",), {}, Path("/"), sandbox="process")
    assert named in advice_for("tools.a", launch, [line])
    assert not advice_for("tools.a", Launch(("a",), {}, Path("/")), [line])


def test_link_that_names_the_time_zone_stays_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "islink", lambda path: path == "/etc/localtime")
    monkeypatch.setattr(os.path, "realpath", lambda path: "/usr/share/zoneinfo/Asia/Tokyo")
    monkeypatch.setattr(os, "readlink", lambda path: "../usr/share/zoneinfo/Asia/Tokyo")
    words = " ".join(bubblewrap.command_line(("true",), Path("/tmp"), Sandbox(), ()))
    assert "--symlink ../usr/share/zoneinfo/Asia/Tokyo /etc/localtime" in words

"""The name of a run gives one state directory and one identity, also under concurrent creation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config import paths
from agentrl.errors import ConfigError, ConflictError, DiskError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_home_is_configured_or_follows_xdg():
    assert paths.home({"AGENTRL_HOME": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert paths.home({"XDG_STATE_HOME": "/b"}) == Path("/b/agentrl")
    assert paths.home({"XDG_STATE_HOME": "relative"}) == Path("~/.local/state/agentrl").expanduser()
    assert paths.home({}) == Path("~/.local/state/agentrl").expanduser()


def test_run_is_created_once_and_found_again(home, tmp_path):
    made = paths.create_run("demo", tmp_path / "run")
    assert paths.create_run("demo", tmp_path / "run") == made
    assert paths.read_run(home / "demo") == made
    assert paths.list_runs() == [made]
    assert (home / "demo").stat().st_mode & 0o777 == 0o700
    assert (home / "demo" / "run.json").stat().st_mode & 0o777 == 0o600
    assert os.listdir(home / "demo") == ["run.json"]


def test_concurrent_creation_gives_one_identity(tmp_path, home):
    script = "import sys; from agentrl.config import paths as p; print(p.create_run('demo', p.Path(sys.argv[1])).uuid)"

    def ask(_: int) -> str:
        return subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True, timeout=60
        ).stdout

    with ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(ask, range(8)))
    assert len(seen) == 1


def test_the_same_name_with_another_directory_is_refused(tmp_path):
    paths.create_run("demo", tmp_path / "a")
    with pytest.raises(ConflictError, match=r"exists already with the directory .*/a, not .*/b"):
        paths.create_run("demo", tmp_path / "b")


def test_a_state_directory_elsewhere_is_found_by_name(tmp_path, home):
    made = paths.create_run("demo", tmp_path / "run", elsewhere=tmp_path / "fast")
    assert (tmp_path / "fast" / "run.json").is_file()
    assert paths.read_run(paths.state_dir("demo")) == made
    assert paths.create_run("demo", tmp_path / "run", elsewhere=tmp_path / "fast") == made
    assert paths.create_run("demo", tmp_path / "run") == made
    with pytest.raises(ConflictError, match=r"is in .*/fast, not in .*/slow"):
        paths.create_run("demo", tmp_path / "run", elsewhere=tmp_path / "slow")


@pytest.mark.parametrize("place", ["usual", "elsewhere"])
def test_an_open_state_directory_is_closed_to_other_users(tmp_path, home, place):
    state = home / "demo" if place == "usual" else tmp_path / "fast"
    state.mkdir(parents=True)
    for mode in (0o755, 0o770, 0o707):
        state.chmod(mode)
        paths.create_run("demo", tmp_path / "run", elsewhere=None if place == "usual" else state)
        assert state.stat().st_mode & 0o777 == 0o700


def test_a_directory_with_other_files_is_no_state_directory_while_others_can_open_it(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "notes.txt").write_text("mine")
    shared.chmod(0o755)
    with pytest.raises(ConfigError, match=r"Other users can open .*/shared, and it holds files"):
        paths.create_run("demo", tmp_path / "run", elsewhere=shared)
    assert shared.stat().st_mode & 0o777 == 0o755
    shared.chmod(0o700)
    paths.create_run("demo", tmp_path / "run", elsewhere=shared)


def test_a_state_directory_of_another_user_is_refused(tmp_path, home, monkeypatch):
    paths.create_run("demo", tmp_path / "run")
    os.chown(home / "demo", 4321, 4321) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(ConfigError, match=r"belongs to another user \(uid \d+\)"):
        paths.create_run("demo", tmp_path / "run")


def test_the_directory_of_a_new_run_is_closed_to_other_users_and_an_existing_one_keeps_its_mode(tmp_path):
    paths.create_run("demo", tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "old").mkdir()
    (tmp_path / "old").chmod(0o750)
    paths.create_run("other", tmp_path / "old")
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", "a" * 41, "-a", "a\n"])
def test_a_name_cannot_leave_home(name):
    with pytest.raises(ConfigError, match="is no name of a run"):
        paths.state_dir(name)


@pytest.mark.parametrize("body", ["", "{}", "[1]", '{"name": "demo", "uuid": "x", "run_dir": "", "created_at": 1}'])
def test_a_damaged_file_is_named_and_does_not_hide_the_others(home, tmp_path, body):
    good = paths.create_run("good", tmp_path)
    (home / "bad").mkdir()
    (home / "bad" / "run.json").write_text(body)
    with pytest.raises(ConfigError, match=r"bad/run\.json is damaged"):
        paths.read_run(home / "bad")
    bad, other = paths.list_runs()
    assert (bad.name, other) == ("bad", good)
    assert "damaged" in bad.broken


def test_other_directories_are_not_listed_as_runs(home, tmp_path):
    assert paths.list_runs() == []
    made = paths.create_run("demo", tmp_path)
    (home / "empty").mkdir()
    (home / "file").write_text("x")
    (home / ".hidden").mkdir()
    assert paths.list_runs() == [made]


def test_home_that_cannot_be_created_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(DiskError, match="cannot be made: Not a directory"):
        paths.create_run("demo", tmp_path)


def test_run_file_has_the_documented_fields(home, tmp_path):
    paths.create_run("demo", tmp_path)
    fields = {"name", "uuid", "run_dir", "created_at", "database"}
    assert json.loads((home / "demo" / "run.json").read_text()).keys() == fields


def test_identity_of_the_database_is_added_once(home, tmp_path):
    made = paths.create_run("demo", tmp_path)
    assert made.database == ""
    for _ in range(2):
        paths.record_database(home / "demo", "d1")
    with pytest.raises(ConflictError, match="has the database d1, not d2"):
        paths.record_database(home / "demo", "d2")
    assert paths.create_run("demo", tmp_path) == replace(made, database="d1")


def test_run_file_of_an_earlier_version_has_no_database(home, tmp_path):
    paths.create_run("demo", tmp_path)
    file = home / "demo" / "run.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "database"}))
    assert paths.read_run(home / "demo").database == ""


@pytest.mark.parametrize(
    "module",
    ["agentrl.config", "agentrl.config.paths", "agentrl.config.secrets", "agentrl.telemetry.control_plane_metrics"],
)
def test_light_modules_import_nothing_heavy(module):
    script = f"import sys, {module}; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    heavy = {"pydantic", "yaml", "msgspec", "zmq", "rich", "typer", "asyncio"}
    assert heavy.isdisjoint(loaded)


@pytest.mark.parametrize("run_dir", ["/proc/nope/x", "/dev/null/x", "/dev/null"])
def test_impossible_directory_is_an_error_and_creates_no_run(home, run_dir):
    with pytest.raises(DiskError, match=f"{run_dir} cannot be made.*Set `dir`"):
        paths.create_run("demo", Path(run_dir))
    assert paths.list_runs() == []

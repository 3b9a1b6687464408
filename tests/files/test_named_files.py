"""The files of a run file on a host without a shared disk: which of them it gets, and where they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.config.load import load_config
from agentrl.config.paths import IN_FORCE
from agentrl.config.run import RunConfig
from agentrl.config.serialization import config_to_plain
from agentrl.files import named_files
from agentrl.files.pieces import content_of
from tests.small_run import data_plane, write_data

FILES = {
    "agents.py": "",
    "server.py": "import helper",
    "helper/__init__.py": "",
    "notes/a.md": "a",
    "notes/.hidden.md": "no",
    "desk/form.txt": "",
    "table.bin": "0",
    "big.bin": "not named",
    ".venv/pyvenv.cfg": "",
    ".venv/lib.py": "",
    "env/pyvenv.cfg": "",
    "env/lib.py": "",
    "node_modules/x.js": "",
    "start.sh": "",
    "operator.key": "secret",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    write_data(folder)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "start.sh").chmod(0o755)
    config: dict[str, Any] = {"name": "r", "dir": "run", **data_plane()}
    config["rollout"]["code"] = ["agents.py"]
    config["tools"] |= {
        "own": {"command": ["{python}", "server.py", str(folder / "table.bin"), "--fast"]},
        "search": {"shipped": "search", "corpus": ["notes"]},
        "files": {"shipped": "files", "workspace": "desk"},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    (folder / "run" / "tools").mkdir(parents=True)
    (folder / "run" / "tools" / "pins.json").write_text("{}")
    in_force = config_to_plain(load_config(folder / "run.yaml", environ={}).config)
    apart = {"code": str(folder / "helper" / "__init__.py"), "sandbox": {"kind": "process"}}
    in_force["environments"]["shop"] |= apart
    (folder / "run" / IN_FORCE).write_text(json.dumps(in_force))
    return folder


def listed(project: Path, role: str) -> set[str]:
    found = named_files.listed(project / "run", role, {})
    assert not found.problem
    for path, content in found.files.items():
        assert content == content_of(Path(path))
    assert not found.executable or found.executable == [str(project / "start.sh")]
    return {str(Path(path).relative_to(project)) for path in found.files}


def test_each_role_gets_what_it_reads_and_nothing_else(project: Path) -> None:
    data = {"train.jsonl", "held-out.jsonl"}
    assert listed(project, "engine") == set()
    assert listed(project, "sampler") == {"agents.py", "helper/__init__.py", *data}
    assert listed(project, "trainer") == {"shown.jsonl", *data}
    scripts = {"agents.py", "server.py", "helper/__init__.py", "start.sh"}
    assert listed(project, "toolbox") == {*scripts, "table.bin", "notes/a.md", "desk/form.txt", "run/tools/pins.json"}


def test_a_missing_file_is_named(project: Path) -> None:
    (project / "agents.py").unlink()
    problem = named_files.listed(project / "run", "sampler", {}).problem
    assert problem == f"{project / 'agents.py'} cannot be read: No such file or directory."


def test_the_configuration_there_names_the_files_there(project: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "there"
    text = (project / "run" / IN_FORCE).read_text()
    origin, plain = named_files.config_here(text, run_dir)
    config, copied = RunConfig.model_validate_json(plain), run_dir / "copied" / project.relative_to("/")
    assert (origin, config.dir) == (project / "run", str(run_dir))
    assert config.rollout.code == (str(copied / "agents.py"),)
    assert config.environments["shop"].dataset == str(copied / "train.jsonl")
    assert config.environments["shop"].code == str(copied / "helper" / "__init__.py")
    assert config.training.warmup.dataset == str(copied / "shown.jsonl")
    own = config.tools["own"]
    assert own.cwd == str(copied)
    assert own.command == ("{python}", "server.py", str(copied / "table.bin"), "--fast")
    assert Path(own.cwd).is_dir(), "the server starts in this directory"
    assert config.tools["search"].corpus == (str(copied / "notes"),)
    assert config.tools["files"].workspace == str(copied / "desk")
    pins = project / "run" / "tools" / "pins.json"
    assert named_files.place_here(str(pins), origin, run_dir) == run_dir / "tools" / "pins.json"

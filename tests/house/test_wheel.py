"""The built wheel is complete: installed alone, outside of the checkout, it brings a run up and down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from agentrl.errors import ExitCode

CHECKOUT = Path(__file__).resolve().parents[2]
RUN_FILE = """\
name: wheel-test
sidecars:
  ticker:
    command: "{python} -m assets.units.step_loop --every 0.05"
    count: 2
    speaks: true
  sleeper:
    command: sleep 600
    after: ticker
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the package's files, so that no file is left in the checkout."""
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.splitlines()
    for name in listed:
        if name.startswith(("agentrl/", "daemons/", "tui/", "assets/")) or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            if (CHECKOUT / name).is_file():
                (source / name).write_bytes((CHECKOUT / name).read_bytes())
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*command, str(target), str(source)], check=True, capture_output=True, timeout=300)
    (built,) = target.glob("agentrl-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel. It finds the dependencies of this environment through a .pth file."""
    home = tmp_path_factory.mktemp("env")
    venv.create(home, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True, timeout=300)
    # Python reads no .pth files in a directory that comes from a .pth file, so the checkout stays invisible.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def test_the_wheel_has_all_packages_and_their_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "agentrl/cli/app.py",
        "agentrl/py.typed",
        "daemons/host.py",
        "daemons/coordinator.py",
        "daemons/mongo.py",
        "tui/app.py",
        "tui/serving/page.html",
        "tui/serving/page.js",
        "assets/tour.yaml",
        "assets/recipes/grpo.yaml",
        "assets/units/step_loop.py",
    ):
        assert wanted in names
    assert any(name.endswith(".service") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "docs/", "build/"))]


def test_the_wheel_brings_a_run_up_and_down(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTRL_", "PYTHON"))}
    environ |= {"AGENTRL_HOME": str(tmp_path / "home"), "PATH": f"{installed / 'bin'}:{os.defpath}"}

    def agentrl(*arguments: str) -> str:
        done = subprocess.run(
            [str(installed / "bin" / "agentrl"), *arguments],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == ExitCode.OK, f"agentrl {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    where = subprocess.run(
        [str(installed / "bin" / "python"), "-c", "import agentrl, assets, daemons; print(agentrl.__file__)"],
        cwd=tmp_path,
        env=environ,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert Path(where.strip()).is_relative_to(installed)

    try:
        agentrl("up", "run.yaml", "--yes")
        status = json.loads(agentrl("status", "--json"))
        assert status["run"]["state"] == "running"
        assert {unit["unit"]: unit["state"] for unit in status["units"]} == {
            "ticker-0": "ready",
            "ticker-1": "ready",
            "sleeper-0": "ready",
        }
    finally:
        agentrl("down", "--yes")
    left = [line for line in _command_lines() if str(tmp_path) in line]
    assert left == []


def _command_lines() -> list[str]:
    """The command lines of all processes on this machine that may be read."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines

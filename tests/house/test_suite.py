"""The suite counts every test, whatever happens to its process, and says at its end what failed and why."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.host import procfs
from tests.suite.lanes import Lane
from tests.suite.progress import Progress
from tests.suite.results import Results
from tests.suite.schedule import Batch, Cost, batches, files_at, recorded
from tests.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).parents[2]
Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def test_file(name: str, body: str) -> None:
        (tmp_path / "room").mkdir(exist_ok=True)
        (tmp_path / "room" / name).write_text(
            f"import os, signal, subprocess, time\nimport pytest\n{textwrap.dedent(body)}"
        )

    return test_file


def start(root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.suite", "--bare", "--lanes", "2", "--root", str(root), "room"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    output, _ = process.communicate(timeout=2 * PATIENCE_S)
    return process.returncode, output.splitlines()


def test_each_test_counts_and_the_end_says_what_failed(tmp_path: Path, write: Write) -> None:
    write("test_good.py", "def test_good(): pass\n@pytest.mark.skip(reason='no such part')\ndef test_skipped(): pass")
    write(
        "test_bad.py",
        """
        def test_wrong(tmp_path):
            (tmp_path / "run.log").write_text("first words\\nlast words\\n")
            assert 1 == 2, "the sum"
        @pytest.fixture
        def broken():
            yield
            raise ValueError("in the end")
        def test_with_a_bad_end(broken): pass
        """,
    )
    write("test_dead.py", "def test_that_dies(): os.kill(os.getpid(), signal.SIGKILL)\ndef test_never_begun(): pass")
    write("test_unreadable.py", "raise OSError('no such device')")
    code, lines = end(start(tmp_path))
    assert (code, lines[-1]) == (1, "1 passed, 4 failed, 1 skipped")
    screen = "\n".join(lines[lines.index("== what failed") :])
    for text in ("test_bad.py::test_wrong (call)", "the sum", "run.log", "last words", "in the end", "no such device"):
        assert text in screen
    assert "test_dead.py::test_that_dies (run)" in screen
    assert "ended with -9" in screen
    assert screen.count("no such device") == 1, "the file is collected again behind the process that died"
    assert any("no such part" in line for line in lines)
    assert any(line.endswith("room/test_bad.py") for line in lines), "the table of costs"


def test_a_test_that_passes_by_itself_is_listed_as_unsteady(tmp_path: Path, write: Write) -> None:
    write(
        "test_rare.py",
        f"""
        def test_rare():
            second = os.path.exists({str(tmp_path / "begun")!r})
            open({str(tmp_path / "begun")!r}, "w").close()
            assert second, "too early"
        """,
    )
    code, lines = end(start(tmp_path))
    assert (code, lines[-1]) == (0, "1 passed, 0 failed, 0 skipped")
    assert any(line.startswith("== unsteady") for line in lines)
    assert any("too early" in line for line in lines)


def test_what_tests_leave_behind_is_ended_and_counted(tmp_path: Path, write: Write) -> None:
    write(
        "test_left.py",
        f"""
        def test_leaves_an_orphan():
            code = "import os, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\n"
            code += "open({str(tmp_path / "pid")!r}, 'w').write(str(os.getpid()))\\ntime.sleep(600)"
            subprocess.run([{sys.executable!r}, "-c", code], check=True)
            while not (os.path.exists({str(tmp_path / "pid")!r}) and open({str(tmp_path / "pid")!r}).read()): pass
        """,
    )
    code, lines = end(start(tmp_path))
    assert (code, lines[-1]) == (0, "1 passed, 0 failed, 0 skipped")
    assert int((tmp_path / "pid").read_text()) not in procfs.all_pids()
    assert any(line.startswith("== processes that tests left behind") for line in lines)


def test_files_behind_a_process_that_ended_run_in_another(tmp_path: Path, write: Write) -> None:
    write("test_1_dead.py", "def test_that_dies(): os.kill(os.getpid(), signal.SIGKILL)")
    write("test_2_dead.py", "os.kill(os.getpid(), signal.SIGKILL)\ndef test_never_collected(): pass")
    write("test_3_good.py", "def test_good(): pass")
    code, lines = end(start(tmp_path))
    assert (code, lines[-1]) == (1, "1 passed, 2 failed, 0 skipped")


def test_an_interrupt_ends_the_lanes_and_is_no_success(tmp_path: Path, write: Write) -> None:
    write("test_long.py", f"def test_long():\n    open({str(tmp_path / 'begun')!r}, 'w').close()\n    signal.pause()")
    process = start(tmp_path)
    eventually((tmp_path / "begun").exists)
    process.send_signal(signal.SIGINT)
    code, lines = end(process)
    assert code == 1
    assert lines[-1].startswith("0 passed")


def test_every_file_is_in_one_batch_and_the_longest_batch_is_first() -> None:
    files = files_at(ROOT, ["tests"], without=["tests/gpu"])
    planned = batches(files, recorded())
    assert sorted(file for batch in planned for file in batch.files) == sorted(files)
    assert [batch.wall_s for batch in planned] == sorted((batch.wall_s for batch in planned), reverse=True)
    (contract,) = (batch for batch in planned if any("engines/contract" in file for file in batch.files))
    assert all("engines/contract" in file for file in contract.files)


def test_recorded_files_exist() -> None:
    gone = [file for file in recorded() if not (ROOT / file).exists()]
    assert not gone, "remove them from tests/suite/costs.json"


def test_cheap_files_of_a_room_share_a_batch() -> None:
    costs = {f"tests/a/test_{n}.py": Cost(1, 14.0, 1.0) for n in range(3)} | {"tests/b/test_0.py": Cost(1, 90.0, 1.0)}
    assert [len(batch.files) for batch in batches(list(costs), costs)] == [1, 2, 1]


def test_progress_shows_counts_and_the_time_left() -> None:
    out, results = io.StringIO(), Results(passed=30, skipped=2)
    progress = Progress(2, results, out=out)
    now = time.monotonic()
    lane = Lane(Batch(("tests/tui/test_a.py",), 100.0, 10), os.getpid(), 0, Path("out"), now - 40.0, tests=10)
    progress.show([lane], [Batch(("tests/tui/test_b.py",), 100.0, 8)], now=now)
    line = out.getvalue()
    assert "32 of about 50 tests: 30 passed, 0 failed, 2 skipped · about 1:20 left · tui/test_a" in line

"""`agentrl tools ...` on a real run with two toolboxes, each with a sandboxed server of its own.

No engine runs, so no episode uses a server. What the commands show are the processes that toolboxes keep ready.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ExitCode
from tests.e2e.running import Run, running
from tests.ports import free_triplet
from tests.toolbox.conftest import FAULTY
from tests.waiting import eventually

WITHIN_S = 120.0
POOL = 2
HIDDEN = "/opt/programs-of-this-host"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    place = tmp_path_factory.mktemp("tools")
    for made in running(place, f"t-{uuid.uuid4().hex[:8]}", factor=0.3):
        (place / "train.jsonl").write_text('{"query": "what?", "answer": "1"}\n')
        made.environ["PATH"] += f":{HIDDEN}"
        made.config |= {
            "environments": {"shop": {"dataset": "train.jsonl", "tools": ["faulty"]}},
            "tools": {
                "faulty": {
                    "command": [sys.executable, str(FAULTY)],
                    "session": "process",
                    "pool": POOL,
                    "sandbox": {"kind": "process", "required": True, "read": [str(FAULTY.parents[2]), sys.prefix]},
                }
            },
            "model": {"build": "tiny"},
            "rollout": {"samplers": 0},
            "training": {"frozen": True},
        }
        made.config["coordinator"] = {"listen": f"tcp://127.0.0.1:{free_triplet()}"}
        made.up("--no-wait")
        made.cli("scale", "toolbox", "2", "--no-wait")
        for unit in ("steward-0", "toolbox-0", "toolbox-1"):
            made.wait_state(unit, "ready", within_s=WITHIN_S)
        yield made


def sandboxes(run: Run) -> list[Any]:
    rows: list[Any] = run.cli("tools", "sandboxes")["rows"]
    return rows


def of_both(run: Run) -> list[Any]:
    """The sandboxes that wait for sessions, once both toolboxes have theirs."""
    rows = [row for row in sandboxes(run) if row["state"] == "idle" and row.get("pid")]
    assert len(rows) == 2 * POOL, rows
    assert {row["toolbox"].partition(".")[0] for row in rows} == {"toolbox-0", "toolbox-1"}
    return rows


def execute(run: Run, sandbox: str, *program: str) -> tuple[int, Any]:
    """Run a program in a sandbox. Returns the exit code of the command, and its document."""
    done = run.raw("tools", "exec", sandbox, "--yes", "--json", "--", *program)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_lists_have_the_rows_of_both_toolboxes(run: Run) -> None:
    rows = eventually(lambda: of_both(run), within_s=WITHIN_S, what="full pools")
    listed = run.cli("tools", "list")
    assert listed.get("missing", []) == []
    assert [row["state"] for row in listed["rows"]] == ["serving"] * 2
    shown = run.cli("tools", "show", "faulty")
    assert {row["id"] for row in shown["sandboxes"]} == {row["id"] for row in rows}
    assert "faulty.echo" in {row["id"] for row in shown["tools"]}
    assert "echo" in {tool["function"]["name"] for tool in run.cli("tools", "schema", "faulty")}
    measured = eventually(lambda: _measured(run), within_s=WITHIN_S, what="figures of each sandbox")
    assert all(row["memory_bytes"] > 2**20 and row["processes"] >= 1 for row in measured)


def _measured(run: Run) -> list[Any]:
    rows = of_both(run)
    assert all(row.get("measured_at") for row in rows)
    return rows


def test_a_program_in_a_sandbox_sees_only_the_sandbox(run: Run) -> None:
    row = eventually(lambda: of_both(run), within_s=WITHIN_S)[0]
    count = f"import os; print(sum(len(files) for *_, files in os.walk({str(run.home)!r})))"
    code, done = execute(run, row["id"], sys.executable, "-c", count)
    assert (code, done["output"]["exit"], done["output"]["stdout"]) == (ExitCode.OK, 0, "0\n"), done
    code, done = execute(run, row["id"], "/bin/false")
    assert (code, done["output"]["exit"]) == (ExitCode.FAILED, 1), done
    code, done = execute(run, row["id"], "no-such-program")
    assert (code, done["output"]["not_started"]) == (ExitCode.UNKNOWN, "No such file or directory"), done
    code, done = execute(run, row["id"], "sh", "-c", "echo $PATH; exit 127")
    assert (code, done["output"]["exit"]) == (ExitCode.FAILED, 127), "127 is the exit code of the program itself"
    assert HIDDEN not in done["output"]["stdout"], "the server knows no names of hidden directories"
    code, refused = execute(run, "nosuch-1", "/bin/true")
    assert code == ExitCode.UNKNOWN, refused


def test_a_restart_replaces_the_sandboxes_of_both_toolboxes(run: Run) -> None:
    before = {row["id"] for row in eventually(lambda: of_both(run), within_s=WITHIN_S)}
    run.cli("tools", "restart", "faulty", "--yes", "--note", "new data", within_s=WITHIN_S)
    eventually(lambda: _all_new(run, before), within_s=WITHIN_S, what="other sandboxes in both toolboxes")
    code, refused = run.cli("tools", "restart", "nosuch", "--yes", check=False)
    assert code != ExitCode.OK
    assert "'nosuch'" in refused["error"]["message"]


def _all_new(run: Run, before: set[str]) -> bool:
    return before.isdisjoint(row["id"] for row in of_both(run))


def test_a_sandbox_without_a_session_cannot_be_released(run: Run) -> None:
    row = eventually(lambda: of_both(run), within_s=WITHIN_S)[0]
    code, refused = run.cli("tools", "release", row["id"], "--yes", check=False)
    assert code == ExitCode.REFUSED
    assert "belongs to no session" in refused["error"]["message"]


def test_a_viewer_reads_and_changes_nothing(run: Run, tmp_path: Path) -> None:
    key = tmp_path / "viewer.key"
    run.cli("keys", "new", "watching", "--permission", "viewer", "--out", str(key))
    assert run.raw("tools", "list", "--key", str(key)).returncode == ExitCode.OK
    (row, *_) = eventually(lambda: of_both(run), within_s=WITHIN_S)
    for words in (("restart", "faulty"), ("exec", row["id"], "--", "/bin/true")):
        done = run.raw("tools", words[0], "--yes", "--key", str(key), *words[1:])
        assert done.returncode == ExitCode.REFUSED, done
        assert "the key watching is viewer" in done.stderr


def test_a_killed_toolbox_is_named_with_what_became_of_its_sandboxes(run: Run) -> None:
    rows = eventually(lambda: of_both(run), within_s=WITHIN_S)
    lost = next(row["id"] for row in rows if row["toolbox"].startswith("toolbox-0"))
    before = run.unit_row("toolbox-0")
    os.kill(before.pid, signal.SIGKILL)
    code, refused = eventually(lambda: _refused(run, lost), within_s=WITHIN_S, what="the death to be known")
    assert code != ExitCode.OK
    assert "has ended, with its sandboxes and sessions" in refused["error"]["message"]
    run.wait_incarnation("toolbox-0", before.incarnation, within_s=WITHIN_S)
    eventually(lambda: of_both(run), within_s=WITHIN_S, what="the sandboxes of the toolbox that took its place")


def _refused(run: Run, sandbox: str) -> tuple[int, Any]:
    code, refused = execute(run, sandbox, "/bin/true")
    assert "has ended" in refused["error"]["message"], refused
    return code, refused

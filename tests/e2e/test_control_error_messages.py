"""Messages and exit codes for mistyped names and failed commands."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from agentrl.errors import ExitCode
from tests.e2e.running import Run, running


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    for made in running(tmp_path_factory.mktemp("words"), f"t-{uuid.uuid4().hex[:8]}"):
        made.sidecar("web", ["sleep", "1000"], count=2)
        made.up()
        yield made


@pytest.mark.parametrize("verb", ["drain", "stop", "logs"])
def test_group_name_is_refused_where_a_unit_is_needed(run: Run, verb: str) -> None:
    code, document = run.cli(verb, "web", check=False)
    assert code == ExitCode.UNKNOWN
    error = document["error"]
    assert "web is a group" in error["message"]
    assert "web-0, web-1" in error["hint"]


@pytest.mark.parametrize("verb", ["restart", "drain", "stop", "logs", "stacks"])
def test_mistyped_unit_gets_the_nearest_name(run: Run, verb: str) -> None:
    code, document = run.cli(verb, "wbe-1", check=False)
    assert code == ExitCode.UNKNOWN
    assert document["error"]["hint"] == "Did you mean web-1?"


def test_unknown_name_is_reported_before_any_question(run: Run) -> None:
    for arguments in (
        ("logs", "web-1.99"),
        ("keys", "revoke", "unknown"),
        ("alerts", "ack", "unknown"),
        ("tune", "no"),
    ):
        code, document = run.cli(*arguments, check=False)
        assert code == ExitCode.UNKNOWN, arguments
        assert document["error"]["name"] == "unknown"


def test_operations_are_named_like_their_commands(run: Run) -> None:
    assert "restart: restarts web-1: done in" in run.raw("restart", "web-1").stdout
    assert run.raw("tune", "supervision.max_deaths", "7").stdout.count("\n") == 1
    assert "tune --undo: supervision.max_deaths: 7 -> 5" in run.raw("tune", "supervision.max_deaths", "--undo").stdout
    assert "the stacks of web-0 go into one file" in run.raw("stacks", "web-0").stdout
    failed = run.raw("alerts", "test")
    assert failed.returncode == ExitCode.FAILED
    assert (failed.stdout + failed.stderr).count("no sink is configured") == 1
    summaries = [row["summary"] for row in run.cli("events", "--kind", "operation")]
    verbs = [summary.partition(":")[0] for summary in summaries]
    assert verbs == ["up", "restart", "tune", "tune --undo", "stacks", "alerts test"]


def test_each_knob_takes_one_line_of_eighty_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.environ, "COLUMNS", "80")
    lines = run.raw("tune").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:]] == [row["name"] for row in run.cli("tune")]

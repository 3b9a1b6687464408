"""Forks on a real run: records that failed for infrastructure are repaired while processes are killed."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import Run, running
from tests.toolbox.conftest import FAULTY
from tests.waiting import eventually

WITHIN_S = 240.0
TASKS = 10
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LOOP = """
from agentrl.chat.tool_call_parsers import Call
from agentrl.policies.outcomes import Outcome
from agentrl.rollout.agent_loops import AgentLoop, register_loop


@register_loop("searcher")
class Searcher(AgentLoop):
    resumable = True

    async def run(self, episode):
        first = episode.recorder.record.seat == 0
        wanted = Call("search", {"while_down": DOWN}) if first else Call("note", {"path": NOTES, "until": GO_ON})
        ids = episode.first_prompt()
        for calls in ([Call("tick")], [wanted], [Call("tick")]):
            reply = await episode.model(ids, may_be_cut=True)
            results = await episode.call_tools(calls)
            ids = [*ids, *reply.ids, *episode.template.tool_results(results, ended=reply.ended)]
        await episode.model(ids, may_be_cut=True)
        return Outcome.ANSWERED if results == ["tick 2"] else Outcome.NO_ANSWER

    async def evaluate_record(self, episode):
        return float(episode.record.endswith("s0.a1") or ".s0." in episode.record)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    for made in running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=0.3):
        rows = [f'{{"query": "what is {number}?", "answer": "1"}}\n' for number in range(TASKS)]
        (tmp_path / "train.jsonl").write_text("".join(rows))
        (tmp_path / "down").touch()
        places = {"DOWN": "down", "NOTES": "notes", "GO_ON": "go on"}
        names = "".join(f"{name} = {str(tmp_path / file)!r}\n" for name, file in places.items())
        (tmp_path / "agents.py").write_text(names + LOOP)
        made.config |= {
            "environments": {"shop": {"dataset": "train.jsonl", "tools": ["faulty"], "agent": "searcher"}},
            "tools": {
                "faulty": {
                    "command": [sys.executable, str(FAULTY)],
                    "session": "keyed",
                    "sandbox": "none",
                    "timeout_s": 300,
                    "effects": {"note": "outside"},
                }
            },
            "model": {"build": "tiny"},
            "sampling": {"n": 2, "max_tokens": 8, "context": 2000},
            "rollout": {"samplers": 1, "code": "agents.py"},
            "training": {"frozen": True},
        }
        made.up("--no-wait")
        yield made


def records(run: Run, filter: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = run.cli("records", "list", "--filter", filter, "--limit", "1000")["rows"]
    return rows


def kill(run: Run, unit: str) -> None:
    os.kill(run.unit_row(unit).pid, signal.SIGKILL)


def test_repaired_records_enter_their_groups_once_whatever_is_killed(run: Run, tmp_path: Path) -> None:
    failed = "seat=0 and status=failed"
    eventually(lambda: len(records(run, failed)) == 3 * TASKS, within_s=WITHIN_S, what="no attempts are left")
    assert len(records(run, "seat=1 and status=running")) == TASKS
    (tmp_path / "down").unlink()
    eventually(
        lambda: run.cli("replay", "--filter", "tool=search", "--dry-run", check=False)[0] == 0,
        within_s=WITHIN_S,
        what="the breaker and the steward answer",
    )
    preview = run.cli("replay", "--filter", "tool=search", "--most", "200", "--then", "fork", "--dry-run")
    assert f"if it works now: {TASKS} records of {TASKS} groups are repaired" in str(preview["effect"]["changes"])
    operation = run.cli("replay", "--filter", "tool=search", "--most", "200", "--then", "fork", "--yes", "--no-wait")[
        "operation"
    ]
    eventually(lambda: records(run, "fork=repair"), within_s=WITHIN_S, what="a fork")
    kill(run, "steward-0")
    kill(run, "sampler-0")
    row = eventually(
        lambda: found if (found := run.rows()[f"op/{operation}"]).state.ended else None,
        within_s=WITHIN_S,
        what="the end of the operation",
    )
    assert row.state == "succeeded", row
    (tmp_path / "go on").touch()
    eventually(
        lambda: len(records(run, "fork=repair and status=scored")) == TASKS, within_s=WITHIN_S, what="all are scored"
    )
    forks = records(run, "fork=repair")
    assert len(forks) == len({one["task"] for one in forks}) == TASKS, "none is forked twice"
    assert {one["turns"] for one in forks} == {4}
    assert len(records(run, "seat=0 and status=excluded")) == TASKS
    tasks = eventually(
        lambda: found if len(found := run.cli("tasks", "list", "--filter", "status=ready")["rows"]) == TASKS else None,
        within_s=WITHIN_S,
        what="the groups are closed",
    )
    assert {task["members"] for task in tasks} == {2}
    story = run.cli("records", "show", forks[0]["id"])["record"]
    base = run.cli("records", "show", story["fork"]["base"])["record"]
    assert (base["status"], base["forks"]) == ("excluded", [forks[0]["id"]])
    assert not run.cli("accounting")["problems"]

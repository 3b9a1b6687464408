"""What a new user gets wrong is on screen and in `status --json` soon, with its exception and its place."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.errors import ExitCode
from tests.e2e.running import Run, running
from tests.small_run import data_plane, write_data
from tests.waiting import eventually

UP_WITHIN_S = 400.0
SEEN_WITHIN_S = 15.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AGENTS = """
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.scorers import register_scorer

@register_loop("forgetful")
class Forgetful(AgentLoop):
    async def run(self, episode):
        await episode.model(episode.first_prompt())

@register_scorer("strict")
async def strict(answer, truth, task):
    return float(answer) / 0
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    # The default times, because libraries of this size start slowly on a busy machine.
    yield from running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=1.0)


def test_broken_tools_agents_and_scorers_are_named_with_their_exception(run: Run) -> None:
    folder = run.file.parent
    write_data(folder)
    (folder / "agents.py").write_text(AGENTS)
    (folder / "search.py").write_text("import sys\nprint('x' * 400, file=sys.stderr)\nimport no_such_module\n")
    parts = data_plane(steps=0)
    shop = parts["environments"]["shop"]
    parts["environments"] = {
        "scored": {**shop, "scorer": "strict", "evaluation": ""},
        "looped": {**shop, "agent": "forgetful", "tools": [], "evaluation": ""},
        "searched": {**shop, "tools": ["search"], "evaluation": ""},
    }
    parts["tools"]["search"] = {"command": ["{python}", "search.py"], "session": "shared"}
    parts["rollout"]["code"] = "agents.py"
    run.config |= parts
    run.write()
    done = run.raw("up", str(run.file), within_s=UP_WITHIN_S)
    began = time.monotonic()
    assert done.returncode == ExitCode.UNHEALTHY, (done.stdout, done.stderr)
    assert "toolbox-0 does not do its whole work, tool server search: " in done.stderr
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.stderr

    def sentences() -> dict[str, str] | None:
        code, report = run.cli("status", "--check", check=False)
        assert code == ExitCode.UNHEALTHY
        found = {row["subject"]: row["sentence"] for row in report["alerts"] if row["rule"] == "unit-problem"}
        wanted = {"toolbox-0/tool-server-search", "sampler-0/scorer-strict", "sampler-0/agent-forgetful"}
        return found if wanted <= found.keys() else None

    found = eventually(sentences, within_s=120, what="alerts about all three")
    took_s = time.monotonic() - began
    assert "No module named 'no_such_module'" in found["toolbox-0/tool-server-search"]
    assert "ZeroDivisionError: float division by zero (agents.py, line 12)" in found["sampler-0/scorer-strict"]
    assert "`run` returned nothing, and must return an Outcome" in found["sampler-0/agent-forgetful"]
    text = run.raw("status").stdout
    assert "degraded" in text
    assert "no_such_module" in text

    began = time.monotonic()
    assert run.cli("down", "--yes", within_s=120)["proven"]
    print(json.dumps({"seen_s": took_s, "down_s": time.monotonic() - began}))
    assert took_s < SEEN_WITHIN_S
    assert time.monotonic() - began < 2 * SEEN_WITHIN_S


def test_up_returns_when_engines_serve_and_down_of_a_training_run_is_quick(run: Run) -> None:
    write_data(run.file.parent)
    run.config |= data_plane(steps=0)
    run.config["tools"]["shop"]["timeout_s"] = 20
    run.write()
    done = run.raw("up", str(run.file), within_s=UP_WITHIN_S)
    assert done.returncode == ExitCode.OK, (done.stdout, done.stderr)
    assert run.unit_row("engine-0").serving.startswith("serving(")
    assert run.run_row().state == "running"
    eventually(lambda: run.unit_row("sampler-0").progress > 0, within_s=60)
    began = time.monotonic()
    assert run.cli("down", "--yes", within_s=120)["proven"]
    print(json.dumps({"down_s": time.monotonic() - began}))
    assert time.monotonic() - began < 25.0

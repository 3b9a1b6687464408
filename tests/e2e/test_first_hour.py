"""The tutorial works as written. Mistakes of a new user are soon on the screen and in `status --json`, with exception
and place."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agentrl.adapters.programs import gymnasium_games
from agentrl.errors import ExitCode
from agentrl.store import run_database
from tests.e2e.running import PYTHON, Run, running
from tests.e2e.terminal import Terminal
from tests.small_run import data_plane, write_data
from tests.waiting import eventually

UP_WITHIN_S = 400.0
SEEN_WITHIN_S = 15.0
STEPS = "10"
"""Fewer than the sixty steps of the tutorial, to save time."""
TUTORIAL = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
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
    began = time.monotonic()
    done = run.raw("up", str(run.file), within_s=UP_WITHIN_S)
    up_s, began = time.monotonic() - began, time.monotonic()
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
    # A busy machine also needed longer for `up`.
    assert took_s < max(SEEN_WITHIN_S, up_s)
    assert time.monotonic() - began < max(2 * SEEN_WITHIN_S, up_s)


CARDS = {
    "code": "gymnasium:Blackjack-v1",
    "rows": 64,
    "held_out": 0,
    "max_turns": 4,
    "epochs": 50,
    "system": "Play.",
    "weight": 3.0,
}


def write_games(file: Path) -> None:
    """Add demonstrations of games in which all actions are equally likely, so that the members of a group differ."""
    draw = random.Random(1)
    games = gymnasium_games.Environment("Blackjack-v1", {}, rows=64, held_out=0)
    with file.open("a") as opened:
        for row in games.rows():
            said = [("system", "Play."), ("user", row["query"])]
            game = games.begin(row)
            while not game.done:
                said.append(("assistant", f"<action>{draw.randint(0, 1)}</action>"))
                said += [("user", text) for text in [game.answer(said[-1][1]).get("message")] if text]
            opened.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in said]}) + "\n")


def commands_of_tutorial() -> Iterator[tuple[str, list[str]]]:
    """The commands of docs/tutorial.md, each with the output that the page shows. One command writes the Python
    file."""
    for language, block in re.findall(r"^```(python|console)\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL):
        if language == "python":
            yield f"cat > sums.py <<'END'\n{block}END", []
            continue
        for given in block.split("$ ")[1:]:
            command, *shown = given.splitlines()
            yield command.replace("step-000060", f"step-0000{STEPS}"), shown


def as_shown(line: str) -> str:
    """A pattern for the line that allows other numbers."""
    return re.sub(r"\d+", r"[\\d.]+", re.escape(line))


def test_the_tutorial_and_a_game_of_another_package_train_after_up_returns_and_down_is_quick(
    tmp_path: Path,
) -> None:
    for run in running(tmp_path, "sums", factor=1.0):
        folder = run.file.parent
        run.dir = folder / "runs" / "sums"
        run.environ |= {
            "AGENTRL_CACHE": str(tmp_path / "cache"),
            "AGENTRL_TRAINING__STEPS": STEPS,
            "PATH": f"{Path(PYTHON).parent}:{run.environ['PATH']}",
        }
        after = {"agentrl init": add_game, "agentrl up --yes": serves, "agentrl wait": game_trained}
        written = ""
        took_s: dict[str, float] = {}
        for command, shown in commands_of_tutorial():
            if command.startswith("agentrl eval") and written:
                run.file.write_text(written)
            if command == "agentrl tui":
                look(run)
                continue
            began = time.monotonic()
            done = subprocess.run(
                command, shell=True, executable="bash", cwd=folder, env=run.environ, capture_output=True, text=True
            )
            took_s[command] = time.monotonic() - began
            assert done.returncode == ExitCode.OK, (command, done.stdout, done.stderr)
            for line in shown:
                assert re.search(as_shown(line), done.stdout), (command, line, done.stdout)
            written = written or (run.file.read_text() if run.file.exists() else "")
            next((do for begin, do in after.items() if command.startswith(begin)), lambda run: None)(run)
        print(json.dumps({"down_s": took_s["agentrl down --yes"]}))
        # A busy machine also needed longer for `up`.
        assert took_s["agentrl down --yes"] < max(25.0, took_s["agentrl up --yes"])
        compared = json.loads(run.raw("eval", "compare", "before.jsonl", "after.jsonl", "--json").stdout)
        assert compared["parts"][0]["tasks"] == 8


def add_game(run: Run) -> None:
    """The run of the page gets an environment of another package."""
    plain = yaml.safe_load(run.file.read_text())
    plain["environments"]["cards"] = CARDS
    run.file.write_text(yaml.safe_dump(plain))
    write_games(run.file.parent / "sums_shown.jsonl")


def serves(run: Run) -> None:
    assert run.unit_row("engine-0").serving.startswith("serving(")
    assert run.run_row().state == "running"
    eventually(lambda: run.unit_row("sampler-0").progress > 0, within_s=60)


def game_trained(run: Run) -> None:
    scores = eventually(lambda: asyncio.run(trained_scores(run, "cards/")), within_s=120, what="games that trained")
    assert scores <= {1.0, 0.0, -1.0}, "the rewards of the game"
    assert len(scores) > 1, "groups without differences train nothing"


def look(run: Run) -> None:
    terminal = Terminal(run)
    try:
        terminal.run("agentrl", "tui")
        terminal.shows("sums", "● running")
        terminal.keys("q")
        terminal.ended(0)
    finally:
        terminal.close()


async def trained_scores(run: Run, prefix: str) -> set[float]:
    """The scores of records that committed steps trained, of one environment."""
    database = await run_database.open_database(run_database.configuration(run.dir), run.state_dir)
    try:
        steps = await database.find("Step", {"status": "committed"}, projection=["records"])
        trained = [record for step in steps for record in step["records"] if record.startswith(prefix)]
        found = await database.find("Record", {"_id": {"$in": trained}}, projection=["score"])
        return {record["score"] for record in found}
    finally:
        await database.close()

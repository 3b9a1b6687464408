"""Loops and scorers in files of a run: the examples of docs/agents.md work, and mistakes in a file are reported with
their place."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agentrl.config import data_plane as data
from agentrl.config import file_checks
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.environments import user_code_guard
from agentrl.environments.rubric import Score
from agentrl.errors import ConfigError
from agentrl.rollout import sampler, scorers, user_code, user_code_faults
from agentrl.rollout.agent_loops import loop_named
from agentrl.rollout.user_code_faults import IN_A_ROW, UNTRIED_S, UserCodeFaults
from tests.rollout.conftest import Stage
from tests.waiting import aeventually

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def configured(folder: Path, code: str, **environment: str) -> RunConfig:
    (folder / "agents.py").write_text(code)
    plain = yaml.safe_load(block("yaml"))
    plain["environments"]["shop"] |= environment
    (folder / "run.yaml").write_text(yaml.safe_dump(plain))
    return load_config(folder / "run.yaml", environ={}).config


async def test_the_example_of_the_page_acts_and_scores(stage: Stage, tmp_path: Path) -> None:
    stage.config = configured(tmp_path, block("python"))
    user_code.load(stage.config)
    assert loop_named("think_twice").resumable
    reply = iter(["<answer>3</answer>", "<answer>2.5</answer>"])
    engine = await stage.engine(lambda prompt: next(reply))
    await stage.task(n=1, answer="3")
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.score, record.turns) == ("answered", 0.5, 2)
    assert engine.prompts[1].ids[: len(engine.prompts[0].ids)] == engine.prompts[0].ids
    assert engine.prompts[1].answers[-1] == "Are you sure?"
    (data,) = await stage.data()
    assert data.trained_tokens == record.generated_tokens, "both turns, and nothing that the loop said"


@pytest.mark.parametrize(
    ("added", "environment", "sentence"),
    [
        (
            "",
            {"agent": "think_twise"},
            r"shop\.agent: agents\.py registers no agent 'think_twise'; did you mean think_twice",
        ),
        ("", {"scorer": "exakt"}, r"environments\.shop\.scorer: .*did you mean exact"),
        ("import numpy\n", {"agent": "think_twise"}, ""),
        ("from .others import *\n", {"agent": "think_twise"}, ""),
        ("NAME = 'think_twise'\nregister_loop(NAME)(ThinkTwice)\n", {"agent": "think_twise"}, ""),
        ("put = register_loop\nput('think_twise')(ThinkTwice)\n", {"agent": "think_twise"}, ""),
        ("from agentrl.rollout.agent_loops import register_loop as put\n", {"agent": "think_twise"}, ""),
    ],
)
def test_names_that_no_file_registers_are_found_without_running_it(
    tmp_path: Path, added: str, environment: dict[str, str], sentence: str
) -> None:
    config = configured(tmp_path, block("python") + added, **environment)
    found = [problem.message for problem in file_checks.problems_of(config)]
    assert len(found) == bool(sentence), found
    assert not found or re.search(sentence, found[0])


@pytest.mark.parametrize(
    ("code", "environment", "sentence"),
    [
        ("x = 1\ny = undefined\n", {}, r"agents\.py, line 2: NameError: name 'undefined'"),
        (
            "from agentrl.rollout.agent_loops import register_loop\n@register_loop('mine')\nclass Mine:\n    pass\n",
            {},
            "The agent loop 'mine' is no class derived from AgentLoop",
        ),
        ("def f(:\n", {}, r"agents\.py, line 1, column \d+: SyntaxError: [^(]*\.$"),
        ("", {"agent": "nobody", "scorer": "exact"}, r"environments\.shop: There is no agent loop 'nobody'"),
        ("", {"agent": "tool_agent", "scorer": "nobody"}, r"environments\.shop: There is no scorer 'nobody'"),
        (
            'from agentrl.rollout.agent_loops import AgentLoop, register_loop\n\n\n@register_loop("tool_agent")\n'
            "class Mine(AgentLoop): ...\n",
            {},
            "There are two agent loops 'tool_agent'",
        ),
    ],
    ids=["error", "class", "syntax", "loop", "scorer", "twice"],
)
def test_mistakes_in_a_file_are_reported_before_an_episode_begins(
    tmp_path: Path, code: str, environment: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        user_code.load(configured(tmp_path, code, **environment))


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"scorer": "exakt"}, r"train\.jsonl line 2: There is no scorer 'exakt'"),
        ({"agent_name": "nobody"}, r"train\.jsonl line 2: There is no agent loop 'nobody'"),
    ],
)
def test_an_unregistered_name_in_a_row_is_reported_with_its_line(
    tmp_path: Path, row: dict[str, str], sentence: str
) -> None:
    rows = [{"query": "1 + 1?", "answer": "2", "scorer": "math"}, {"query": "2 + 2?", "answer": "4", **row}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = configured(tmp_path, "", agent="tool_agent", scorer="exact")
    with pytest.raises(ConfigError, match=sentence):
        user_code.load(config)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    config = configured(tmp_path, "")
    (tmp_path / "agents.py").unlink()
    with pytest.raises(ConfigError, match=rf"there is no file {tmp_path}/agents\.py"):
        user_code.load(config)


def test_the_configuration_knows_what_is_shipped() -> None:
    """This runs in a separate process, because other tests have registered loops and scorers in this one."""
    program = (
        "import json\nfrom agentrl.rollout import agent_loops as loops, sampler, user_code, scorers\n"
        "print(json.dumps([sorted(loops.known()), sorted(scorers._registry)]))"
    )
    seen = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, timeout=120).stdout
    assert json.loads(seen) == [sorted(data.SHIPPED_AGENTS), sorted(data.SHIPPED_SCORERS)]


@pytest.mark.parametrize(
    ("key", "named", "sentence"),
    [
        ("agent", "tol_agent", r"environments\.shop\.agent names 'tol_agent', .*did you mean tool_agent\?"),
        ("scorer", "judge", r"environments\.shop\.scorer names 'judge', .*known are: exact, math\."),
    ],
)
def test_without_code_a_name_that_is_not_shipped_is_a_mistake_of_the_file(
    tmp_path: Path, key: str, named: str, sentence: str
) -> None:
    plain = {"name": "a", "model": {"build": "tiny"}, "environments": {"shop": {"dataset": "x.jsonl", key: named}}}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(plain))
    with pytest.raises(ConfigError, match=sentence):
        load_config(file, environ={})
    file.write_text(yaml.safe_dump({**plain, "rollout": {"code": ["mine.py"]}}))
    load_config(file, environ={})


BROKEN = """
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.single_turn import SingleTurnAgent
from agentrl.rollout.scorers import register_scorer

@register_loop("forgetful")
class Forgetful(AgentLoop):
    async def run(self, episode):
        await episode.model(episode.first_prompt())

@register_loop("broken")
class Broken(AgentLoop):
    async def run(self, episode):
        return {}["answer"]

@register_loop("unable")
class Unable(SingleTurnAgent):
    async def evaluate_record(self, texts, task):
        return {}["score"]

@register_scorer("strict")
async def strict(answer, truth, task):
    return float(answer) - float("wrong")

@register_scorer("silent")
async def silent(answer, truth, task):
    pass
"""


async def test_code_that_always_fails_is_reported_with_its_exception(stage: Stage, tmp_path: Path) -> None:
    stage.config = configured(tmp_path, BROKEN, agent="broken", scorer="strict")
    user_code.load(stage.config)
    await stage.engine(lambda heard: "<answer>3</answer>")
    for agent, scorer in (
        ("forgetful", "exact"),
        ("broken", "exact"),
        ("unable", "exact"),
        *(("single_turn_agent", x) for x in ("strict", "silent")),
    ):
        await stage.task(agent, n=3, agent_name=agent, scorer=scorer)
    async with stage.sampler():
        await aeventually(lambda: len(stage.faults) == 5)
    assert stage.faults == {
        "agent forgetful": "`run` returned nothing, and must return an Outcome",
        "agent broken": "KeyError: 'answer' (agents.py, line 14)",
        "agent unable (evaluate_record)": "`evaluate_record` of unable failed: KeyError: 'score' (agents.py, line 19).",
        "scorer strict": "The scorer strict failed: ValueError: could not convert string to float: 'wrong' "
        "(agents.py, line 23).",
        "scorer silent": "The scorer silent returned nothing; a score is a number.",
    }


CANCELS = """
import asyncio
from pathlib import Path
from agentrl.rollout.scorers import register_scorer

@register_scorer("cancels")
async def cancels(answer, truth, task):
    if not Path(__file__).with_name("mended").exists():
        raise asyncio.CancelledError
    return 1.0
"""


async def test_a_scorer_that_raises_cancelled_error_is_called_again_like_any_that_fails(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "RESCORE_EVERY_S", 0.1)
    stage.config = configured(tmp_path, CANCELS, agent="single_turn_agent", scorer="cancels")
    user_code.load(stage.config)
    await stage.engine(lambda heard: "<answer>3</answer>")
    await stage.task("any", n=1, agent_name="single_turn_agent", scorer="cancels")
    why = "The scorer cancels failed: it raised CancelledError although nothing cancelled it (agents.py, line 9)."
    async with stage.sampler():
        record = await stage.one()
        assert (record.status, record.error) == ("unscored", why)
        await aeventually(lambda: stage.faults.get("scorer cancels") == why, what="it is called again and again")
        (tmp_path / "mended").touch()

        async def scored() -> bool:
            return (await stage.one()).score == 1.0

        # The report is withdrawn when the scorer returns, which is before the score is stored.
        await aeventually(scored, what="the score of the mended scorer")
        assert stage.faults == {"scorer cancels": ""}


def test_parts_of_a_score_can_be_written_and_are_few() -> None:
    (name,) = scorers.as_score(Score(1.0, {"\ud800" + 5_000 * "x": 1.0})).parts
    assert name.encode() == b"?" + (scorers.LONGEST_NAME - 1) * b"x"
    with pytest.raises(ValueError, match="a score of 1001 parts; it may have 1000"):
        scorers.as_score(Score(1.0, dict.fromkeys(map(str, range(1001)), 1.0)))


SLOW = """
import asyncio
from pathlib import Path
from agentrl.rollout.scorers import register_scorer

@register_scorer("slow")
async def slow(answer, truth, task):
    while not Path(__file__).with_name("go").exists():
        await asyncio.sleep(0.01)
    return 1.0
"""


async def test_slow_scorer_is_a_wait_of_its_sampler(stage: Stage, tmp_path: Path) -> None:
    stage.config = configured(tmp_path, SLOW, agent="single_turn_agent", scorer="slow")
    user_code.load(stage.config)
    await stage.engine(lambda heard: "<answer>3</answer>")
    task = await stage.task("any", n=1, agent_name="single_turn_agent", scorer="slow")
    async with stage.sampler():
        wait = (f"the score of {task.id}#r1.s0.a1", "scorer slow")
        await aeventually(lambda: wait in stage.waits, what="the wait for the scorer")
        (tmp_path / "go").touch()
        assert (await stage.one()).score == 1.0


def test_code_that_fails_now_and_then_is_not_reported() -> None:
    reported: list[tuple[str, str]] = []
    faults = UserCodeFaults(lambda of, why: reported.append((of, why)))
    for _ in range(IN_A_ROW):
        faults.failed("scorer s", "no")
        faults.failed("scorer s", "no")
        faults.worked("scorer s")
    assert reported == []
    for _ in range(IN_A_ROW):
        faults.failed("scorer s", "no")
    faults.worked("scorer s")
    assert reported == [("scorer s", "no"), ("scorer s", "")]


def test_code_that_is_not_called_any_more_is_not_reported_any_more() -> None:
    reported: list[tuple[str, str]] = []
    now = [0.0]
    faults = UserCodeFaults(lambda of, why: reported.append((of, why)), clock=lambda: now[0])
    for of in ("agent a", "scorer s", "scorer rare"):
        for _ in range(IN_A_ROW - (of == "scorer rare")):
            faults.failed(of, "no")
    reported.clear()
    now[0] = UNTRIED_S - 1
    faults.forget_untried(())
    assert reported == []
    now[0] = UNTRIED_S
    faults.forget_untried({"agent a"})
    assert reported == [("scorer s", "")], "an episode of the agent is running"
    faults.failed("scorer rare", "no")
    assert reported == [("scorer s", "")], "the count starts again"
    now[0] = 2 * UNTRIED_S
    faults.forget_untried(())
    assert reported[1:] == [("agent a", "")]


FAILING = """
from agentrl.rollout.agent_loops import AgentLoop, register_loop

@register_loop("failing")
class Failing(AgentLoop):
    async def run(self, episode):
        return {}["answer"]
"""


async def test_sampler_withdraws_a_report_of_code_that_is_not_called(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "RESCORE_EVERY_S", 0.1)
    stage.config = configured(tmp_path, FAILING, agent="failing", scorer="exact")
    user_code.load(stage.config)
    await stage.engine(lambda heard: "<answer>3</answer>")
    await stage.task("x", n=3, agent_name="failing")
    async with stage.sampler():
        await aeventually(lambda: "KeyError" in stage.faults.get("agent failing", ""))
        monkeypatch.setattr(user_code_faults, "UNTRIED_S", 0.1)
        await aeventually(lambda: stage.faults["agent failing"] == "")


HOSTILE = """
import asyncio, os, sys
from agentrl.policies.outcomes import Outcome
from agentrl.rollout.agent_loops import AgentLoop, register_loop

def bad(function):
    class Bad(AgentLoop):
        async def run(self, episode):
            await episode.model(episode.first_prompt())
            return await function()
    register_loop(function.__name__)(Bad)

@bad
async def endless():
    while True: pass

@bad
async def exits():
    os._exit(3)

@bad
async def leaves():
    sys.exit(3)

@bad
async def leaves_in_a_task():
    await asyncio.create_task(leaves())

async def leaves():
    sys.exit(4)

@bad
async def wrong():
    return 7

@bad
async def leaks():
    asyncio.create_task(asyncio.sleep(1000))
    return Outcome.ANSWERED

@bad
async def fine():
    await asyncio.sleep(0.1)
    return Outcome.ANSWERED

@bad
async def cancels():
    task = asyncio.create_task(asyncio.sleep(1000))
    task.cancel()
    await task
"""


async def test_no_code_of_a_user_stops_the_episodes_of_others(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_code_guard, "BLOCKED_AT_MOST_S", 1.5)
    stage.config = configured(tmp_path, HOSTILE, agent="fine", scorer="exact")
    user_code.load(stage.config)
    await stage.engine(lambda prompt: "<answer>3</answer>")
    agents = ("endless", "exits", "leaves", "leaves_in_a_task", "wrong", "leaks", "fine", "cancels")
    tasks = {(await stage.task(agent, n=2, agent_name=agent, scorer="exact")).id: agent for agent in agents}
    async with stage.sampler() as sampler:
        records = await stage.ended(count=2 * len(agents))
        await aeventually(lambda: sampler.faults.blocked_s >= 2 * 1.5, what="both blocks are counted")
        await aeventually(lambda: sampler.faults.left_behind == 2, what="both tasks are counted")
        leaks = "it ended before 1 task that it had begun (agents.py, line 38)"
        await aeventually(lambda: stage.faults["agent leaks: tasks"] == leaks, what="the report of the tasks")

        def blocks_are_reported() -> bool:
            return any("it held up all episodes for" in why and "line 15" in why for why in stage.faults.values())

        await aeventually(blocks_are_reported, what="the report of the blocks")
    ended = {(tasks[one.task], one.outcome, one.error) for one in records}
    assert ended == {
        ("endless", "loop_failed", "it blocks the event loop for more than 1.5 s (agents.py, line 15)"),
        ("exits", "loop_failed", "it called os._exit(3) (agents.py, line 19)"),
        ("leaves", "loop_failed", "SystemExit: 3 (agents.py, line 23)"),
        ("leaves_in_a_task", "loop_failed", "it raised SystemExit (agents.py, line 27)"),
        ("wrong", "loop_failed", "`run` returned 7, and must return an Outcome"),
        ("cancels", "loop_failed", "it raised CancelledError although nothing cancelled it (agents.py, line 50)"),
        ("leaks", "answered", ""),
        ("fine", "answered", ""),
    }
    assert {tasks[one.task] for one in await stage.data()} == {"leaks", "fine"}, "what failed trains nothing"

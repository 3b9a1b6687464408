"""Environments of other packages named in a run file, and episodes of them in a sampler."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import psutil
import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.rollout import agent_loops, scorers, user_code
from agentrl.store import datasets
from tests.rollout.actors import Prompt
from tests.rollout.conftest import Stage

RUN = "name: x\nmodel: {build: tiny}\nenvironments:\n"


@pytest.fixture(autouse=True)
def _own_cache_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(agent_loops, "_registry", dict(agent_loops._registry))
    monkeypatch.setattr(scorers, "_registry", dict(scorers._registry))


def written(folder: Path, environments: str) -> Path:
    (folder / "run.yaml").write_text(RUN + environments)
    return folder / "run.yaml"


def test_a_word_becomes_keys_of_the_environment_and_a_dataset_that_is_made_once(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "  cards: {code: 'gymnasium:Blackjack-v1', rows: 40, held_out: 8, max_turns: 5}\n"
        "  sums: reasoning-gym:basic_arithmetic\n  web: {code: 'mcp:http://127.0.0.1:9/mcp', dataset: web.jsonl}\n",
    )
    config = load_config(file, environ={}).config
    cards, sums, web = (config.environments[name] for name in ("cards", "sums", "web"))
    assert (cards.agent, cards.scorer, cards.answer_schema, cards.max_turns) == ("cards", "cards", "action", 5)
    assert (sums.max_turns, sums.answer_schema) == (1, "answer")
    assert (web.tools, web.scorer, config.tools["web"].url) == (("web",), "exact", "http://127.0.0.1:9/mcp")
    rows = datasets.read(cards.dataset)
    assert len(datasets.split_of(rows, "train", default="")) == 40
    held_out = datasets.split_of(rows, "eval", default="")
    assert not {row.query for row in held_out} & {row.query for row in rows if row.split == "train"}
    written_at = Path(cards.dataset).stat().st_mtime_ns
    assert load_config(file, environ={}).config == config
    assert Path(cards.dataset).stat().st_mtime_ns == written_at


@pytest.mark.parametrize(
    ("environments", "sentence"),
    [
        ("  a: gymnasium:NoGame-v0\n", r"run\.yaml:4: gymnasium:NoGame-v0: NameNotFound"),
        ("  a: {code: 'gymnasium:Blackjack-v1', rows: many}\n", "rows"),
        ("  a: {code: 'gymnasium:Blackjack-v1', arguments: {sab: 1, no: 2}}\n", "unexpected keyword argument 'no'"),
        (
            "  a: {code: 'gymnasium:Blackjack-v1', context: {strategy: discard_all_with_summary}}\n",
            "the package would read as an action",
        ),
        ("  a: harbor:nowhere\n", r"run\.yaml:4: harbor:.*nowhere: there is no such directory"),
        ("  a: {dataset: d.jsonl, scorer: agentcpm}\n", r"asks the models of rollout\.agent_config: name it"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_line(tmp_path: Path, environments: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_config(written(tmp_path, environments), environ={})


async def test_an_episode_of_a_game_is_played_and_scored_by_the_package(stage: Stage, tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "  shop: {code: 'gymnasium:FrozenLake-v1', arguments: {is_slippery: false}, rows: 2, max_turns: 8,\n"
        "         sandbox: process}\n",
    )
    stage.config = load_config(file, environ={}).config
    user_code.load(stage.config)
    row = datasets.read(stage.config.environments["shop"].dataset)[0]
    way = ["down", *(f"<action>{action}</action>" for action in (1, 1, 2, 2, 1, 2))]
    said = iter(way)
    beside: set[str] = set()

    def says(prompt: Prompt) -> str:
        beside.update(child.name() for child in psutil.Process().children())
        return next(said)

    engine = await stage.engine(says)
    await stage.task(row.query, n=1, extra=row.extra)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.turns, record.score) == ("answered", 7, 1.0), record.error
    assert "bwrap" in beside
    assert record.score_parts == {"reward": 1.0, "steps": 6.0, "no_action": 1.0, "terminated": 1.0}
    assert engine.prompts[1].answers[-1].startswith("That is no action. Write <action>NUMBER</action>")
    assert "[F]HFH" in engine.prompts[2].answers[-1].splitlines()
    (data,) = await stage.data()
    assert data.trained_tokens == record.generated_tokens
    game = gymnasium.make("FrozenLake-v1", is_slippery=False)
    game.reset(seed=row.extra["seed"])
    assert sum(float(game.step(action)[1]) for action in (1, 1, 2, 2, 1, 2)) == record.score


async def test_a_game_that_exits_fails_its_episode_and_no_other(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    file = written(tmp_path, "  shop: {code: 'gymnasium:tests.adapters.planted:Counting-v0', rows: 2, held_out: 0}\n")
    stage.config = load_config(file, environ={}).config
    user_code.load(stage.config)
    said = iter([2, 1, 1, 1])
    await stage.engine(lambda prompt: f"<action>{next(said)}</action>")
    await stage.task("count", n=1, extra={"seed": 0})
    async with stage.sampler():
        first = await stage.one()
        assert (first.outcome, first.status) == ("loop_failed", "failed")
        assert "its program ended with 7" in first.error
        await stage.task("count", n=1, extra={"seed": 1})
        _, second = await stage.ended(count=2)
    assert (second.outcome, second.score) == ("answered", 3.0), second.error

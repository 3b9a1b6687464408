"""Sparklines of the demo, and the state of a run without a store."""

from __future__ import annotations

from pathlib import Path

from agentrl.config.paths import IN_FORCE
from agentrl.config.run import RunConfig
from assets.training_state import BLOCKS, Figures, RunStore, sparkline


def test_sparkline_has_a_block_per_reward() -> None:
    assert sparkline(()) == ""
    assert sparkline((0.0, 0.5, 1.0)) == f"{BLOCKS[0]}{BLOCKS[4]}{BLOCKS[7]}"
    assert sparkline((-3.0, 7.0)) == f"{BLOCKS[0]}{BLOCKS[7]}", "scores may have any value"


def test_many_rewards_share_blocks() -> None:
    drawn = sparkline((0.0,) * 59 + (1.0,), width=30)
    assert len(drawn) == 30
    assert drawn[-1] == BLOCKS[4]


def test_run_without_a_store_has_an_empty_state(tmp_path: Path) -> None:
    books = RunStore(tmp_path / "run", tmp_path / "state")
    assert books.look() == Figures()
    books.close()


def test_state_of_a_run_is_read_from_its_store(mongo_url: str, tmp_path: Path) -> None:
    run_dir, state_dir = tmp_path / "run", tmp_path / "state"
    (state_dir / "mongo").mkdir(parents=True)
    (state_dir / "mongo" / "url").write_text(mongo_url)
    (run_dir / IN_FORCE).parent.mkdir(parents=True)
    (run_dir / IN_FORCE).write_text(RunConfig(name="training-state", dir=str(run_dir)).model_dump_json())
    books = RunStore(run_dir, state_dir)
    try:
        assert not books.has_claimed("sampler-0.1")
        assert books.trained() == (0, 0)
        assert books.look() == Figures()
    finally:
        books.close()

"""What may be changed about admission while a run lives; and the page that shows the knobs of every role."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import knob_table
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.policies.admission_capacity import Counts
from agentrl.policies.advantages import Overlong
from agentrl.policies.curriculum import Until, Window
from agentrl.steward.settings import StewardSettings, from_config
from agentrl.steward.steward_knobs import StewardKnobs
from agentrl.store.database import Database
from agentrl.unit.unit import Unit, UnitParts
from agentrl.unit.unit_environment import UnitEnvironment
from tests.steward.test_rounds import full_round, settings, steward

PAGE = Path(__file__).parents[2] / "docs" / "knobs.md"


class Bench:
    """Knobs over the settings of this object, with 30 records under way."""

    def __init__(self, folder: Path, known: dict[str, int] | None = None, running: int = 30) -> None:
        self.settings = settings(n=8, max_in_flight=64)
        environment = UnitEnvironment(unit="steward-0", group="steward", slot=0, incarnation=1, run_dir=folder)
        self.unit = Unit(UnitParts(environment))
        for name, value in (known or {}).items():
            self.unit._knobs.offer(name, value)
        config = RunConfig.model_validate(
            {
                "name": "bench",
                "model": {"build": "tiny"},
                "environments": {"one": {"dataset": "train.jsonl"}},
                "sampling": {"n": 8},
                "rollout": {"max_in_flight": 64},
                "retention": {"disk_reserve": 0},
            }
        )
        counts = Counts(running=running)
        StewardKnobs(self.unit, config, lambda: self.settings, counts=lambda: counts, on_change=self.follow)

    def follow(self, changed: StewardSettings) -> None:
        self.settings = changed

    def preview(self, name: str, value: float) -> str:
        return self.unit._knobs.preview(name, value).sentence


def test_previews_say_in_numbers_what_a_value_does(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert "none are admitted until 14 of them have ended" in bench.preview("max_in_flight", 16)
    assert "up to 70 more may be" in bench.preview("max_in_flight", 100)
    assert "a step up to 32 records; 30 records under way keep" in bench.preview("n", 16)
    assert bench.settings == settings(n=8, max_in_flight=64), "a preview changes nothing"


def test_a_group_that_could_never_be_admitted_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(ConfigError, match="A group of 65 can never be admitted: only 64 records"):
        bench.preview("n", 65)
    with pytest.raises(ConfigError, match="A group of 8 can never be admitted: only 7 records"):
        bench.preview("max_in_flight", 7)


def test_a_value_holds_for_what_is_admitted_next(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.unit._knobs.offer("n", 4)
    bench.unit._knobs.offer("temperature", 0.7)
    assert (bench.settings.n, bench.settings.sampling()["temperature"]) == (4, 0.7)


def test_what_was_set_before_a_restart_comes_back_together(tmp_path: Path) -> None:
    """One after the other they would contradict the file: 4 under way are fewer than its groups of 8."""
    bench = Bench(tmp_path, {"n": 4, "max_in_flight": 4})
    assert (bench.settings.n, bench.settings.max_in_flight) == (4, 4)


def test_knobs_of_an_environment_and_a_stage_hold_together(tmp_path: Path) -> None:
    plain = {
        "name": "bench",
        "model": {"build": "tiny"},
        "environments": {"one": {"dataset": "train.jsonl", "difficulty": {"least": 0.1, "most": 0.5}}},
        "training": {"overlong": {"begins": 10, "full": 20}},
        "curriculum": [
            {"mix": {"one": 1}, "until": {"environment": "one", "score": 0.7}},
            {"mix": {"one": 1}},
        ],
    }
    config = RunConfig.model_validate(plain)
    now = [from_config(config)]
    unit = Unit(UnitParts(UnitEnvironment(unit="steward-0", group="steward", slot=0, incarnation=1, run_dir=tmp_path)))
    # Set before a restart: one after the other they would contradict the file.
    unit._knobs.offer("one.difficulty_least", 0.6)
    unit._knobs.offer("one.difficulty_most", 0.9)
    StewardKnobs(unit, config, lambda: now[-1], counts=Counts, on_change=now.append)
    assert now[-1].environments["one"].window == Window(0.6, 0.9)
    unit._knobs.offer("stage_1.score", 0.8)
    unit._knobs.offer("overlong_penalty", 0.5)
    assert now[-1].stages[0].until == Until("one", 0.8, 32)
    assert now[-1].group_rule.overlong == Overlong(10, 20, 0.5)
    with pytest.raises(ConfigError, match=r"No row has a mean score from 0\.95 to 0\.9"):
        unit._knobs.preview("one.difficulty_least", 0.95)
    assert "queued from now on" in unit._knobs.preview("one.difficulty_least", 0.2).sentence
    assert "at their admission" in unit._knobs.preview("min_range", 0.2).sentence


async def test_a_paused_steward_admits_nothing_and_keeps_house(db: Database) -> None:
    made = steward(db)
    await made.start()
    made.paused = True
    await full_round(made)
    assert await db.count("Record", {}) == 0
    assert await db.count("Task", {}) == 100, "a paused steward still fills the queue"
    assert "paused" in (await made.round()).sentence()
    made.paused = False
    await full_round(made)
    assert await db.count("Record", {}) == 16


def test_the_page_shows_the_knobs_that_there_are() -> None:
    printed = knob_table.table()
    assert printed.count("\n") > 20
    assert printed in PAGE.read_text(), "put the output of `python -m agentrl.config.knob_table` into docs/knobs.md"


def test_one_record_is_in_the_singular(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.preview("max_tokens", 1_000_000).startswith("max_tokens becomes 1000000 for what is admitted")
    bench = Bench(tmp_path, running=1)
    assert "1 record is under way; up to 99 more may be" in bench.preview("max_in_flight", 100)
    assert "1 record under way keeps what" in bench.preview("n", 16)

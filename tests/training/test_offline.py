"""Training without a run: recorded batches give the bits of the run, and a job continues where it was interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from agentrl.config.loss_keys import MaskSettings
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, ExitCode
from agentrl.store import publications, steps
from agentrl.store.database import Database
from agentrl.store.documents import Step
from agentrl.training import batch_dumps, offline
from agentrl.training.checkpoints import OPTIMIZER_FILE, WEIGHTS_FILE
from agentrl.training.offline import StepReport
from tests.training.rollouts import after, closed_groups, configuration, trainer
from tests.training.test_learning import CONVERSATION

STEPS = 5
SCHEDULE = {"kind": "linear", "rise": 3, "steps": 5, "lowest": 0.25}


class Reports:
    """Collects the reports of steps, and ends the job after `until`."""

    def __init__(self, until: int = 10**9) -> None:
        self.received: list[StepReport] = []
        self._until = until

    def __call__(self, done: StepReport) -> bool:
        self.received.append(done)
        return done.step < self._until

    @property
    def losses(self) -> list[float]:
        return [one.metrics["loss"] for one in self.received]


def same_files(one: Path, other: Path, *names: str) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


@pytest.fixture
async def recorded(
    request: pytest.FixtureRequest, db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunConfig:
    """A run of five steps that recorded the last four; its learning rate was changed in the middle. The parameter:
    optimizer steps of each."""
    cut = getattr(request, "param", 1)
    config = configuration(
        tmp_path, tiny, steps=STEPS, dumps=4, checkpoint_every=2, optimizer_steps=cut, schedule=SCHEDULE
    )
    await closed_groups(db, 2 * STEPS)
    mine = trainer(db, config, tmp_path)

    def change() -> None:
        if mine.state.step == 3:
            mine._unit._knobs.offer("learning_rate", 3e-3)

    after(monkeypatch, steps, "commit", change)
    await mine.run()
    return config.model_copy(update={"dir": str(tmp_path)})


async def losses_of(db: Database, after: int) -> list[float]:
    found = await db.find("Step", {"status": "committed", "step": {"$gt": after}}, sort=[("step", 1)])
    return [step["metrics"]["loss"] for step in found]


@pytest.mark.parametrize("recorded", [1, 2], indirect=True)
async def test_recorded_batches_train_again_to_the_same_bits(db: Database, recorded: RunConfig, tmp_path: Path) -> None:
    made = await db.find_one("Step", {"status": "committed"})
    assert made is not None
    assert made["metrics"]["optimizer_steps"] == recorded.training.optimizer_steps
    # What the run went by is in the files: another number in the run file changes nothing.
    training = recorded.training.model_copy(update={"optimizer_steps": 3 - recorded.training.optimizer_steps})
    recorded = recorded.model_copy(update={"training": training})
    files = sorted(path.name for path in (tmp_path / "dumps").iterdir())
    assert files == [f"step-{step:06d}.msgpack" for step in (2, 3, 4, 5)], "bounded: the newest four"
    reports = Reports()
    # The oldest checkpoint that leads on to a recorded batch is that of step 2.
    done = offline.train_recorded(
        recorded, tmp_path / "dumps", start=None, out=tmp_path / "again", as_configured=False, on_step=reports
    )
    assert done.start.name.startswith("step-000002.")
    assert reports.losses == await losses_of(db, 2)
    newest = await publications.newest(db)
    assert newest is not None
    assert same_files(tmp_path / "again", tmp_path / newest.path, WEIGHTS_FILE)
    (last,) = (tmp_path / "checkpoints").glob("step-000005.*")
    assert same_files(tmp_path / "again", last, WEIGHTS_FILE, OPTIMIZER_FILE)


async def test_training_resumes_from_any_checkpoint_to_the_same_bits(
    db: Database, recorded: RunConfig, tmp_path: Path
) -> None:
    place = tmp_path / "dumps"
    half, whole = tmp_path / "half", tmp_path / "whole"
    offline.train_recorded(recorded, place, start=None, out=half, as_configured=False, on_step=Reports(until=4))
    rest = Reports()
    offline.train_recorded(recorded, place, start=half, out=whole, as_configured=False, on_step=rest)
    assert [one.step for one in rest.received] == [5]
    (last,) = (tmp_path / "checkpoints").glob("step-000005.*")
    assert same_files(whole, last, WEIGHTS_FILE, OPTIMIZER_FILE)


async def test_one_batch_may_be_tried_with_the_settings_of_the_file(recorded: RunConfig, tmp_path: Path) -> None:
    (start,) = (tmp_path / "checkpoints").glob("step-000003.*")
    one, other = Reports(), Reports()
    file = tmp_path / "dumps" / "step-000004.msgpack"
    tight = recorded.training.model_copy(update={"clip_low": 0.0, "clip_high": 0.0})
    changed = recorded.model_copy(update={"training": tight})
    for reports, config, own in ((one, changed, False), (other, changed, True)):
        offline.train_recorded(config, file, start=start, out=None, as_configured=own, on_step=reports)
    assert one.received[0].metrics["clipped_share"] < other.received[0].metrics["clipped_share"]
    masks = MaskSettings.model_validate({"token": [0.9, 1.1]})
    masked = recorded.model_copy(update={"training": recorded.training.model_copy(update={"masks": masks})})
    tried = Reports()
    offline.train_recorded(masked, file, start=start, out=None, as_configured=True, on_step=tried)
    assert 0 < tried.received[0].metrics["term_token_mask"] <= 1, "what a mask would take out"
    assert "term_token_mask" not in one.received[0].metrics


async def test_a_step_has_the_rate_of_the_knob_times_the_share_of_the_schedule(
    db: Database, recorded: RunConfig, tmp_path: Path
) -> None:
    rates = [one.learning_rate for one in batch_dumps.read(tmp_path / "dumps")]
    expected = [1e-3 * 2 / 3, 1e-3, 3e-3 * 0.625, 3e-3 * 0.25]
    assert rates == pytest.approx(expected, rel=1e-12)
    made = await db.find("Step", {"status": "committed", "step": {"$gt": 1}}, sort=[("step", 1)])
    assert [step["metrics"]["learning_rate"] for step in made] == pytest.approx(expected, rel=1e-12)


async def test_dumps_that_cannot_be_trained_are_refused(recorded: RunConfig, tmp_path: Path) -> None:
    def again(place: Path, start: Path | None = None) -> None:
        offline.train_recorded(recorded, place, start=start, out=None, as_configured=False, on_step=Reports())

    with pytest.raises(ConfigError, match="has no recorded batches"):
        again(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="neither a model nor a checkpoint"):
        again(tmp_path / "dumps", tmp_path / "dumps")
    (tmp_path / "dumps" / "step-000004.msgpack").unlink()
    with pytest.raises(ConfigError, match="Step 4 was not recorded, but step 5 was"):
        again(tmp_path / "dumps")
    (tmp_path / "dumps" / "step-000003.msgpack").write_bytes(b"rubbish")
    with pytest.raises(ConfigError, match=r"step-000003\.msgpack is not a recorded batch"):
        again(tmp_path / "dumps")


async def test_numbers_of_released_leases_are_not_a_gap(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(tmp_path, tiny, steps=3, dumps=9, checkpoint_every=100)
    await closed_groups(db, 6)
    lease = steps.lease

    async def lost_at_two(database: Database, step: Step) -> Step | None:
        leased = await lease(database, step)
        if step.step != 2 or leased is None:
            return leased
        await steps.release(database, leased.id, "none of its tasks could be leased")
        return None

    monkeypatch.setattr(steps, "lease", lost_at_two)
    await trainer(db, config, tmp_path).run()
    place, own = tmp_path / "dumps", config.model_copy(update={"dir": str(tmp_path)})
    assert [(one.after, one.batch.step) for one in batch_dumps.read(place)] == [(0, 1), (1, 3), (3, 4)]
    start = tmp_path / publications.path_of(1)
    out = tmp_path / "again"
    offline.train_recorded(own, place, start=start, out=out, as_configured=False, on_step=Reports())
    assert same_files(out, tmp_path / publications.path_of(4), WEIGHTS_FILE)
    (place / "step-000003.msgpack").unlink()
    with pytest.raises(ConfigError, match="Step 3 was not recorded, but step 4 was"):
        offline.train_recorded(own, place, start=start, out=out, as_configured=False, on_step=Reports())


def test_dumps_of_steps_that_were_rolled_back_are_removed(tmp_path: Path) -> None:
    dumps = batch_dumps.BatchDumps(tmp_path, 3)
    for step in (8, 9, 10):
        (tmp_path / f"step-{step:06d}.msgpack").touch()
    dumps.forget_after(8)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000008.msgpack"]


# ---- demonstrations ----


@pytest.fixture
def demonstrated(tiny: Path, tmp_path: Path) -> dict[str, Any]:
    text = json.dumps(CONVERSATION)
    lines = [text.replace("apples", fruit) for fruit in ("apples", "pears", "plums", "figs", "kiwis")]
    (tmp_path / "shown.jsonl").write_text("\n".join(lines))
    training = {
        "loss": "sft",
        "demonstrations": str(tmp_path / "shown.jsonl"),
        "batch": 2,
        "steps": 9,
        "learning_rate": 5e-3,
        "checkpoint_every": 4,
    }
    return {"name": "shown", "dir": str(tmp_path / "run"), "model": {"path": str(tiny)}, "training": training}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_demonstrations_are_learned_and_an_interrupted_job_ends_with_the_same_bits(
    demonstrated: dict[str, Any], tmp_path: Path, optimizer: str
) -> None:
    demonstrated["training"]["optimizer"] = optimizer
    config = RunConfig.model_validate(demonstrated)
    at_once = Reports()
    offline.train_supervised(config, out=tmp_path / "at once", on_step=at_once)
    assert [one.step for one in at_once.received] == list(range(1, 10))
    assert at_once.losses[-1] < 0.7 * at_once.losses[0]
    for until in (3, 7, 10**9):
        offline.train_supervised(config, out=tmp_path / "in parts", on_step=Reports(until))
    assert same_files(tmp_path / "at once", tmp_path / "in parts", WEIGHTS_FILE, OPTIMIZER_FILE)
    again = Reports()
    assert offline.train_supervised(config, out=tmp_path / "in parts", on_step=again).steps == 0
    assert again.received == [], "it is done"


def agentrl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRL_")}
    return subprocess.run(
        [sys.executable, "-m", "agentrl", *arguments],
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_job_from_the_command_line(demonstrated: dict[str, Any], tmp_path: Path) -> None:
    demonstrated["training"] |= {"steps": 0, "demonstrations": "shown.jsonl"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(demonstrated))
    done = agentrl(tmp_path, "train", "run.yaml", "--json")
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["event"] for one in messages] == ["starting", "step", "step", "step", "ended"], "once through all five"
    assert [one["of"] for one in messages[1:-1]] == [3, 3, 3]
    assert all(one["metrics"]["loss"] > 0 for one in messages[1:-1])
    out = Path(messages[-1]["out"])
    assert out == tmp_path / "run" / "supervised"
    assert all(bool(torch.isfinite(value).all()) for value in load_file(out / WEIGHTS_FILE).values())

    wrong = agentrl(tmp_path, "train", "run.yaml", "--set", "training.loss=grpo")
    assert wrong.returncode == ExitCode.CONFIG
    assert wrong.stderr.startswith("agentrl: There is nothing to train on.")


@pytest.mark.parametrize(("number", "parallel"), [(signal.SIGTERM, {}), (signal.SIGINT, {"shard": 2})])
def test_a_signal_to_the_command_ends_the_job_after_its_step_with_a_checkpoint(
    demonstrated: dict[str, Any], tmp_path: Path, number: signal.Signals, parallel: dict[str, int]
) -> None:
    demonstrated["training"] |= {"steps": 100_000, "parallel": parallel}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(demonstrated))
    command = [sys.executable, "-m", "agentrl", "train", "run.yaml", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if json.loads(line)["event"] == "step")
        process.send_signal(number)
        last = [json.loads(line) for line in process.stdout][-1]
        assert process.wait(timeout=60) == ExitCode.INTERRUPTED
    assert (last["event"], last["interrupted"]) == ("ended", True)
    assert (Path(last["out"]) / WEIGHTS_FILE).is_file()

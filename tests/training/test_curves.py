"""Curves in the real programs: they go on in the same run after a restart, show a rollback, and hold no step up."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentrl.config import file_checks
from agentrl.config.curves import CurvesSettings
from agentrl.config.run import RunConfig
from agentrl.training import curve_queue
from agentrl.training.curve_queue import SinkQueue
from agentrl.training.curve_sinks import Entry, Point, RunName
from agentrl.training.curves import Curves
from tests.ports import free_triplet
from tests.waiting import eventually

RUN = RunName("shop", "0b5e9ac2-53f1-4b5b-8a71-2f6d1b2f1f10")
Shown = dict[str, list[tuple[int, float]]]
"""Each curve as its points, in the order in which they were written."""


def in_tensorboard(directory: Path) -> Shown:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory / "tensorboard"), purge_orphaned_data=False)
    events.Reload()
    assert "run/rollback/text_summary" in events.Tags()["tensors"]
    return {name: [(each.step, each.value) for each in events.Scalars(name)] for name in events.Tags()["scalars"]}


def in_mlflow(directory: Path) -> Shown:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"file:{directory}/mlruns")
    place = client.get_experiment_by_name("agentrl")
    (run,) = client.search_runs([place.experiment_id])
    assert (run.info.run_name, run.info.status) == (RUN.name, "FINISHED")
    (note,) = [text for name, text in run.data.tags.items() if name.startswith("agentrl.rollback.")]
    assert note == "Steps 2 to 3 no longer count: trainer-0.2 goes on from step 1."
    return {
        name: [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }


def in_wandb(directory: Path) -> Shown:
    shown: Shown = {}
    files = sorted((directory / "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns)
    assert {file.name for file in files} == {f"run-{RUN.uuid.replace('-', '')}.wandb"}
    for file in files:
        for record in wandb_records(file.read_bytes()):
            values = {(item.key or "".join(item.nested_key)): float(item.value_json) for item in record.history.item}
            at = values.get("version" if any(name.startswith("evaluation/") for name in values) else "step", 0.0)
            for name, value in values.items():
                if "/" in name:
                    shown.setdefault(name, []).append((int(at), value))
    return shown


def wandb_records(data: bytes) -> Iterator[Any]:
    """The records of a file of Weights & Biases: the log format of LevelDB, after a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _checksum, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if at > len(data):
            return  # It is not written to its end yet.
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                yield record


PROGRAMS: dict[str, tuple[dict[str, object], Callable[[Path], Shown]]] = {
    "tensorboard": ({"tensorboard": True}, in_tensorboard),
    "mlflow": ({"mlflow": {"server": "file:{}/mlruns"}}, in_mlflow),
    "wandb": ({"wandb": {"project": "shops", "mode": "offline"}}, in_wandb),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning", "ignore:.*:UserWarning")
def test_curves_go_on_after_a_restart_and_show_a_rollback(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MLflow needs this consent to write runs to files. A server, which needs none, needs the whole package.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(curve_queue, "CLOSED_WITHIN_S", 60.0)
    given, read = PROGRAMS[program]
    if program == "mlflow":
        given = {"mlflow": {"server": f"file:{tmp_path}/mlruns"}}
    settings = CurvesSettings.model_validate({"tensorboard": False, **given})
    reported: dict[str, float] = {}
    first = Curves(settings, tmp_path, RUN, reported.update)
    for step in (1, 2, 3):
        first.step(step, {"loss": step / 4, "term_cap": 0.5})
    first.evaluation(7, {"shop/mean": 0.75})
    first.close()
    if program == "wandb":
        # The name of the directory of a life contains the second of its start, or sometimes the next second.
        ended = int(time.time()) + 1
        eventually(lambda: int(time.time()) > ended)
    second = Curves(settings, tmp_path, RUN, reported.update)
    second.rolled_back(1, [3, 2], "trainer-0.2")
    second.rolled_back(1, [], "trainer-0.3")
    second.step(2, {"loss": 0.125})
    second.close()
    # MLflow gives equal times no order. Weights & Biases writes the last block of its file after it reported its end.
    points = [(1, 0.25), (2, 0.125), (2, 0.5), (3, 0.75)]
    eventually(lambda: sorted(read(tmp_path)["train/loss"]) == points, what="all points in the files")
    shown = read(tmp_path)
    assert shown["evaluation/shop/mean"] == [(7, 0.75)]
    assert shown["run/undone_steps"] == [(1, 2.0)]
    assert len(shown["train/term_cap"]) == 3
    assert reported == dict.fromkeys((f"curves_{what}/{program}" for what in ("waiting", "dropped", "failing")), 0)


class HeldSink:
    """Takes a point only when it may; fails as long as `broken` says why."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.taken: list[int] = []
        self.broken = ""
        self.closed = 0

    def write(self, entry: Entry) -> None:
        assert isinstance(entry, Point)
        self.may.wait(60)
        if self.broken:
            raise OSError(self.broken)
        self.taken.append(entry.at)

    def close(self) -> None:
        self.closed += 1


def point(step: int) -> Point:
    return Point("train", step, {"loss": 0.5}, 0.0)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldSink:
    monkeypatch.setattr(curve_queue, "MOST_WAITING", 10)
    monkeypatch.setattr(curve_queue, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(curve_queue, "LONGEST_PAUSE_S", 0.01)
    return HeldSink()


def test_a_sink_that_hangs_delays_nothing_and_what_it_misses_is_counted(held: HeldSink) -> None:
    reported: dict[str, float] = {}
    queue = SinkQueue("slow", lambda: held, reported.update)
    queue.put(point(0))
    eventually(lambda: queue.state.waiting == 0)
    for step in range(1, 16):
        queue.put(point(step))  # it would block here
    assert reported == {"curves_waiting/slow": 10, "curves_dropped/slow": 5, "curves_failing/slow": False}
    held.may.set()
    queue.close()
    assert held.taken == list(range(11))
    assert held.closed == 1


def test_what_a_sink_refuses_is_written_when_it_works_again(held: HeldSink) -> None:
    reported: dict[str, float] = {}
    made: list[str] = []

    def make() -> HeldSink:
        made.append("")
        if len(made) < 3:
            raise ConnectionError("no route")
        return held

    held.broken = "no space"
    held.may.set()
    queue = SinkQueue("moody", make, reported.update)
    queue.put(point(1))
    eventually(lambda: len(made) > 4 and reported["curves_failing/moody"])
    held.broken = ""
    eventually(lambda: held.taken == [1] and not reported["curves_failing/moody"])
    queue.close()


def test_a_server_that_is_down_neither_delays_the_end_nor_counts_as_written(
    held: HeldSink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = f"http://127.0.0.1:{free_triplet()}"
    reported: dict[str, float] = {}
    curves = Curves(
        CurvesSettings.model_validate({"tensorboard": False, "mlflow": {"server": server}}),
        tmp_path,
        RUN,
        reported.update,
    )
    curves.step(1, {"loss": 0.5})
    eventually(lambda: reported.get("curves_failing/mlflow"))
    curves.close()
    assert reported["curves_failing/mlflow"]
    assert "No curves are written to mlflow now" in caplog.text


def test_a_package_that_is_missing_is_named_before_the_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"name": "shop", "training": {"curves": {"wandb": {"project": "shops", "mode": "offline"}}}}
    given = RunConfig.model_validate(config)
    assert not list(file_checks.problems_of(given))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (problem,) = file_checks.problems_of(given)
    assert (problem.message, "agentrl[wandb]" in problem.hint) == (
        "training.curves.wandb: the package wandb is not installed.",
        True,
    )
    with pytest.raises(ValidationError, match="needs a key"):
        CurvesSettings.model_validate({"wandb": {"project": "shops"}})

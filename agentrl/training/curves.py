"""The curves of a run: metrics of steps and evaluations, in the programs that the run file names.

Invariants:
- No step waits for a curve, and none fails because of one.
- A lineage that undoes steps says so in every program, before its first step.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from agentrl.config.curves import CurvesSettings
from agentrl.policies.status_tables import StepStatus
from agentrl.store.database import Database
from agentrl.training.curve_queue import Report, SinkQueue
from agentrl.training.curve_sinks import Entry, Mlflow, Note, Point, RunName, Sink, TensorBoard, Wandb, end_wandb, now_s

log = logging.getLogger("curves")

TENSORBOARD = "tensorboard"
WANDB = "wandb"


class Curves:
    """Gives each point to all sinks of the configuration. `report` takes metrics of the unit, from any thread."""

    def __init__(self, settings: CurvesSettings, run_dir: Path, run: RunName, report: Report) -> None:
        makers = dict(_makers(settings, run_dir, run))
        self._queues = [SinkQueue(name, make, report, abandon) for name, (make, abandon) in makers.items()]

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._put(Point("train", step, dict(metrics), now_s()))

    def evaluation(self, version: int, metrics: Mapping[str, float]) -> None:
        self._put(Point("evaluation", version, dict(metrics), now_s()))

    def rolled_back(self, to_step: int, undone: Sequence[int], lineage: str) -> None:
        """Notes that these steps no longer count. Nothing if there are none."""
        if undone:
            of = f"{min(undone)} to {max(undone)}" if len(undone) > 1 else f"{undone[0]}"
            sentence = f"Steps {of} no longer count: {lineage} goes on from step {to_step}."
            self._put(Note(to_step, sentence, len(undone), now_s()))

    def close(self) -> None:
        for queue in self._queues:
            queue.close()

    def _put(self, entry: Entry) -> None:
        for queue in self._queues:
            queue.put(entry)


async def undone_by(database: Database, lineage: str) -> list[int]:
    """The steps that this lineage rolled back."""
    of_lineage = {"status": StepStatus.ROLLED_BACK, "reason": {"$regex": f"^{re.escape(lineage)} starts from "}}
    documents = await database.find("Step", of_lineage, projection=["step"])
    return sorted(int(each["step"]) for each in documents)


def _makers(
    settings: CurvesSettings, run_dir: Path, run: RunName
) -> Iterator[tuple[str, tuple[Callable[[], Sink], Callable[[], None]]]]:
    """For each sink: its name, the function that opens it, and the function that ends it if it hangs."""
    if settings.tensorboard:
        if importlib.util.find_spec("tensorboard") is None:
            log.info("TensorBoard is not installed; metrics are in the Step documents only")
        else:
            yield TENSORBOARD, (partial(TensorBoard, run_dir / TENSORBOARD), _nothing)
    if settings.mlflow.server:
        yield "mlflow", (partial(Mlflow, settings.mlflow, run), _nothing)
    if settings.wandb.project:
        # wandb itself adds a directory of its name.
        yield WANDB, (partial(Wandb, settings.wandb, run, run_dir), end_wandb)


def _nothing() -> None:
    """Does nothing: the thread of this sink does not keep the process alive."""

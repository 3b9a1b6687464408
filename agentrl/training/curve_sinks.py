"""The programs that curves are written to: TensorBoard, MLflow and Weights & Biases, behind one interface.

Invariants:
- After a restart the trainer continues the same run in the program, which it finds by the uuid of the agentrl run.
- Points are never removed: after a rollback the same steps appear again, with a note that names the undone steps.
- A program is imported only if the run writes to it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from agentrl.config.curves import MlflowSettings, WandbSettings
from agentrl.config.secrets import resolve_secret

RUN_TAG = "agentrl.run"
"""The tag of MLflow that has the uuid of the agentrl run."""
MOST_AT_ONCE = 500
"""Metrics in one request to MLflow, which takes 1000."""
ANSWERS_WITHIN_S = 10
TORN_DOWN_WITHIN_S = 2.0
log = logging.getLogger("curves")


@dataclass(frozen=True, slots=True)
class RunName:
    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Point:
    """The metrics of one step, or of one evaluation; `at` is its number, of a step or of a version."""

    kind: str
    """`train` or `evaluation`."""
    at: int
    metrics: Mapping[str, float]
    time_s: float


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened to the curve itself, such as a rollback, after a step."""

    step: int
    sentence: str
    undone: int
    """How many steps no longer count."""
    time_s: float


Entry = Point | Note


class Sink(Protocol):
    """One connection to a program. Every method may raise any exception, and may take long."""

    def write(self, entry: Entry) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, directory: Path) -> None:
        module = importlib.import_module("torch.utils.tensorboard")
        self._writer: Any = module.SummaryWriter(str(directory), flush_secs=5)

    def write(self, entry: Entry) -> None:
        if isinstance(entry, Note):
            self._writer.add_text("run/rollback", entry.sentence, entry.step, walltime=entry.time_s)
            self._writer.add_scalar("run/undone_steps", entry.undone, entry.step, walltime=entry.time_s)
            return
        for name, value in entry.metrics.items():
            self._writer.add_scalar(f"{entry.kind}/{name}", value, entry.at, walltime=entry.time_s)

    def close(self) -> None:
        self._writer.close()


class Mlflow:
    def __init__(self, settings: MlflowSettings, run: RunName) -> None:
        # The queue retries when a server does not answer, not the library.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(ANSWERS_WITHIN_S))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        if settings.token is not None:
            os.environ["MLFLOW_TRACKING_TOKEN"] = resolve_secret(settings.token)
        self._entities: Any = importlib.import_module("mlflow.entities")
        tracking: Any = importlib.import_module("mlflow.tracking")
        self._client: Any = tracking.MlflowClient(tracking_uri=settings.server)
        self._run = self._found(settings.experiment, run)

    def _found(self, experiment: str, run: RunName) -> str:
        known = self._client.get_experiment_by_name(experiment)
        place = known.experiment_id if known is not None else self._client.create_experiment(experiment)
        same = self._client.search_runs([place], f"tags.`{RUN_TAG}` = '{run.uuid}'", order_by=["attributes.start_time"])
        if not same:
            made = self._client.create_run(place, run_name=run.name, tags={RUN_TAG: run.uuid})
            return str(made.info.run_id)
        self._client.update_run(same[0].info.run_id, status="RUNNING")
        return str(same[0].info.run_id)

    def write(self, entry: Entry) -> None:
        at_ms = int(1000 * entry.time_s)
        if isinstance(entry, Note):
            undone = self._entities.Metric("run/undone_steps", float(entry.undone), at_ms, entry.step)
            tag = self._entities.RunTag(f"agentrl.rollback.{at_ms}", entry.sentence)
            self._client.log_batch(self._run, metrics=[undone], tags=[tag])
            return
        metrics = [
            self._entities.Metric(_allowed(f"{entry.kind}/{name}"), value, at_ms, entry.at)
            for name, value in entry.metrics.items()
        ]
        for begin in range(0, len(metrics), MOST_AT_ONCE):
            self._client.log_batch(self._run, metrics=metrics[begin : begin + MOST_AT_ONCE])

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _allowed(name: str) -> str:
    """MLflow takes only these characters in a name."""
    return re.sub(r"[^\w\-. /:]", "_", name)


class Wandb:
    """Points have no step of Weights & Biases, because it drops points with an earlier step; `step` and `version` are
    axes instead."""

    def __init__(self, settings: WandbSettings, run: RunName, directory: Path) -> None:
        wandb: Any = importlib.import_module("wandb")
        directory.mkdir(exist_ok=True)
        key = resolve_secret(settings.key) if settings.key is not None and settings.mode == "online" else ""
        own = {name: value for name, value in (("api_key", key), ("base_url", settings.server)) if value}
        try:
            self._run: Any = self._begun(wandb, settings, run, directory, own)
        except Exception:
            # Otherwise the run that it began would be refused as one in use.
            end_wandb()
            raise
        for kind, axis in (("train", "step"), ("run", "step"), ("evaluation", "version")):
            self._run.define_metric(axis, hidden=True)
            self._run.define_metric(f"{kind}/*", step_metric=axis)

    @staticmethod
    def _begun(wandb: Any, settings: WandbSettings, run: RunName, directory: Path, own: Mapping[str, str]) -> Any:
        return wandb.init(
            project=settings.project,
            entity=settings.entity or None,
            id=run.uuid.replace("-", ""),
            name=run.name,
            resume="allow" if settings.mode == "online" else None,
            mode=settings.mode,
            dir=str(directory),
            settings=wandb.Settings(
                **own,
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                init_timeout=3 * ANSWERS_WITHIN_S,
                x_disable_stats=True,
            ),
        )

    def write(self, entry: Entry) -> None:
        if isinstance(entry, Note):
            self._run.log({"step": entry.step, "run/undone_steps": entry.undone})
            self._run.summary["run/rollback"] = entry.sentence
            return
        axis = "step" if entry.kind == "train" else "version"
        self._run.log({axis: entry.at, **{f"{entry.kind}/{name}": value for name, value in entry.metrics.items()}})

    def close(self) -> None:
        self._run.finish()


def end_wandb() -> None:
    """End the process of Weights & Biases: it sends what is left for as long as that takes, and Python waits for it at
    its exit. What it has not sent is in its directory, and `wandb sync` sends it. Another process can be started after
    it."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "wandb-core" in child.name():
                child.send_signal(signal.SIGKILL)
    if (wandb := sys.modules.get("wandb")) is not None:
        # Otherwise the library talks to the dead process at exit, and refuses the same run until then.
        forget = threading.Thread(target=_torn_down, args=(wandb,), name="end of wandb", daemon=True)
        forget.start()
        forget.join(TORN_DOWN_WITHIN_S)


def _torn_down(wandb: Any) -> None:
    try:
        wandb.teardown()
    except Exception as failed:  # noqa: BLE001 - it has lost its process, and raises anything
        log.debug("Weights & Biases ended with %s", failed)


def now_s() -> float:
    """The wall clock: curves are for people."""
    return time.time()

"""The ranks of a trainer: one leads, and the others join every call that needs all ranks.

The rank that leads has the loop of the trainer and the store. Before each call that is collective it broadcasts the
call with its arguments, as a tensor of bytes; the others make the same call on their part of the model.

Invariants:
- the ranks that follow know no store, and write no files but those that they get from other hosts;
- calls reach all ranks in the same order; while nothing happens, an idle call shows that the connection is alive;
- if a rank dies, the collectives of the others fail: all of them end, and restart from the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from agentrl.files.pieces import Content
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training import checkpoints
from agentrl.training.batch import Batch
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import Gathered, LearnerSettings, StepResult
from agentrl.training.parallel import start
from agentrl.training.policy_model import name_of
from agentrl.training.rank_files import Place, RankFiles
from agentrl.training.step_parts import Objective

IDLE_EVERY_S = 20.0
SILENT_AT_MOST = timedelta(hours=1)
"""A rank that leads may compute alone for a long time, for example while it writes a checkpoint."""


class Idle(msgspec.Struct, frozen=True, tag=True):
    """A call that does nothing."""


class Load(msgspec.Struct, frozen=True, tag=True):
    place: Place
    base: Place | None = None
    """The model that adapters of the directory change."""


class Compare(msgspec.Struct, frozen=True, tag=True):
    place: Place | None
    """None: the model without its adapters."""


class Restore(msgspec.Struct, frozen=True, tag=True):
    place: Place


class Fresh(msgspec.Struct, frozen=True, tag=True):
    learning_rate: float


class Train(msgspec.Struct, frozen=True, tag=True, eq=False):
    batch: Batch
    loss: PolicyLoss | None
    """None: supervised."""
    learning_rate: float | None
    optimizer_steps: int


class Score(msgspec.Struct, frozen=True, tag=True):
    sequences: list[list[int]]
    published: str = ""
    """The type that weights are rounded to; empty means no rounding."""


class Gather(msgspec.Struct, frozen=True, tag=True):
    what: Gathered


class End(msgspec.Struct, frozen=True, tag=True):
    """The trainer has ended as planned."""


Call = Idle | Load | Compare | Restore | Fresh | Train | Score | Gather | End


class Channel:
    """Calls from the rank that leads to the others."""

    def __init__(self, settings: LearnerSettings) -> None:
        self._accelerator = start(settings.parallel, settings.precision)
        # A separate group on CPUs, because a waiting rank must not keep its GPU busy.
        self._group = torch.distributed.new_group(backend="gloo", timeout=SILENT_AT_MOST)
        self._turn = threading.Lock()

    def send(self, call: Call) -> None:
        content = msgspec.msgpack.encode(call, enc_hook=lambda array: array.tolist())
        with self._turn:
            self._broadcast(torch.tensor(len(content)))
            self._broadcast(torch.frombuffer(bytearray(content), dtype=torch.uint8))

    def receive(self) -> Call:
        length = torch.zeros((), dtype=torch.int64)
        self._broadcast(length)
        content = torch.empty(int(length), dtype=torch.uint8)
        self._broadcast(content)
        call: Call = msgspec.msgpack.decode(
            content.numpy().tobytes(), type=Call, dec_hook=lambda _, value: np.asarray(value)
        )
        return call

    def _broadcast(self, tensor: Tensor) -> None:
        torch.distributed.broadcast(tensor, src=0, group=self._group)


class LeadingLearner(Learner):
    """The learner of the rank that leads: it announces every collective call."""

    def __init__(
        self,
        directory: Path,
        settings: LearnerSettings,
        channel: Channel,
        files: RankFiles,
        *,
        contents: Mapping[str, Content] | None = None,
        **options: Any,
    ) -> None:
        self._channel = channel
        self._files = files
        base = options.get("base")
        channel.send(Load(files.place(directory, contents), None if base is None else files.place(base)))
        super().__init__(directory, settings, **options)

    def new_optimizers(self, learning_rate: float) -> None:
        self._channel.send(Fresh(learning_rate))
        super().new_optimizers(learning_rate)

    def load_optimizers(self, tensors: Mapping[str, Tensor], source: Path) -> None:
        self._channel.send(Restore(self._files.place(source)))
        super().load_optimizers(tensors, source)

    def compare_with(self, directory: Path | None) -> None:
        self._channel.send(Compare(None if directory is None else self._files.place(directory)))
        super().compare_with(directory)

    def gathered(self, what: Gathered) -> dict[str, Tensor]:
        self._channel.send(Gather(what))
        return super().gathered(what)

    def log_probs(
        self, sequences: Sequence[Sequence[int]], *, published: torch.dtype | None = None
    ) -> list[list[float]]:
        self._channel.send(
            Score([list(sequence) for sequence in sequences], "" if published is None else name_of(published))
        )
        return super().log_probs(sequences, published=published)

    def train(
        self, batch: Batch, objective: Objective, *, learning_rate: float | None = None, optimizer_steps: int = 1
    ) -> StepResult:
        loss = None if objective == "supervised" else objective
        self._channel.send(Train(batch, loss, learning_rate, optimizer_steps))
        return super().train(batch, objective, learning_rate=learning_rate, optimizer_steps=optimizer_steps)


class Loader(Protocol):
    """Makes a learner from a directory. `contents` are its files, if they are known."""

    def __call__(
        self,
        directory: Path,
        settings: LearnerSettings,
        *,
        base: Path | None,
        on_progress: Callable[[], None],
        contents: Mapping[str, Content] | None,
    ) -> Learner: ...


def load_alone(
    directory: Path,
    settings: LearnerSettings,
    *,
    base: Path | None,
    on_progress: Callable[[], None],
    contents: Mapping[str, Content] | None,
) -> Learner:
    """For a trainer of one process."""
    return Learner(directory, settings, base=base, on_progress=on_progress)


@contextlib.contextmanager
def leading(settings: LearnerSettings, files: RankFiles) -> Iterator[Loader]:
    """For the rank that leads. The other ranks end with the context, if it ends without an error."""
    channel = Channel(settings)
    over = threading.Event()

    def stay_in_touch() -> None:
        while not over.wait(IDLE_EVERY_S):
            channel.send(Idle())

    idle = threading.Thread(target=stay_in_touch, name="idle calls", daemon=True)
    idle.start()
    try:
        yield functools.partial(LeadingLearner, channel=channel, files=files)
    finally:
        over.set()
    idle.join()
    channel.send(End())


def follow(
    channel: Channel, settings: LearnerSettings, files: RankFiles, *, on_progress: Callable[[], None] = lambda: None
) -> None:
    """For the other ranks: makes the calls of the rank that leads until that ends."""
    learner: Learner | None = None
    while not isinstance(call := channel.receive(), End):
        on_progress()
        if isinstance(call, Load):
            base = None if call.base is None else files.find(call.base)
            learner = Learner(files.find(call.place), settings, base=base, on_progress=on_progress)
        elif learner is not None:
            _make(call, learner, files)


def _make(call: Call, learner: Learner, files: RankFiles) -> None:
    match call:
        case Compare(place):
            learner.compare_with(None if place is None else files.find(place))
        case Restore(place):
            checkpoints.restore_optimizers(files.find(place), learner)
        case Fresh(learning_rate):
            learner.new_optimizers(learning_rate)
        case Score(sequences, published):
            learner.log_probs(sequences, published=getattr(torch, published) if published else None)
        case Gather(what):
            learner.gathered(what)
        case Train(batch, loss, learning_rate, optimizer_steps):
            learner.train(
                batch,
                "supervised" if loss is None else loss,
                learning_rate=learning_rate,
                optimizer_steps=optimizer_steps,
            )

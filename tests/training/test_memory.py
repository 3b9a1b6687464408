"""The memory of a step grows with its longest row, not with the square of it."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training.batch import Batch
from tests.training.conftest import TEXTS, make_learner
from tests.training.trees import VOCABULARY, batch_of, trajectory_of_calls


def one_long_chain(length: int, *, turns: int = 8) -> Batch:
    """Half of its tokens are trained."""
    chance = random.Random(length)
    ids = chance.choices(range(VOCABULARY), k=length)
    per_turn = length // turns
    calls = []
    for turn in range(turns):
        start, end = turn * per_turn + per_turn // 2, (turn + 1) * per_turn
        calls.append((turn, ids[:start], ids[start:end]))
    return batch_of([trajectory_of_calls(calls, "long")])


class Peak(torch.utils._python_dispatch.TorchDispatchMode):
    """The largest number of bytes in tensors at the same time: those that exist at the beginning and those that are
    made later. It is exact, because it does not depend on the allocator."""

    def __init__(self, there: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: set[int] = set()
        for one in there:
            self._count(one)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else [result]:
            if not isinstance(one, torch.Tensor):
                continue
            self._count(one)
        return result

    def _count(self, one: torch.Tensor) -> None:
        storage = one.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            size = storage.nbytes()
            self._known.add(key)
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One head of one layer: attention over 64K tokens takes seconds."""
    directory = tmp_path_factory.mktemp("narrow")
    shape = {"hidden_size": 16, "intermediate_size": 16, "head_dim": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 1 << 17}
    build_tiny(directory, TEXTS, seed=3, **shape, **heads)
    return directory


def peak_of_a_step(directory: Path, length: int) -> int:
    learner = make_learner(directory, exact=False, tokens_per_batch=length)
    with Peak() as peak:
        assert learner.train(one_long_chain(length), PolicyLoss()).applied
    return peak.peak


@pytest.mark.slow
def test_peak_memory_grows_linearly_from_4k_to_64k_tokens(narrow: Path) -> None:
    short, long = 4_096, 65_536
    growth = peak_of_a_step(narrow, long) / peak_of_a_step(narrow, short)
    assert growth < 1.1 * long / short
    assert growth > 0.5 * long / short, "the measurement includes the row itself"

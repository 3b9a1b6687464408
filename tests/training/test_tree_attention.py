"""Attention over packed trees equals the dense computation under the same rule, and so do its gradients."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.training.batch import Array
from agentrl.training.tree_attention import BLOCK, Run, Tree, attention, block_mask, padding, part_of, runs_of, tree_of

CPU = torch.device("cpu")


def random_ends(chance: random.Random, length: int) -> Array:
    """The ends of a random forest in depth-first order."""
    ends = np.zeros(length, dtype=np.int64)

    def grow(start: int, stop: int) -> None:
        """Several subtrees fill the places from `start` to `stop`."""
        while start < stop:
            size = chance.randint(1, stop - start)
            run = chance.randint(1, size)
            ends[start : start + run] = start + size
            if run < size and chance.random() < 0.2:
                # A token may also end while its parent goes on.
                ends[start + run - 1] = start + run
            grow(start + run, start + size)
            start += size

    grow(0, length)
    return _nested(ends)


def _nested(ends: Array) -> Array:
    """The same forest, in which no end lies beyond that of an ancestor."""
    stack: list[int] = []
    for at, end in enumerate(ends):
        while stack and stack[-1] <= at:
            stack.pop()
        ends[at] = min(int(end), stack[-1]) if stack else int(end)
        stack.append(int(ends[at]))
    return ends


def whole_blocks(ends: Array) -> Array:
    """Padded to whole blocks with tokens that see only themselves."""
    length = len(ends)
    return np.concatenate((ends, length + 1 + np.arange(padding(length, torch.device("cuda")))))


def sees(ends: Array) -> Array:
    at = np.arange(len(ends))
    return (at[None, :] <= at[:, None]) & (at[:, None] < ends[None, :])


def dense(query: Tensor, key: Tensor, value: Tensor, ends: Array) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    hidden = scores.masked_fill(~torch.from_numpy(sees(ends)), -torch.inf)
    return (hidden.softmax(-1) @ value).transpose(1, 2)


def inputs(length: int, dtype: torch.dtype, *, heads: int = 4, kept: int = 2) -> list[Tensor]:
    torch.manual_seed(length)
    return [torch.randn(1, count, length, 8, dtype=dtype).requires_grad_() for count in (heads, kept, kept)]


def tree(ends: Array) -> Tree:
    return tree_of(ends, CPU)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("number", range(12))
def test_result_and_gradients_are_those_of_the_dense_computation(number: int, dtype: torch.dtype, limit: float) -> None:
    chance = random.Random(number)
    ends = random_ends(chance, chance.choice([1, 2, 17, 64, 130]))
    given = inputs(len(ends), dtype)
    weights = torch.randn(1, len(ends), 4, 8, dtype=dtype)
    found, _ = attention(torch.nn.Module(), *given, None, tree=tree(ends))
    expected = dense(*given, ends)
    assert float((found - expected).detach().abs().max()) <= limit
    pairs = zip(
        torch.autograd.grad((found * weights).sum(), given),
        torch.autograd.grad((expected * weights).sum(), given),
        strict=True,
    )
    for one, other in pairs:
        assert float((one - other).abs().max()) <= 10 * limit


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_queries_of_each_rank_along_context_find_what_the_whole_sequence_finds(ranks: int) -> None:
    ends = random_ends(random.Random(ranks), 61)
    piece = -(-61 // (2 * ranks))
    length = 2 * ranks * piece
    given = inputs(length, torch.float64)
    query, key, value = given
    expected = dense(*given, np.concatenate((ends, np.arange(62, length + 1))))
    for rank in range(ranks):
        own = [slice(one * piece, (one + 1) * piece) for one in (rank, 2 * ranks - 1 - rank)]
        # What the ranks gather is here already.
        part = part_of(tree(ends), length, own, lambda whole: whole, CPU)
        mine = torch.cat([query[:, :, one] for one in own], dim=2)
        found, _ = attention(torch.nn.Module(), mine, key, value, None, tree=part)
        wanted = torch.cat([expected[:, one] for one in own], dim=1)
        assert float((found - wanted).detach().abs().max()) <= 1e-10


def test_trees_one_after_another_do_not_see_each_other() -> None:
    one, other = random_ends(random.Random(1), 20), random_ends(random.Random(2), 30)
    given = inputs(50, torch.float64)
    together, _ = attention(torch.nn.Module(), *given, None, tree=tree(np.concatenate((one, other + 20))))
    for part, places in ((one, slice(0, 20)), (other, slice(20, 50))):
        alone, _ = attention(torch.nn.Module(), *(each[:, :, places] for each in given), None, tree=tree(part))
        assert torch.allclose(together[:, places], alone, atol=1e-12)


@pytest.mark.parametrize(
    ("ends", "runs"),
    [
        ([3, 3, 3], [Run(0, 3, 3)]),
        ([6, 6, 4, 4, 6, 6], [Run(0, 2, 6), Run(2, 4, 4), Run(4, 6, 6)]),
        ([2, 2, 4, 4], [Run(0, 2, 2), Run(2, 4, 4)]),
        ([1, 2], [Run(0, 1, 1), Run(1, 2, 2)]),
        ([], []),
    ],
)
def test_runs_are_maximal(ends: list[int], runs: list[Run]) -> None:
    assert list(runs_of(np.array(ends, dtype=np.int64))) == runs


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("own", [None, (1, 3)])
def test_blocks_are_whole_partial_or_left_out_as_the_rule_says(number: int, own: tuple[int, ...] | None) -> None:
    """`own`: the blocks of a rank along context."""
    chance = random.Random(number)
    ends = whole_blocks(random_ends(chance, chance.choice([5, BLOCK, 3 * BLOCK + 7, 6 * BLOCK])))
    count = len(ends) // BLOCK
    rows = range(count) if own is None else [one for one in own if one < count]
    places = [slice(one * BLOCK, (one + 1) * BLOCK) for one in rows] if own and rows else []
    mask = block_mask(ends, CPU, places)
    rows = rows if places else range(count)
    rule = sees(ends)
    partial, whole = (
        _blocks(mask.kv_num_blocks, mask.kv_indices),
        _blocks(mask.full_kv_num_blocks, mask.full_kv_indices),
    )
    assert not partial & whole
    for number_of_row, row in enumerate(rows):
        for column in range(count):
            part = rule[row * BLOCK : (row + 1) * BLOCK, column * BLOCK : (column + 1) * BLOCK]
            if part.any():
                assert (number_of_row, column) in partial | whole
            elif row != column:
                assert (number_of_row, column) not in partial | whole
            assert ((number_of_row, column) in whole) <= bool(part.all())


def _blocks(numbers: Tensor | None, indices: Tensor | None) -> set[tuple[int, int]]:
    assert numbers is not None
    assert indices is not None
    return {(row, int(at)) for row, count in enumerate(numbers[0, 0]) for at in indices[0, 0, row, : int(count)]}

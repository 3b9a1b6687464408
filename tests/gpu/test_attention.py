"""FlexAttention over packed trees on a GPU equals the dense computation in float64 on processors."""

from __future__ import annotations

import random

import pytest
import torch

from agentrl.training.tree_attention import attention, tree_of
from tests.training.test_tree_attention import dense, random_ends, whole_blocks

GPU = torch.device("cuda")


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("length", [1, 127, 128, 700, 3000])
def test_result_and_gradients_are_those_of_the_dense_computation(length: int, dtype: torch.dtype, limit: float) -> None:
    ends = whole_blocks(random_ends(random.Random(length), length))
    length = len(ends)
    torch.manual_seed(length)
    exact = [torch.randn(1, heads, length, 64, dtype=torch.float64).requires_grad_() for heads in (4, 2, 2)]
    given = [one.detach().to(GPU, dtype).requires_grad_() for one in exact]
    weights = torch.randn(1, length, 4, 64, dtype=torch.float64)
    found, _ = attention(torch.nn.Module(), *given, None, tree=tree_of(ends, GPU))
    expected = dense(*exact, ends)
    assert float((found.cpu().double() - expected).detach().abs().max()) <= limit
    pairs = zip(
        torch.autograd.grad((found * weights.to(GPU, dtype)).sum(), given),
        torch.autograd.grad((expected * weights).sum(), exact),
        strict=True,
    )
    for one, other in pairs:
        scale = float(other.abs().max())
        assert float((one.cpu().double() - other).abs().max()) <= limit * max(1.0, scale)

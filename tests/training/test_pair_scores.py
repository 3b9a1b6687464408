"""Log-probs that are computed in chunks equal those of whole logits, and so do their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agentrl.training import pair_scores as module
from agentrl.training.pair_scores import pair_scores

PLACES, PAIRS, WIDTH, WORDS = 13, 29, 6, 17


def given(dtype: torch.dtype, *, bias: bool) -> list[Tensor | None]:
    torch.manual_seed(3)
    hidden, head = torch.randn(PLACES, WIDTH, dtype=dtype), torch.randn(WORDS, WIDTH, dtype=dtype)
    floats = [hidden, head, torch.randn(WORDS, dtype=dtype) if bias else None]
    temperatures = torch.rand(PLACES, dtype=dtype) + 0.5
    asked, target = torch.randint(PLACES - 1, (PAIRS,)), torch.randint(WORDS, (PAIRS,))
    return [*(one if one is None else one.requires_grad_() for one in floats), temperatures, asked, target]


def whole(
    hidden: Tensor, head: Tensor, bias: Tensor | None, temperatures: Tensor, asked: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    spread = torch.log_softmax(torch.nn.functional.linear(hidden, head, bias) / temperatures[:, None], dim=-1)
    return spread[asked, target], -(spread.exp() * spread).sum(-1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("most", [1, 3 * WORDS, 1 << 20])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_chunks_change_nothing(
    monkeypatch: pytest.MonkeyPatch, most: int, bias: bool, dtype: torch.dtype, limit: float
) -> None:
    monkeypatch.setattr(module, "CHUNK_LOGITS", most)
    arguments = given(dtype, bias=bias)
    trained = [one for one in arguments[:3] if one is not None]
    weights = torch.randn(PAIRS, dtype=dtype)
    found, expected = pair_scores(*arguments), whole(*arguments)  # type: ignore[arg-type]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=limit)
    gradients = [torch.autograd.grad((scores * weights).sum(), trained) for scores, _ in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=10 * limit)


def test_gradients_agree_with_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_LOGITS", 2 * WORDS)
    *floats, temperatures, asked, target = given(torch.float64, bias=True)
    assert torch.autograd.gradcheck(lambda *parts: pair_scores(*parts, temperatures, asked, target)[0], tuple(floats))


def test_no_tensor_has_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_LOGITS", 2 * WORDS)
    largest = 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            found = function(*args, **(kwargs or {}))
            for one in found if isinstance(found, tuple) else (found,):
                if isinstance(one, Tensor):
                    largest = max(largest, one.numel())
            return found

    arguments = given(torch.float64, bias=False)
    with Sizes():
        scores, _ = pair_scores(*arguments)
        scores.sum().backward()
    assert largest == WORDS * WIDTH < PLACES * WORDS


def test_half_precision_is_summed_in_single(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = given(torch.float32, bias=False)
    narrow = [one if one is None or not one.is_floating_point() else one.detach().bfloat16() for one in arguments]
    narrow[3] = arguments[3]
    scores, entropies = pair_scores(*narrow)
    assert (scores.dtype, entropies.dtype) == (torch.float32, torch.float32)
    expected, _ = whole(*arguments)  # type: ignore[arg-type]
    assert float((scores - expected).detach().abs().max()) < 0.05

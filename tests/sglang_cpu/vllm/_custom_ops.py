"""The operations that SGLang takes from vLLM where it has no kernel of its own, in plain torch.

Invariant: as their namesakes they write into their arguments and return nothing.
"""

from __future__ import annotations

import torch


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """Rotate the first `cos_sin_cache.shape[-1]` features of each head of `[tokens, heads * head_size]`."""
    cos, sin = cos_sin_cache[positions.flatten()].chunk(2, dim=-1)
    for heads in (query, key):
        if heads is not None:
            _rotate(heads.view(positions.numel(), -1, head_size), cos[:, None], sin[:, None], is_neox)


def rms_norm(out: torch.Tensor, value: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    mean_square = value.float().square().mean(dim=-1, keepdim=True)
    out.copy_((value.float() * torch.rsqrt(mean_square + epsilon)).to(value.dtype) * weight)


def fused_add_rms_norm(value: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    residual.add_(value)
    rms_norm(value, residual, weight, epsilon)


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool) -> None:
    width = 2 * cos.shape[-1]
    rotated = heads[..., :width].clone()
    # Pairs are the two halves of a head, or its neighbouring features.
    first, second = rotated.chunk(2, dim=-1) if is_neox else (rotated[..., ::2], rotated[..., 1::2])
    turned = first * cos - second * sin, second * cos + first * sin
    if is_neox:
        heads[..., :width] = torch.cat(turned, dim=-1)
    else:
        heads[..., :width] = torch.stack(turned, dim=-1).flatten(-2)

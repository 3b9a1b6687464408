"""Which results of a layer are kept for the backward pass, and which it computes again.

`none` keeps all. `selective` keeps matrix products and attention, and computes norms and activation functions again:
less memory for little work. `full` keeps only the input of each layer: the least memory for a third more work.

Invariant: the gradient is the same; nothing in a layer is random.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
import transformers
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from agentrl.training.policy_model import layers_of

Recompute = Literal["none", "selective", "full"]

_aten: Any = torch.ops.aten
_PRODUCTS = frozenset({_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten._grouped_mm.default})


def apply(model: transformers.PreTrainedModel, how: Recompute) -> None:
    """Changes the layers in place. The names of parameters stay the same."""
    # transformers has a setting for this, but uses it only in training mode, with dropout.
    for layer in layers_of(model):
        if how == "full":
            _compute_again(layer)
            continue
        # Attention is outside of the recomputed part, so its result is kept, whichever kernel computes it.
        for name, part in layer.named_children():
            if "norm" in name:
                _compute_again(part)
            elif name in ("mlp", "feed_forward"):
                _compute_again(part, context_fn=_keep_products)


def _compute_again(module: torch.nn.Module, **options: Any) -> None:
    again = functools.partial(checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False, **options)
    module.forward = again


def _keep_products() -> Any:
    return create_selective_checkpoint_contexts(_kept)  # type: ignore[no-untyped-call]


def _kept(_: Any, operation: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE

"""Turns tokens and images into the input of the language part of a Qwen-VL model, for engines and for training.

Invariants:
- the vision tower runs once for each image of a call, however many sequences show it;
- a placeholder that the model itself sampled is an ordinary token, not an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agentrl.images.patches import Patches
from agentrl.tokens.image_ids import FIRST


class Features(NamedTuple):
    """The output of the vision tower for one image, or for several one after another."""

    tokens: Tensor
    """[tokens, hidden]"""
    deep: tuple[Tensor, ...]
    """Further features, which some models add to the first layers of the decoder."""

    def at(self, places: Tensor) -> Features:
        return Features(self.tokens[places], tuple(one[places] for one in self.deep))


def features_of(model: Any, pixels: Tensor, frames: Tensor) -> Features:
    """`pixels` are the patches of all images, `frames` the time, rows and columns of each."""
    found = model.model.get_image_features(pixels, frames, return_dict=True)
    deep = getattr(found, "deepstack_features", None) or ()
    return Features(torch.cat(list(found.pooler_output)), tuple(torch.cat(list(one)) for one in deep))


def each_image(model: Any, images: Sequence[Patches]) -> list[Features]:
    """The features of each image."""
    pixels = torch.cat([torch.from_numpy(one.values) for one in images]).to(model.device)
    whole = features_of(model, pixels, torch.tensor([one.frames for one in images], device=model.device))
    found, at = [], 0
    for one in images:
        found.append(whole.at(torch.arange(at, at + one.tokens, device=model.device)))
        at += one.tokens
    return found


def decoder_inputs(model: Any, ids: Tensor, shown: Features | None) -> dict[str, Any]:
    """Arguments of the decoder for these ids [sequences, length], in which images have their own ids. `shown` has a row
    for each image id, in order."""
    is_image = ids >= FIRST
    placeholder = model.config.image_token_id
    embedded = model.get_input_embeddings()(torch.where(is_image, placeholder, ids))
    if shown is None:
        return {"inputs_embeds": embedded}
    embedded = embedded.masked_scatter(is_image[..., None], shown.tokens.to(embedded.dtype))
    if not shown.deep:
        return {"inputs_embeds": embedded}
    return {
        "inputs_embeds": embedded,
        "visual_pos_masks": is_image,
        "deepstack_visual_embeds": list(shown.deep),
    }

"""The plain model of transformers as the reference for models that read images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from agentrl.images import decoding
from agentrl.images.decoding import Shown
from agentrl.images.patches import Patches, patches_of
from agentrl.images.processing import Processing, processing_of
from agentrl.tokens import image_ids
from tests.images import tiny_vision

RED, GREEN, BLUE = (220, 30, 30), (30, 200, 30), (30, 30, 220)


class Seen:
    """A model and three images, two of which have the same size."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        described = json.loads((directory / "config.json").read_bytes())
        found = processing_of(directory, described)
        assert found is not None
        self.how: Processing = found
        self.images: dict[int, Shown] = {
            number: decoding.shown(tiny_vision.square(*of), self.how)
            for number, of in {5: (RED,), 6: (GREEN,), 9: (BLUE, 70, 40)}.items()
        }
        self.plain: Any = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
        self.plain.eval()
        self.words = described["text_config"]["vocab_size"] - len(tiny_vision.SPECIAL)
        self.around = [described["vision_start_token_id"]], [described["vision_end_token_id"]]

    @property
    def patches(self) -> dict[int, Patches]:
        return {number: patches_of(one.png, self.how) for number, one in self.images.items()}

    @property
    def pngs(self) -> dict[int, bytes]:
        return {number: one.png for number, one in self.images.items()}

    def image(self, number: int) -> list[int]:
        begin, end = self.around
        return [*begin, *[image_ids.id_of(number)] * self.images[number].tokens, *end]

    @torch.no_grad()
    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """The log-probs of all ids except the first, computed only by the model of transformers."""
        numbers = [number for number, _ in image_ids.runs(ids) if number >= 0]
        placed = [self.how.placeholder if image_ids.is_image(one) else one for one in ids]
        # Transformers takes every placeholder for an image, even one that is an ordinary token, so replace that one.
        stand_in = next(one for one in range(self.words) if one not in ids)
        named = [stand_in if one == self.how.placeholder else placed[at] for at, one in enumerate(ids)]
        rows = self.plain.get_input_embeddings().weight
        own_row = rows[stand_in].clone()
        rows[stand_in] = rows[self.how.placeholder]
        asked: dict[str, Any] = {"input_ids": torch.tensor([named])}
        if numbers:
            own = [self.patches[number] for number in numbers]
            asked |= {
                "pixel_values": torch.cat([torch.from_numpy(one.values) for one in own]),
                "image_grid_thw": torch.tensor([one.frames for one in own]),
                "mm_token_type_ids": torch.tensor([[int(image_ids.is_image(one)) for one in ids]]),
            }
        spread = torch.log_softmax(self.plain(**asked, use_cache=False).logits[0].float(), dim=-1)
        rows[stand_in] = own_row
        targets = torch.tensor(placed[1:])
        found: list[float] = spread[:-1].gather(1, targets[:, None])[:, 0].tolist()
        # The tokens of an image are not predicted.
        return [0.0 if image_ids.is_image(one) else value for value, one in zip(found, ids[1:], strict=True)]

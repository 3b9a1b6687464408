"""Models of transformers that read images (Qwen2.5-VL, Qwen3-VL), over rows.

Invariants:
- the cache of a row is keyed by its ids, in which every image has its own id, so an image is never mistaken for another
  one;
- the result for a token does not depend on how the prompt was cut into pieces, even within an image.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from agentrl.engines.embedded import attention_model, vision
from agentrl.engines.embedded.attention_model import GrowingKeys, Round
from agentrl.engines.embedded.decoder import scores_in_one_pass
from agentrl.engines.embedded.served_model import NO_IMAGES, Run
from agentrl.engines.embedded.vision import Features
from agentrl.images.patches import Patches
from agentrl.images.positions import Array, Places, image_runs, places_of
from agentrl.images.processing import Processing
from agentrl.tokens.image_ids import FIRST

MOST_FEATURES = 16_384
"""The most tokens of images whose features are kept besides those that are needed now."""


class VisionKeys(GrowingKeys):
    """Keys and values, with the ids of every row and the shifts of positions by its images."""

    def __init__(self, rows: int, positions: int) -> None:
        super().__init__(rows, positions)
        self.ids = np.zeros((rows, positions), dtype=np.int64)
        self.shifts = np.zeros((rows, positions), dtype=np.int64)
        self.images: Mapping[int, Patches] = {}
        """The images of the sequences that are being computed."""
        self.features: OrderedDict[tuple[int, int], Features] = OrderedDict()
        """Features by version and image."""

    def show(self, images: Mapping[int, Patches]) -> None:
        self.images = images

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        super().copy_prefix(source, target, count)
        self.ids[target, :count] = self.ids[source, :count]
        self.shifts[target, :count] = self.shifts[source, :count]


class VisionModel:
    """Implements `ServedModel`."""

    def __init__(self, version: int, model: transformers.PreTrainedModel, processing: Processing) -> None:
        untyped: Any = model
        untyped.set_attn_implementation({"text_config": attention_model.NAME, "vision_config": "sdpa"})
        self.version = version
        self.processing = processing
        self._model = untyped

    @property
    def vocabulary(self) -> int:
        return int(self._model.config.get_text_config().vocab_size)

    def fits(self, other: object) -> bool:
        return isinstance(other, VisionModel) and attention_model.shapes(self._model) == attention_model.shapes(
            other._model
        )

    def new_rows(self, rows: int, positions: int) -> VisionKeys:
        return VisionKeys(rows, positions)

    def next_logits(self, kept: VisionKeys, runs: Sequence[Run], ids: Tensor, wanted: Sequence[int]) -> Tensor:
        device: torch.device = self._model.device
        round_of = Round(kept, runs, device)
        positions, places = self._placed(kept, runs, ids.cpu().numpy())
        inputs = vision.decoder_inputs(self._model, ids[None].to(device), self._shown(kept, places))
        at = torch.from_numpy(positions)[:, None].to(device)
        found = self._model.get_decoder()(**inputs, position_ids=at, use_cache=False, slots=round_of)
        hidden = found.last_hidden_state[0]
        logits: Tensor = self._model.get_output_embeddings()(hidden[torch.tensor(list(wanted), dtype=torch.int64)])
        return logits

    def scores(
        self, sequences: Sequence[Sequence[int]], images: Mapping[int, Patches] = NO_IMAGES
    ) -> list[list[float]]:
        return scores_in_one_pass(self, sequences, images)

    def _placed(self, kept: VisionKeys, runs: Sequence[Run], ids: Array) -> tuple[Array, list[tuple[int, int]]]:
        """The positions of these tokens, and for each token of an image, the image and the token's place in it."""
        positions = np.empty((3, len(ids)), dtype=np.int64)
        shown: list[tuple[int, int]] = []
        at = 0
        for run in runs:
            own, end = ids[at : at + run.size], run.start + run.size
            kept.ids[run.row, run.start : end] = own
            if (own >= FIRST).any():
                placed = _placed_path(kept.ids[run.row, :end], kept.images)
                positions[:, at : at + run.size] = placed.positions[:, run.start :]
                kept.shifts[run.row, :end] = placed.shifts
                for one in placed.runs:
                    shown += [(one.number, place - one.start) for place in range(max(one.start, run.start), one.stop)]
            else:
                shift = int(kept.shifts[run.row, run.start - 1]) if run.start else 0
                positions[:, at : at + run.size] = np.arange(run.start, end) + shift
                kept.shifts[run.row, run.start : end] = shift
            at += run.size
        return positions, shown

    def _shown(self, kept: VisionKeys, places: Sequence[tuple[int, int]]) -> Features | None:
        """The features of image tokens at these places."""
        if not places:
            return None
        features, numbers = kept.features, list(dict.fromkeys(number for number, _ in places))
        missing = [number for number in numbers if (self.version, number) not in features]
        if missing:
            made = vision.each_image(self._model, [kept.images[number] for number in missing])
            features.update({(self.version, number): one for number, one in zip(missing, made, strict=True)})
        own = [features[self.version, number] for number in numbers]
        begins = dict(zip(numbers, np.cumsum([0, *(len(one.tokens) for one in own[:-1])]).tolist(), strict=True))
        deep = tuple(torch.cat(layer) for layer in zip(*(one.deep for one in own), strict=True))
        whole = Features(torch.cat([one.tokens for one in own]), deep)
        for number in numbers:
            features.move_to_end((self.version, number))
        _forget(features, {(self.version, number) for number in numbers})
        chosen = [begins[number] + place for number, place in places]
        return whole.at(torch.tensor(chosen, device=self._model.device))


def _placed_path(path: Array, images: Mapping[int, Patches]) -> Places:
    """The positions of all tokens of a sequence, which may be cut within its last image."""
    length = len(path)
    runs = image_runs(path)
    if runs and runs[-1].stop == length and runs[-1].number in images:
        last = runs[-1]
        missing = images[last.number].tokens - (length - last.start)
        path = np.concatenate((path, np.full(max(0, missing), path[-1])))
    # The end is beyond the last token, because the sequence goes on.
    ends = np.full(len(path), len(path) + 1)
    placed = places_of(path, np.arange(len(path)), ends, {number: one.grid for number, one in images.items()})
    cut = [one._replace(stop=min(one.stop, length)) for one in placed.runs]
    return Places(placed.positions[:, :length], placed.shifts[:length], cut)


def _forget(features: OrderedDict[tuple[int, int], Features], needed: Collection[tuple[int, int]]) -> None:
    """Drops the oldest features that are not needed now, if there are too many."""
    kept = sum(len(one.tokens) for one in features.values())
    for known in [one for one in features if one not in needed]:
        if kept <= MOST_FEATURES:
            return
        kept -= len(features.pop(known).tokens)

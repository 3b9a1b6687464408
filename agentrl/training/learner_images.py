"""The images that a model is shown while it learns, as patches.

Invariants:
- the image of the canary is always available, because another thread computes the canary beside the training;
- all other patches belong to the batch that is being trained, and are made only of what this rank trains;
- of a batch with many images no more patches are in memory than allowed; the others are made again when they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agentrl.errors import ConfigError
from agentrl.images.decoding import canary_image
from agentrl.images.patches import KeptPatches, Patches
from agentrl.images.processing import Processing
from agentrl.tokens import image_ids

CANARY = image_ids.NUMBERS
"""The number of the image of the canary. No image of a run has it."""
MOST_BYTES = 4 << 30


class LearnerImages:
    def __init__(self, how: Processing | None) -> None:
        """`how`: how the model is shown images; None if it reads only texts."""
        self.how = how
        self.canary = b"" if how is None else canary_image(how)
        self.kept = KeptPatches(MOST_BYTES)
        self.patches: Mapping[int, Patches] = {}
        self.show({})

    def show(self, images: Mapping[int, bytes]) -> None:
        if self.how is None:
            if images:
                raise ConfigError("The batch has images, and the model reads none.")
            return
        # A new mapping, because another thread may still read the former one.
        self.patches = _Shown({**images, CANARY: self.canary}, self.how, self.kept)
        self.kept.keep_only(self.patches.keys())


class _Shown(Mapping[int, Patches]):
    """The patches of some images, made when they are used."""

    def __init__(self, pngs: Mapping[int, bytes], how: Processing, kept: KeptPatches) -> None:
        self._pngs, self._how, self._kept = pngs, how, kept

    def __getitem__(self, number: int) -> Patches:
        return self._kept.of(number, self._pngs[number], self._how)

    def __contains__(self, number: object) -> bool:
        return number in self._pngs

    def __iter__(self) -> Iterator[int]:
        return iter(self._pngs)

    def __len__(self) -> int:
        return len(self._pngs)

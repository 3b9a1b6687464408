"""The images that a model is shown while it learns, as patches.

Invariants:
- the image of the canary is always there, because a canary is computed by another thread beside the training;
- patches are those of the batch that is trained and of no other.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.errors import ConfigError
from agentrl.images.decoding import canary_image
from agentrl.images.patches import Patches, patches_of
from agentrl.images.processing import Processing
from agentrl.tokens import image_ids

CANARY = image_ids.NUMBERS
"""The number of the image of the canary. No image of a run has it."""


class LearnerImages:
    def __init__(self, how: Processing | None) -> None:
        """`how` the model is shown images; None if it reads texts only."""
        self.how = how
        self.canary = b"" if how is None else canary_image(how)
        self.patches: Mapping[int, Patches] = {}
        self.show({})

    def show(self, images: Mapping[int, bytes]) -> None:
        """Those of a batch."""
        if self.how is None:
            if images:
                raise ConfigError("The batch has images, and the model reads none.")
            return
        known, how = self.patches, self.how
        wanted = {**images, CANARY: self.canary}
        # Another thread may read the former ones.
        self.patches = {number: known.get(number) or patches_of(png, how) for number, png in wanted.items()}

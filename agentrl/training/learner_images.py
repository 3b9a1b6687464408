"""The images that a model is shown while it learns, as patches.

Invariants:
- the image of the canary is always available, because another thread computes the canary beside the training;
- all other patches belong to the batch that is being trained.
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
        """`how`: how the model is shown images; None if it reads only texts."""
        self.how = how
        self.canary = b"" if how is None else canary_image(how)
        self.patches: Mapping[int, Patches] = {}
        self.show({})

    def show(self, images: Mapping[int, bytes]) -> None:
        """Set the images of a batch."""
        if self.how is None:
            if images:
                raise ConfigError("The batch has images, and the model reads none.")
            return
        known, how = self.patches, self.how
        wanted = {**images, CANARY: self.canary}
        # A new mapping, because another thread may still read the former one.
        self.patches = {number: known.get(number) or patches_of(png, how) for number, png in wanted.items()}

"""Turns pixels into the input of a vision tower, by the image processor of transformers with the settings of the model.

Invariant: an image already has the size that the model sees, so no other program resizes it differently.
"""

from __future__ import annotations

import functools
import io
from typing import Any, NamedTuple

import msgspec
import numpy as np

from agentrl.images.processing import ImageError, Processing, Size

Array = np.ndarray[Any, Any]


class Patches(NamedTuple):
    """The patches of one image."""

    values: Array
    """[patches, width], float32."""
    grid: Size
    """Rows and columns of tokens."""
    merge: int

    @property
    def tokens(self) -> int:
        return self.grid.height * self.grid.width

    @property
    def frames(self) -> tuple[int, int, int]:
        """Time, rows and columns of patches."""
        return 1, self.grid.height * self.merge, self.grid.width * self.merge


def patches_of(png: bytes, processing: Processing) -> Patches:
    """The patches of an image in the size that the model sees. Raises ImageError for any other size."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(png), formats=("PNG",)) as opened:
            width, height = opened.size
            if height * width > processing.most_pixels or height % processing.side or width % processing.side:
                raise ImageError(f"An image of {width}x{height} is not in a size that the model sees.")
            pixels = np.asarray(opened.convert("RGB"))
    except ImageError:
        raise
    except Exception as broken:  # noqa: BLE001 - decoders raise whatever they meet
        raise ImageError(f"The image cannot be decoded: {type(broken).__name__}.") from None
    made = _processor(msgspec.json.encode(processing.settings))(images=pixels, do_resize=False, return_tensors="np")
    grid = processing.grid(Size(height, width))
    return Patches(np.asarray(made["pixel_values"], dtype=np.float32), grid, processing.merge)


@functools.lru_cache(maxsize=4)
def _processor(settings: bytes) -> Any:
    # Imported here, because it takes seconds that models of texts do not need.
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil(**msgspec.json.decode(settings))

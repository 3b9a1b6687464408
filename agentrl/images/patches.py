"""Turns pixels into the input of a vision tower, by the image processor of transformers with the settings of the model.

Invariants:
- an image already has the size that the model sees, so no other program resizes it differently;
- patches take eight times the memory of their pixels, so no more of them are kept than allowed.
"""

from __future__ import annotations

import functools
import io
import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec
import numpy as np

from agentrl.images.processing import ImageError, Processing, Size

Array = np.ndarray[Any, Any]


class Patches(NamedTuple):
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
    except Exception as broken:  # noqa: BLE001 - decoders raise errors of any kind
        raise ImageError(f"The image cannot be decoded: {type(broken).__name__}.") from None
    made = _processor(msgspec.json.encode(processing.settings))(images=pixels, do_resize=False, return_tensors="np")
    grid = processing.grid(Size(height, width))
    return Patches(np.asarray(made["pixel_values"], dtype=np.float32), grid, processing.merge)


class KeptPatches:
    """The patches of images by their numbers, those that were used last. May be used by several threads."""

    def __init__(self, most_bytes: int) -> None:
        """One image is kept, however large it is."""
        self._most_bytes = most_bytes
        self._patches: OrderedDict[int, Patches] = OrderedDict()
        self._turn = threading.Lock()
        self.bytes = 0

    def of(self, number: int, png: bytes, processing: Processing) -> Patches:
        """Of the image with this number, made again if they are not kept. Raises ImageError."""
        with self._turn:
            if number in self._patches:
                self._patches.move_to_end(number)
                return self._patches[number]
        made = patches_of(png, processing)
        with self._turn:
            if number not in self._patches:
                self._patches[number] = made
                self.bytes += made.values.nbytes
            while self.bytes > self._most_bytes and len(self._patches) > 1:
                self._forget(next(iter(self._patches)))
        return made

    def keep_only(self, numbers: Collection[int]) -> None:
        with self._turn:
            for number in [patch for patch in self._patches if patch not in numbers]:
                self._forget(number)

    def _forget(self, number: int) -> None:
        self.bytes -= self._patches.pop(number).values.nbytes


@functools.lru_cache(maxsize=4)
def _processor(settings: bytes) -> Any:
    # Imported here, because it takes seconds that models of texts do not need.
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil(**msgspec.json.decode(settings))

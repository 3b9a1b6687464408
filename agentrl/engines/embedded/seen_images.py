"""The patches of images of earlier calls, for the next call that shows them.

Invariants:
- a number stands for one image: the cache of an engine is keyed by it, so the same number with other bytes is refused;
- old patches are dropped, but the meaning of a number is kept.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping

from agentrl.images.patches import Patches, patches_of
from agentrl.images.processing import ImageError, Processing
from agentrl.tokens.image_ids import label

MOST_BYTES = 256 << 20


class SeenImages:
    """The images seen so far. May be used by several threads."""

    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}
        self._patches: OrderedDict[int, Patches] = OrderedDict()
        self._bytes = 0
        self._turn = threading.Lock()

    def patches(self, images: Mapping[int, bytes], how: Processing) -> dict[int, Patches]:
        """The patches of these images. Raises ImageError."""
        return {number: self._one(number, png, how) for number, png in images.items()}

    def _one(self, number: int, png: bytes, how: Processing) -> Patches:
        digest = hashlib.blake2b(png, digest_size=16).digest()
        with self._turn:
            if self._digests.get(number, digest) != digest:
                raise ImageError(f"The image {label(number)} came with other bytes before.")
            if number in self._patches:
                self._patches.move_to_end(number)
                return self._patches[number]
        made = patches_of(png, how)
        with self._turn:
            if self._digests.setdefault(number, digest) != digest:
                raise ImageError(f"The image {label(number)} came with other bytes before.")
            if number not in self._patches:
                self._patches[number] = made
                self._bytes += made.values.nbytes
            while self._bytes > MOST_BYTES and len(self._patches) > 1:
                self._bytes -= self._patches.popitem(last=False)[1].values.nbytes
        return made

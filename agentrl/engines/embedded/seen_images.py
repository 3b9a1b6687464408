"""The patches of images of earlier calls, for the next call that shows them.

Invariants:
- a number stands for one image: the cache of an engine is keyed by it, so the same number with other bytes is refused;
- old patches are dropped, but the meaning of a number is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from agentrl.images.patches import KeptPatches, Patches
from agentrl.images.processing import ImageError, Processing
from agentrl.tokens.image_ids import label

MOST_BYTES = 256 << 20


class SeenImages:
    """The images seen so far. May be used by several threads."""

    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}
        self._kept = KeptPatches(MOST_BYTES)

    def patches(self, images: Mapping[int, bytes], how: Processing) -> dict[int, Patches]:
        """The patches of these images. Raises ImageError."""
        return {number: self._one(number, png, how) for number, png in images.items()}

    def _one(self, number: int, png: bytes, how: Processing) -> Patches:
        digest = hashlib.blake2b(png, digest_size=16).digest()
        _refuse_other(number, digest, self._digests.get(number, digest))
        found = self._kept.of(number, png, how)
        # Not before it was decoded, and once more, because another thread may have brought other bytes meanwhile.
        _refuse_other(number, digest, self._digests.setdefault(number, digest))
        return found


def _refuse_other(number: int, digest: bytes, known: bytes) -> None:
    if known != digest:
        raise ImageError(f"The image {label(number)} came with other bytes before.")

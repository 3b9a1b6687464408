"""How images are shown to a model, as the model's directory describes it.

Invariants:
- sizes and numbers of tokens are those of the image processors of transformers of the Qwen2-VL kind;
- no image is decoded to find out how many tokens it has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agentrl.errors import AgentrlError, ConfigError

FILES = ("preprocessor_config.json", "processor_config.json")
"""Files with the settings of the processor; the first one that exists is used."""
MODELS = frozenset({"qwen2_5_vl", "qwen3_vl"})
"""Types of models whose images are read."""
_KINDS = ("Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor", "Qwen3VLImageProcessor")
MOST_RATIO = 200
"""The largest ratio of the longer side to the shorter one."""


class ImageError(AgentrlError):
    """An image cannot be shown to the model: the reason as one sentence."""


class Size(NamedTuple):
    height: int
    width: int


class Processing(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one model's image processor."""

    placeholder: int
    """The id of the model's token for images."""
    patch: int = 14
    merge: int = 2
    """This many patches in each direction become one token."""
    least_pixels: int = 56 * 56
    most_pixels: int = 28 * 28 * 1280
    settings: dict[str, Any] = {}
    """All settings, for the processor itself."""

    @property
    def side(self) -> int:
        """Pixels of one token in each direction."""
        return self.patch * self.merge

    def limited(self, most_pixels: int) -> Processing:
        """The settings with fewer pixels, if the limit is lower; 0 means no limit."""
        if not most_pixels or most_pixels >= self.most_pixels:
            return self
        return msgspec.structs.replace(self, most_pixels=most_pixels, least_pixels=min(self.least_pixels, most_pixels))

    def shown_size(self, size: Size) -> Size:
        """The size in which the model sees an image. Raises ImageError for an image that is too long."""
        height, width = size
        if max(size) > MOST_RATIO * min(size):
            raise ImageError(f"The image is {width}x{height}: one side is more than {MOST_RATIO} times the other.")
        side = self.side
        rows, columns = round(height / side), round(width / side)
        if rows * columns * side * side > self.most_pixels:
            scale = math.sqrt(height * width / self.most_pixels)
            rows, columns = (max(1, math.floor(length / scale / side)) for length in size)
        elif rows * columns * side * side < self.least_pixels:
            scale = math.sqrt(self.least_pixels / (height * width))
            rows, columns = (math.ceil(length * scale / side) for length in size)
        return Size(rows * side, columns * side)

    def grid(self, shown: Size) -> Size:
        """Rows and columns of tokens."""
        return Size(shown.height // self.side, shown.width // self.side)

    def tokens(self, shown: Size) -> int:
        return math.prod(self.grid(shown))


def reads_images(described: Mapping[str, Any]) -> bool:
    """Whether a model with this configuration can read images."""
    return "vision_config" in described


def processing_of(directory: Path, described: Mapping[str, Any]) -> Processing | None:
    """The settings in a model's directory; None for a model that reads only text. Raises ConfigError."""
    if not reads_images(described):
        return None
    file = next((directory / name for name in FILES if (directory / name).is_file()), None)
    if file is None:
        raise ConfigError(
            f"{directory} reads images and has no {FILES[0]}.", hint="Copy it from where the model is from."
        )
    return processing_from(file.read_bytes(), file.name, described, str(directory))


def processing_from(content: bytes, name: str, described: Mapping[str, Any], where: str) -> Processing:
    """The settings in the content of the file of that name."""
    try:
        found = json.loads(content)
        found = found.get("image_processor", found)
        size = found.get("size") or {}
        kind = str(found.get("image_processor_type") or "").removesuffix("Fast")
        processing = Processing(
            placeholder=int(described["image_token_id"]),
            patch=int(found.get("patch_size") or 14),
            merge=int(found.get("merge_size") or 2),
            least_pixels=int(found.get("min_pixels") or size.get("shortest_edge") or 56 * 56),
            most_pixels=int(found.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280),
            settings=found,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise ConfigError(f"{where} does not say how images are shown: {name}: {broken!r}.") from None
    if kind and kind not in _KINDS:
        raise ConfigError(f"{where} has the image processor {kind}, which is not known.", hint="Known: Qwen2-VL's.")
    if found.get("do_resize") is False:
        raise ConfigError(f"{where}: {name} leaves images as large as they are (do_resize), so they fit no patches.")
    return processing

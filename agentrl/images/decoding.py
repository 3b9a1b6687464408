"""Bytes of any origin to pixels, by Pillow, within limits.

Images come from datasets, tools and addresses, so they may be hostile: a file may be truncated, have another type than
it declares, or describe more pixels than fit into memory.

Invariants:
- the size is read from the header, and compared with the limit, before anything is decoded;
- formats that are not listed are not opened;
- large images are decoded one at a time, because decoding one takes some hundred megabytes;
- an image is upright, as its EXIF data says, and opaque: the model sees what people see;
- any fault of the bytes raises ImageError with one sentence.
"""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from typing import Any, NamedTuple

from agentrl.errors import ConfigError
from agentrl.images.processing import ImageError, Processing, Size

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MOST_DECODED_PIXELS = 64 << 20
"""Limits the image as it is stored; the model sees a smaller one."""
LARGE_PIXELS = 8 << 20
_large = threading.Lock()
_ORIENTATION = 0x0112
"""A tag of EXIF."""
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What makes an image with such an orientation upright, by Pillow's name."""


class Shown(NamedTuple):
    """An image as a model sees it."""

    png: bytes
    size: Size
    tokens: int
    stored: Size
    """The size in its file."""
    format: str


def shown(data: bytes, processing: Processing) -> Shown:
    """The image in the size that the model sees, without loss. Raises ImageError."""
    pillow = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pillow.open(io.BytesIO(data), formats=FORMATS) as opened:
                width, height = opened.size
                size, kind = Size(height, width), str(opened.format)
                if height * width > MOST_DECODED_PIXELS:
                    raise ImageError(f"The image is {width}x{height}, and more than {MOST_DECODED_PIXELS} pixels.")
                processing.shown_size(size)  # refuses what is too long, before it is decoded
                with _large if height * width > LARGE_PIXELS else contextlib.nullcontext():
                    pixels = _upright(_opaque(opened), _orientation(opened))
                    target = processing.shown_size(Size(pixels.height, pixels.width))
                    if pixels.size != (target.width, target.height):
                        pixels = pixels.resize((target.width, target.height), pillow.Resampling.BICUBIC)
    except ImageError:
        raise
    except Exception as broken:  # noqa: BLE001 - decoders raise errors of any kind
        raise ImageError(f"The image cannot be decoded: {_reason(broken, data)}.") from None
    return Shown(_png(pixels), target, processing.tokens(target), size, kind.lower())


def canary_image(processing: Processing) -> bytes:
    """A small image of arbitrary pixels, the same in all processes, in a size that the model sees."""
    size = processing.shown_size(Size(2 * processing.side, 3 * processing.side))
    places = range(size.height * size.width * 3)
    pixels = bytes((place * place * 7 + place * 31) >> 3 & 255 for place in places)
    made = _pillow().frombytes("RGB", (size.width, size.height), pixels)
    return _png(made)


def _opaque(opened: Any) -> Any:
    """Puts the image on white, as people see it: black text on a transparent background would become black on black."""
    if opened.mode.startswith("I"):
        # Grey of 16 bits. Pillow would make everything white that is not nearly black.
        opened = opened.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    if not opened.has_transparency_data:
        return opened.convert("RGB")
    whole = opened.convert("RGBA")
    return _pillow().alpha_composite(_pillow().new("RGBA", whole.size, "white"), whole).convert("RGB")


def _orientation(opened: Any) -> int:
    """1 for an image that is upright."""
    try:
        return int(opened.getexif().get(_ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - the pixels are whole, whatever is wrong with what cameras write beside them
        return 1


def _upright(pixels: Any, orientation: int) -> Any:
    turn = _TURNS.get(orientation)
    return pixels if turn is None else pixels.transpose(getattr(_pillow().Transpose, turn))


def _png(pixels: Any) -> bytes:
    written = io.BytesIO()
    pixels.save(written, "PNG", compress_level=1)
    return written.getvalue()


def _reason(broken: Exception, data: bytes) -> str:
    if type(broken).__name__ == "UnidentifiedImageError":
        return f"its {len(data)} bytes are none of {', '.join(FORMATS)}"
    # The message of a decoder may contain parts of the file.
    text = " ".join(str(broken).split())[:120] or type(broken).__name__
    return text.rstrip(".")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        needs = "Reading images needs Pillow."
        raise ConfigError(needs, hint="Install it with `pip install 'agentrl[train]'`.") from None
    return Image

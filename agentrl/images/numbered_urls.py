"""Images beside the tokens of a model call, in the form that HTTP APIs of engines accept: data URLs that contain their
numbers.

Every version of SGLang accepts texts there; it accepts objects only with certain keys.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping

from agentrl.images.processing import ImageError

_NUMBERED = re.compile(r"data:image/png;number=(\d{1,9});base64,", re.ASCII)


def written(images: Mapping[int, bytes]) -> list[str]:
    """The data URLs of PNGs, which are given by number."""
    return [f"data:image/png;number={number};base64,{base64.b64encode(png).decode()}" for number, png in images.items()]


def read(urls: Iterable[str]) -> dict[int, bytes]:
    """The PNGs of data URLs, by number. Raises ImageError."""
    found = {}
    for url in urls:
        if (head := _NUMBERED.match(url)) is None:
            raise ImageError(f"An image of a call is no data URL of a PNG with its number: {url[:40]!r}")
        try:
            found[int(head[1])] = base64.b64decode(url[head.end() :], validate=True)
        except binascii.Error as broken:
            raise ImageError(f"The data of an image is not Base64: {broken}.") from None
    return found

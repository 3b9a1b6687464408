"""The images that a message names, and their bytes.

The parts of a message are those of the usual interfaces: `{"type": "image", "image": X}` and `{"type": "image_url",
"image_url": {"url": X}}`, where X is a path, a data URL or an address.

Invariants:
- an address is fetched only if the run file lists its origin, and redirects are not followed;
- never more bytes are read than the limit, whatever size a server or a file declares.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agentrl.images.processing import ImageError
from agentrl.tokens.image_marks import mark, plain

WITHIN_S = 30.0
_BUSY, _BROKEN = 429, 500
"""Statuses with which a server refuses for now; those above the second do too."""
_DATA = re.compile(r"data:([\w.+/-]*)(;[\w=-]+)*;base64,", re.ASCII)


class ImageAwayError(ImageError):
    """An address gives no image now, and may give it later."""


class Limits(msgspec.Struct, frozen=True):
    """What the run file allows."""

    bytes: int = 8 << 20
    origins: tuple[str, ...] = ()
    """The origins that may be fetched from, such as `https://images.example.org`."""
    within: Mapping[str, str] = {}
    """For each environment with a sandbox: the directory that must contain the image files that its rows name."""

    def outside(self, environment: str, source: str) -> bool:
        """Whether this is a file that the environment may not name, because its episodes would show it."""
        directory = self.within.get(environment)
        if directory is None or source.startswith(("data:", "http://", "https://")):
            return False
        return not Path(source).resolve().is_relative_to(Path(directory).resolve())


USUAL = Limits()


def text_of(content: Any, *, beside: Path | None) -> str:
    """The text of a message with a mark for each image; paths are relative to `beside`. None: files are on another
    host, so nothing is known of them. Raises ImageError."""
    if isinstance(content, str):
        return plain(content)
    if not isinstance(content, list) or not content:
        raise ImageError("must be a text or a list of parts")
    return "".join(_part(part, beside) for part in content)


def source_of(value: Any, *, beside: Path | None) -> str:
    """A path, an address or a data URL as text. Raises ImageError."""
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
        return f"data:;base64,{base64.b64encode(value['bytes']).decode()}"
    if isinstance(value, Mapping):
        value = value.get("url") or value.get("path")
    if not isinstance(value, str) or not value.strip():
        raise ImageError("has an image without a path, an address or data")
    if value.startswith("data:"):
        if not _DATA.match(value):
            raise ImageError(f"has an image with data that is not in Base64: {value[:32]!r}")
        return value
    if match := re.match(r"([a-zA-Z][\w+.-]+)://", value):
        scheme = match[1].lower()
        if scheme not in ("http", "https"):
            raise ImageError(f"has an image at {value[:64]!r}, which is neither http nor https")
        if not _is_address(value):
            raise ImageError(f"has an image at {value[:64]!r}, which is no address")
        return scheme + value[len(scheme) :]
    if beside is None:
        return value
    path = (beside / value).absolute()
    if not path.is_file():
        raise ImageError(f"has an image {value[:200]!r}, and there is no file {path}")
    return str(path)


def _part(part: Any, beside: Path | None) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    match kind:
        case "text" if isinstance(part.get("text"), str):
            return plain(part["text"])
        case "image" | "image_url" | "input_image":
            value = part.get("image", part.get("image_url", part.get("source", part)))
            if isinstance(value, Mapping) and "data" in value:
                value = f"data:{value.get('media_type', '')};base64,{value['data']}"
            return mark(source_of(value, beside=beside))
    raise ImageError(f"has a part of the type {kind!r}; known are text, image and image_url")


def problem_of(source: str, limits: Limits) -> str:
    """Why an image may not be fetched; empty if it may."""
    if not source.startswith(("http://", "https://")):
        return ""
    origin = _origin(source)
    allowed = origin in [_origin(one) for one in limits.origins]
    return "" if allowed else f"The image is at {origin}, which model.images.origins does not list."


async def bytes_of(source: str, limits: Limits) -> bytes:
    """The bytes of an image, not decoded. Raises ImageError, or ImageAwayError if it may work later."""
    if source.startswith("data:"):
        return _decoded(source, limits.bytes)
    if source.startswith(("http://", "https://")):
        return await _fetched(source, limits)
    return await asyncio.to_thread(_read, Path(source), limits.bytes)


def _decoded(source: str, most: int) -> bytes:
    text = source.partition(",")[2]
    if len(text) > most * 4 // 3 + 4:
        raise _too_large(most)
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as broken:
        raise ImageError(f"The data of an image is not Base64: {broken}.") from None


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ImageError(f"The image {path} cannot be read: {error.strerror}.") from None
    if len(data) > most:
        raise _too_large(most)
    return data


async def _fetched(address: str, limits: Limits) -> bytes:
    import httpx

    if problem := problem_of(address, limits):
        raise ImageError(problem)
    origin = _origin(address)
    data = bytearray()
    try:
        async with (
            asyncio.timeout(WITHIN_S),
            httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=WITHIN_S) as client,
            client.stream("GET", address, headers={"Accept-Encoding": "identity"}) as reply,
        ):
            if reply.status_code != 200:
                for_now = reply.status_code == _BUSY or reply.status_code >= _BROKEN
                kind = ImageAwayError if for_now else ImageError
                raise kind(f"{origin} answers {reply.status_code} instead of an image.")
            if (encoding := reply.headers.get("Content-Encoding", "identity")) != "identity":
                raise ImageError(f"{origin} answers in the encoding {encoding[:20]!r}, which it was not asked for.")
            # Reads raw bytes, because a compressed chunk may grow a thousandfold before it is counted.
            async for piece in reply.aiter_raw():
                data += piece
                if len(data) > limits.bytes:
                    raise _too_large(limits.bytes)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as broken:
        kind = ImageAwayError if isinstance(broken, httpx.TransportError | TimeoutError) else ImageError
        raise kind(f"{origin} gives no image: {str(broken)[:120] or type(broken).__name__}.") from None
    return bytes(data)


def _is_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _origin(address: str) -> str:
    try:
        parts = urlsplit(address)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return address[:200]
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


def _too_large(most: int) -> ImageError:
    return ImageError(f"The image has more than {most} bytes (model.images.max_bytes).")

"""The images of episodes as the model sees them.

Invariants:
- an image is decoded once for all episodes of a sampler that show it at about the same time, in a thread;
- the tokens of an image depend on its bytes and on the model alone, so all records of a run have the same ones;
- an image that an episode shows is noted as used, so that retention keeps it as long as the record.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, NamedTuple, Protocol

import msgspec

from agentrl.errors import DiskError
from agentrl.images import decoding
from agentrl.images.processing import ImageError, Processing
from agentrl.store import images
from agentrl.store.database import Database
from agentrl.store.documents import Image
from agentrl.tokens import image_ids, image_marks

MOST_BYTES = 64 << 20
MOST_TOKENS = 16_384
"""The most tokens of one image."""
MOST_OF_LOOP_BYTES = 32 << 20
"""The most bytes that the loop of an episode may store, because its images outlive the episode."""


class Shown(NamedTuple):
    number: int
    png: bytes
    ids: list[int]


class ImageShelf(Protocol):
    """The place where images are kept."""

    async def put(self, data: bytes) -> Image: ...

    async def get(self, name: str) -> Image | None: ...

    async def use(self, name: str) -> None:
        """A record is about to name it."""
        ...

    async def decoded(self, image: Image, found: decoding.Shown) -> None:
        """Store the format and the size that decoding found."""
        ...


class DatabaseShelf:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, data: bytes) -> Image:
        return await images.put(self._database, data)

    async def get(self, name: str) -> Image | None:
        return (await images.get(self._database, [name])).get(name)

    async def use(self, name: str) -> None:
        await images.use(self._database, name)

    async def decoded(self, image: Image, found: decoding.Shown) -> None:
        if not image.width:
            size = found.stored
            await images.note_size(self._database, image, width=size.width, height=size.height, format=found.format)


class TemporaryShelf:
    """For episodes without a database: in a file without a name, so a long evaluation needs no memory for it, and
    nothing of it is left when the process ends."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._images: dict[str, Image] = {}
        """Without their bytes."""
        self._begins: dict[str, int] = {}
        """Where the bytes of each begin."""

    async def put(self, data: bytes) -> Image:
        """Raises DiskError."""
        name = hashlib.sha256(data).hexdigest()
        if name not in self._images:
            try:
                self._begins[name] = self._written(data)
            except OSError as broken:
                raise DiskError(
                    f"An image cannot be kept in {tempfile.gettempdir()}: {broken.strerror}.",
                    hint="Make room there, or set TMPDIR to another directory.",
                ) from broken
            self._images[name] = Image(id=name, number=len(self._images), length=len(data))
        return self._images[name]

    def _written(self, data: bytes) -> int:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="agentrl-images-")  # noqa: SIM115 - it is closed with the shelf
            weakref.finalize(self, self._file.close)
        begin = self._file.seek(0, os.SEEK_END)
        self._file.write(data)
        self._file.flush()
        return begin

    async def get(self, name: str) -> Image | None:
        known = self._images.get(name)
        if known is None or self._file is None:
            return None
        data = await asyncio.to_thread(os.pread, self._file.fileno(), known.length, self._begins[name])
        return msgspec.structs.replace(known, data=data)

    async def use(self, name: str) -> None:
        """Nothing is removed from it."""

    async def decoded(self, image: Image, found: decoding.Shown) -> None:
        """Does nothing: only people read that."""


class ShownImages:
    """The images of all episodes of a process."""

    def __init__(self, shelf: ImageShelf, how: Processing | None, *, most_bytes: int) -> None:
        """`how`: how the model is shown images; None if it reads texts only."""
        self._shelf = shelf
        self._how = how
        self.most_bytes = most_bytes
        self._known: OrderedDict[str, Shown] = OrderedDict()
        self._used: dict[str, float] = {}
        """When the use of each known image was last noted."""
        self._under_way: dict[str, asyncio.Task[Shown]] = {}
        self._bytes = 0

    @property
    def can_be_read(self) -> bool:
        return self._how is not None

    async def shown(self, name: str) -> Shown:
        """Raises ImageError."""
        if name in self._known:
            self._known.move_to_end(name)
            found = self._known[name]
            if time.monotonic() - self._used[name] > images.USED_EVERY_S:
                self._used[name] = time.monotonic()
                await self._shelf.use(name)
            return found
        if self._how is None:
            raise ImageError("The model reads no images.")
        if not image_marks.is_stored(name):
            raise ImageError(name.removeprefix(image_marks.REFUSED))
        if name not in self._under_way:
            work = asyncio.create_task(self._decoded(name, self._how), name=f"image {name[:12]}")
            self._under_way[name] = work
            work.add_done_callback(lambda _: self._is_decoded(name))
        # If an episode is cancelled, the work goes on for the others that wait for it.
        return await asyncio.shield(self._under_way[name])

    def _is_decoded(self, name: str) -> None:
        work = self._under_way.pop(name)
        if not work.cancelled():
            work.exception()  # Marks the exception as retrieved: there may be no caller left to do it.

    async def _decoded(self, name: str, how: Processing) -> Shown:
        await self._shelf.use(name)
        image = await self._shelf.get(name)
        if image is None:
            raise ImageError(f"The image {name[:12]} is not stored.")
        found = await asyncio.to_thread(decoding.shown, image.data, how)
        return await self._known_from_now_on(image, found)

    async def _known_from_now_on(self, image: Image, found: decoding.Shown) -> Shown:
        _refuse_too_many_tokens(image.id, found)
        await self._shelf.decoded(image, found)
        made = Shown(image.number, found.png, [image_ids.id_of(image.number)] * found.tokens)
        self._forget(image.id)
        self._known[image.id], self._used[image.id] = made, time.monotonic()
        self._bytes += len(made.png)
        while self._bytes > MOST_BYTES and len(self._known) > 1:
            self._forget(next(iter(self._known)))
        return made

    def _forget(self, name: str) -> None:
        if (shown := self._known.pop(name, None)) is not None:
            self._bytes -= len(shown.png)
            del self._used[name]

    async def kept(self, data: bytes) -> str:
        """Stores an image that a tool or a loop made, and returns its name. Raises ImageError if it cannot be shown to
        the model."""
        if len(data) > self.most_bytes:
            raise ImageError(f"The image has more than {self.most_bytes} bytes.")
        if self._how is None:
            raise ImageError("The model reads no images.")
        found = await asyncio.to_thread(decoding.shown, data, self._how)
        _refuse_too_many_tokens(hashlib.sha256(data).hexdigest(), found)
        image = await self._shelf.put(data)
        await self._known_from_now_on(image, found)
        return image.id


def _refuse_too_many_tokens(name: str, found: decoding.Shown) -> None:
    if found.tokens > MOST_TOKENS:
        raise ImageError(f"The image {name[:12]} has {found.tokens} tokens, and at most {MOST_TOKENS} are allowed.")


class EpisodeImages:
    """The images that one episode has shown so far."""

    def __init__(self, all_images: ShownImages) -> None:
        self._all = all_images
        self._by_name: dict[str, Shown] = {}
        self._of_loop_bytes = 0

    @property
    def tokens(self) -> Mapping[str, Sequence[int]]:
        return {name: one.ids for name, one in self._by_name.items()}

    async def load(self, *texts: str) -> None:
        """Loads the images that these texts name. Raises ImageError."""
        for name in image_marks.names_in(*texts):
            if name not in self._by_name:
                self._by_name[name] = await self._all.shown(name)

    async def of_tool(self, text: str, images: Mapping[str, bytes]) -> str:
        """The result of a tool with the names of stored images. Images that cannot be shown are described in words."""
        names = {} if self._all.can_be_read else dict.fromkeys(images, "[an image, which the model cannot read]")
        for key, data in images.items() if self._all.can_be_read else ():
            try:
                names[key] = image_marks.mark(await self._all.kept(data))
            except ImageError as wrong:
                names[key] = f"[no image: {wrong.message}]"
        return image_marks.replaced(text, lambda name: names.get(name) or image_marks.words(name))

    async def of_loop(self, data: bytes) -> str:
        """A text that shows an image of an agent loop, which is stored. Raises ImageError."""
        self._of_loop_bytes += len(data)
        if self._of_loop_bytes > MOST_OF_LOOP_BYTES:
            raise ImageError(f"The loop has made more than {MOST_OF_LOOP_BYTES >> 20} MiB of images in this episode.")
        text = image_marks.mark(await self._all.kept(data))
        await self.load(text)
        return text

    def shown_in(self, *texts: str) -> list[bytes]:
        """The images of these texts, in order, as the model sees them; only those that this episode has shown."""
        names = image_marks.names_in(*texts)
        return [self._by_name[name].png for name in names if name in self._by_name]

    def in_prompt(self, ids: Iterable[int]) -> dict[int, bytes]:
        """The images that these tokens show, as engines get them."""
        wanted = set(image_ids.numbers_in(ids))
        return {one.number: one.png for one in self._by_name.values() if one.number in wanted}

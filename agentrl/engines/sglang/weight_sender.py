"""Sends weights to an SGLang server from the process that answers its HTTP requests.

The files are read and checked before calls are paused, so the pause is only as long as the transfer: by a process group
that this process and the ranks of the server join, or by CUDA IPC on the GPUs that they share.

Invariants:
- the sent bytes are the checked bytes;
- the store of the group listens on the loopback address only;
- a failed transfer is reported, and its group is not used again.

This module is for the Python of SGLang's own environment, which has none of agentrl's dependencies.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

BUCKET_BYTES = 256 << 20
READERS = 2
WITHIN_S = 300.0
LOOPBACK = "127.0.0.1"
GROUP = "agentrl"
_TYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16", "I64": "int64", "I32": "int32"}
Post = Callable[[str, dict[str, Any]], Coroutine[Any, Any, str]]
"""Posts a request to the server; returns why it failed, or an empty text."""


class SendError(Exception):
    """The weights were not sent; the message says why."""


class Shard(NamedTuple):
    """A file in memory."""

    data: bytearray
    tensors: list[tuple[str, str, list[int], int, int]]
    """For each tensor: name, type, shape, begin and end."""


class Bucket(NamedTuple):
    """Consecutive tensors of a file, which are sent together."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    data: bytearray
    begin: int
    end: int


class Sender:
    def __init__(self, post: Post) -> None:
        self._post = post
        self._shards: list[Shard] = []
        self._group: Any = None
        self._name = ""
        self._joined = 0

    async def prepare(self, directory: str, files: dict[str, dict[str, Any]]) -> None:
        """Reads and checks files before calls are paused. Raises SendError, which names every wrong file."""
        self._shards = []
        # This does not use the event loop's own threads, because each call of the server needs some of them.
        with ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="weights") as pool:
            loop = asyncio.get_running_loop()
            read = (loop.run_in_executor(pool, _read, Path(directory) / name, entry) for name, entry in files.items())
            found = await asyncio.gather(*read)
        if wrong := [one for one in found if isinstance(one, str)]:
            raise SendError(f"The weights in {directory} are not as announced: {'; '.join(wrong)}.")
        self._shards = [one for one in found if isinstance(one, Shard)]

    async def send(self, version: str, way: str, ranks: int, *, flush: bool) -> None:
        """Sends the prepared weights. Raises SendError; then the server may have a part of them."""
        shards, self._shards = self._shards, []
        if not shards:
            raise SendError("No weights were prepared.")
        buckets = [bucket for shard in shards for bucket in _buckets(shard)]
        if way == "group" and self._group is None:
            self._group = await self._join(ranks)
        await self._demand("/begin_weight_update", {})
        try:
            for bucket in buckets:
                body = {"weight_version": version, "flush_cache": flush and bucket is buckets[-1]}
                if way == "group":
                    await self._broadcast(bucket, body)
                else:
                    await self._share(bucket, body, ranks)
        except BaseException:
            self._group = None
            raise
        finally:
            await self._demand("/end_weight_update", {})

    async def _join(self, ranks: int) -> Any:
        """The group of this process and the ranks of the server."""
        from sglang.srt.utils import init_custom_process_group
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        self._joined += 1
        name = f"{GROUP}-{self._joined}"  # the name of a failed group does not become free again
        listener = socket.create_server((LOOPBACK, 0), backlog=ranks + 1)
        port = listener.getsockname()[1]
        limit = timedelta(seconds=WITHIN_S)
        # torch by itself would listen on all addresses of the host.
        store = TCPStore(
            LOOPBACK, port, ranks + 1, True, limit, wait_for_workers=False, master_listen_fd=listener.detach()
        )

        def join() -> Any:
            return init_custom_process_group(
                backend="gloo",
                store=PrefixStore(name, store),
                world_size=ranks + 1,
                rank=0,
                group_name=name,
                timeout=limit,
            )

        body = {
            "master_address": LOOPBACK,
            "master_port": port,
            "rank_offset": 1,
            "world_size": ranks + 1,
            "group_name": name,
            "backend": "gloo",
        }
        self._name = name
        return await self._both("/init_weights_update_group", body, join)

    async def _broadcast(self, bucket: Bucket, body: dict[str, Any]) -> None:
        import torch

        flat = torch.frombuffer(bucket.data, dtype=torch.uint8)[bucket.begin : bucket.end]
        named = {"names": bucket.names, "dtypes": bucket.dtypes, "shapes": bucket.shapes}
        whole = {**body, **named, "group_name": self._name, "load_format": "flattened_bucket"}

        def broadcast() -> None:
            torch.distributed.broadcast(flat, src=0, group=self._group)

        await self._both("/update_weights_from_distributed", whole, broadcast)

    async def _share(self, bucket: Bucket, body: dict[str, Any], ranks: int) -> None:
        """Sends handles of memory on the GPU of each rank. The memory lives until the server has read it."""
        import torch
        from sglang.srt.utils import MultiprocessingSerializer

        tensors = []
        at = bucket.begin
        whole = torch.frombuffer(bucket.data, dtype=torch.uint8)
        for name, dtype, shape in zip(bucket.names, bucket.dtypes, bucket.shapes, strict=True):
            kind = getattr(torch, dtype)
            end = at + _size(shape) * torch.empty(0, dtype=kind).element_size()
            tensors.append((name, whole[at:end].view(kind).view(shape)))
            at = end
        on_ranks = [[(name, one.to(f"cuda:{rank}")) for name, one in tensors] for rank in range(ranks)]
        for rank in range(ranks):
            torch.cuda.synchronize(rank)
        payloads = [base64.b64encode(MultiprocessingSerializer.serialize(one)).decode() for one in on_ranks]
        await self._demand("/update_weights_from_tensor", {**body, "serialized_named_tensors": payloads})

    async def _both(self, path: str, body: dict[str, Any], act: Callable[[], Any]) -> Any:
        """Posts a request, and meanwhile does in a thread the work that the server waits for."""
        posting = asyncio.create_task(self._post(path, body))
        acting = asyncio.create_task(asyncio.to_thread(act))
        try:
            async with asyncio.timeout(WITHIN_S):
                await asyncio.wait([posting, acting], return_when=asyncio.FIRST_COMPLETED)
                # A server that refuses does not take part: the thread would wait for it until its own limit.
                if posting.done() and (problem := posting.result()):
                    raise SendError(problem)
                result = await acting
                if problem := await posting:
                    raise SendError(problem)
                return result
        except (TimeoutError, RuntimeError) as failed:
            raise SendError(f"{path}: {str(failed) or f'it took longer than {WITHIN_S:g} s'}") from failed
        finally:
            posting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await posting

    async def _demand(self, path: str, body: dict[str, Any]) -> None:
        if problem := await self._post(path, body):
            raise SendError(problem)


def _read(file: Path, entry: dict[str, Any]) -> Shard | str:
    """The file, or the problem with it. Each piece is hashed right after it was read, in place."""
    data = bytearray(int(entry["bytes"]))
    left, hashes = memoryview(data), list(entry["pieces"])
    try:
        if (size := file.stat().st_size) != len(data):
            return f"{file.name} has {size} bytes, not {len(data)}"
        with file.open("rb", buffering=0) as opened:
            for wanted in hashes:
                piece, left = left[: entry["piece_bytes"]], left[entry["piece_bytes"] :]
                if not _filled(opened, piece) or hashlib.blake2b(piece, digest_size=16).hexdigest() != wanted:
                    return f"{file.name} has another content than was written"
    except OSError as broken:
        return f"{file.name} cannot be read ({broken.strerror})"
    if left:
        return f"{file.name} has another content than was written"
    try:
        return Shard(data, _tensors_of(data))
    except (ValueError, KeyError, TypeError) as broken:
        return f"{file.name} is not a complete safetensors file: {broken}"


def _filled(opened: Any, piece: memoryview) -> bool:
    while piece and (count := opened.readinto(piece)):
        piece = piece[count:]
    return not piece


def _tensors_of(data: bytearray) -> list[tuple[str, str, list[int], int, int]]:
    first = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:first].decode())
    tensors = []
    for name, entry in entries.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors.append((name, _TYPES[entry["dtype"]], list(entry["shape"]), first + begin, first + end))
    tensors.sort(key=lambda one: one[3])
    at = first
    for name, _, _, begin, end in tensors:
        if begin != at or end < begin:
            raise ValueError(f"{name} does not follow the tensor before it")
        at = end
    if at != len(data):
        raise ValueError("its size is not that of its tensors")
    return tensors


def _buckets(shard: Shard) -> list[Bucket]:
    found: list[Bucket] = []
    for name, dtype, shape, begin, end in shard.tensors:
        if not found or end - found[-1].begin > BUCKET_BYTES:
            found.append(Bucket([], [], [], shard.data, begin, begin))
        last = found[-1]
        last.names.append(name)
        last.dtypes.append(dtype)
        last.shapes.append(shape)
        found[-1] = last._replace(end=end)
    return found


def _size(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count

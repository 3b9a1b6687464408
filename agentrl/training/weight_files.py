"""Weights for engines: a directory with a manifest, and the canary by which an engine proves that it computes alike.

Invariants:
- the directory of a version is complete before the database names it, and files are hashed while they are written;
- work that training need not wait for is done beside it: copies, files, hashes, and if possible the canary
  (`canary_probes`).
"""

from __future__ import annotations

import bisect
import itertools
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from agentrl.config.run import RunConfig
from agentrl.engines import manifest as manifests
from agentrl.engines import safetensors_layout
from agentrl.engines.adapters import ADAPTER_CONFIG, ADAPTER_FILE
from agentrl.engines.canary import Canary
from agentrl.engines.manifest import Base, Manifest
from agentrl.engines.safetensors_layout import INDEX_FILE, Numbers
from agentrl.errors import ConfigError
from agentrl.files import deltas
from agentrl.files.deltas import Delta
from agentrl.files.pieces import (
    Content,
    PieceHash,
    content_of,
    content_of_pieces,
    piece_count,
    piece_range,
    threads,
)
from agentrl.store.publications import path_of
from agentrl.training import lora
from agentrl.training.atomic_directories import whole_directory
from agentrl.training.canary_probes import NOTHING, Published, canary_of
from agentrl.training.learner import Learner
from agentrl.training.policy_model import save_config
from agentrl.training.published_base import AROUND, missing
from agentrl.training.snapshots import Snapshot

log = logging.getLogger("trainer")
WRITE_BYTES = 1 << 20
"""Bytes are hashed and written in pieces of this size, while they are in the processor's cache."""
MOST_OF_A_FILE = 0.5
"""A delta larger than this share of the file is not worth its work."""
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""By the names that safetensors has."""


class Prepared(NamedTuple):
    """A version before it is written: everything that needs the trainer."""

    version: int
    snapshot: Snapshot
    canary: Callable[[], Canary]
    apart: bool
    """True if it consists of adapters alone."""


def prepare(
    learner: Learner,
    version: int,
    texts: Sequence[Sequence[int]],
    dtype: torch.dtype,
    published: Published = NOTHING,
    apart: bool = False,
) -> Prepared:
    """The part of a publication that the trainer waits for. `texts` are typical sequences to probe too. A call of all
    ranks."""
    return Prepared(version, *canary_of(learner, texts, dtype, published, apart=apart), apart)


class Former(NamedTuple):
    """A version that engines may have."""

    version: int
    manifest: Manifest


def write_weights(
    run_dir: Path,
    prepared: Prepared,
    learner: Learner,
    *,
    shard_bytes: int,
    former: Former | None = None,
    base: Base | None = None,
) -> Manifest:
    """Writes a version beside the training, with its difference to a former one if there is one; returns the manifest
    to announce. `base`: what the adapters of the version change, if it is adapters alone. May be repeated after a
    failure."""
    weights = prepared.snapshot.take()
    # Not durable on purpose: after a power cut engines refuse damaged files, and a starting trainer publishes again.
    with (
        ThreadPoolExecutor(max_workers=1, thread_name_prefix="canary") as beside,
        whole_directory(run_dir / path_of(prepared.version), durable=False) as directory,
    ):
        canary = beside.submit(prepared.canary)
        if base is None:
            files = write_tensors(directory, weights, shard_bytes=shard_bytes)
            rest = save_config(learner.model, directory, prepared.snapshot.dtype)
        else:
            files = {}
            rest = _write_adapters(directory, weights, learner, base)
        files |= {name: content_of(directory / name) for name in rest}
        for name, content in learner.companions.items():
            files[name] = _written(directory / name, [memoryview(content)])
        differences = (
            {} if former is None else write_deltas(directory, files, run_dir / path_of(former.version), former)
        )
        manifest = Manifest(files, canary.result(), differences, base)
        manifests.write(directory, manifest)
    return manifest


def _write_adapters(directory: Path, adapters: Mapping[str, Tensor], learner: Learner, base: Base) -> list[str]:
    """Writes adapters; returns the names of the files."""
    wanted = learner.settings.adapters
    assert wanted is not None, "without adapters a version is whole weights"
    lora.save(directory, adapters, wanted, base=learner.base)
    around = [name for name in AROUND if name in base.files]
    for name in around:
        shutil.copyfile(learner.base / name, directory / name)
    return [ADAPTER_FILE, ADAPTER_CONFIG, *around]


def write_tensors(directory: Path, weights: Mapping[str, Tensor], *, shard_bytes: int) -> dict[str, Content]:
    """Writes safetensors files, and their index if there are several."""
    numbers = {
        name: Numbers(_TYPES[one.dtype], tuple(one.shape), one.numel() * one.element_size())
        for name, one in weights.items()
    }
    files = safetensors_layout.files_of(numbers, shard_bytes)
    written = {
        file.name: _written(
            directory / file.name, [memoryview(file.header), *(_bytes_of(weights[name]) for name in file.tensors)]
        )
        for file in files
    }
    if len(files) > 1:
        written[INDEX_FILE] = _written(directory / INDEX_FILE, [memoryview(safetensors_layout.index_of(files))])
    return written


def write_deltas(directory: Path, files: Mapping[str, Content], base: Path, former: Former) -> dict[str, Delta]:
    """Writes the deltas to the files of the same name, if they are much smaller than the files."""
    wanted = {
        name: former.manifest.files[name]
        for name, content in files.items()
        if name.endswith(safetensors_layout.SUFFIX)
        and name in former.manifest.files
        # A host that already has the same content needs no delta.
        and former.manifest.files[name].blake2b != content.blake2b
        # One request gets a file of a single piece.
        and len(content.pieces) > 1
    }

    def write(name: str) -> Delta | None:
        beside = name + deltas.SUFFIX
        most = int(MOST_OF_A_FILE * files[name].bytes)
        try:
            content = deltas.write_delta(base / name, directory / name, directory / beside, most_bytes=most)
        except FileNotFoundError:
            # The former version was removed.
            return None
        return None if content is None else Delta(wanted[name], beside, content)

    with ThreadPoolExecutor(max_workers=threads(), thread_name_prefix="deltas") as pool:
        written = dict(zip(wanted, pool.map(write, wanted), strict=True))
    return {name: delta for name, delta in written.items() if delta is not None}


def _written(file: Path, parts: Sequence[memoryview]) -> Content:
    """Writes the parts one after another, several pieces of the file at a time, and hashes each piece while it is in
    the cache."""
    begins = [0, *itertools.accumulate(map(len, parts))]
    size = begins.pop()

    with file.open("wb", buffering=0) as opened:

        def write(number: int) -> str:
            found, (at, length) = PieceHash(), piece_range(size, number)
            for place in range(bisect.bisect_right(begins, at) - 1, bisect.bisect_left(begins, at + length)):
                part = parts[place][max(0, at - begins[place]) : at + length - begins[place]]
                for start in range(0, len(part), WRITE_BYTES):
                    found.update(part[start : start + WRITE_BYTES])
                    _write_at(opened.fileno(), part[start : start + WRITE_BYTES], max(at, begins[place]) + start)
            return found.text()

        with ThreadPoolExecutor(max_workers=threads(), thread_name_prefix="weights") as pool:
            return content_of_pieces(size, pool.map(write, range(piece_count(size))))


def _write_at(descriptor: int, data: memoryview, at: int) -> None:
    # A full disk may accept only a part; the next call then raises.
    while data:
        count = os.pwrite(descriptor, data, at)
        data, at = data[count:], at + count


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def published_type(config: RunConfig) -> torch.dtype:
    """The type of published weights: by default 16 bits, but float32 for a model of `build`."""
    wanted: str = config.training.publication.precision
    if wanted == "auto":
        narrow = "float16" if config.training.precision == "float16" else "bfloat16"
        wanted = "float32" if config.model is not None and config.model.build else narrow
    found: torch.dtype = getattr(torch, wanted)
    return found


def publishes_apart(config: RunConfig, learner: Learner) -> bool:
    """Whether versions are adapters alone. Raises ConfigError if they must be, but cannot."""
    wanted = config.training.publication.adapters
    # A server computes adapters again for each token, so this is done only if the configuration asks for it.
    by_itself = wanted == "auto" and config.engines.kind == "embedded"
    if learner.settings.adapters is None or not (by_itself or wanted == "apart"):
        return False
    adapters = [lora.stored_name(name) for name, one in learner.model.named_parameters() if one.requires_grad]
    if not (name := missing(learner.base, adapters)):
        return True
    sentence = f"the files of the model have no {name}, so engines could not add the adapters themselves"
    if wanted == "apart":
        raise ConfigError(f"training.publication.adapters: {sentence}.", hint="Set it to merged.")
    log.info("versions are whole weights: %s", sentence)
    return False


def as_document(manifest: Manifest) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    return plain


def remove_weights(run_dir: Path, version: int) -> None:
    shutil.rmtree(run_dir / path_of(version), ignore_errors=True)

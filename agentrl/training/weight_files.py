"""Weights for engines: a directory with a manifest, and the canary by which an engine proves that it computes alike.

Invariants:
- the directory of a version is complete before the database names it, and files are hashed while they are written;
- the canary has the same sequences in all versions of a model, so its numbers can be compared over time;
- the canary is that of the weights as they are published, so rounding them explains no difference to it, except with
  adapters, whose canary has the limits of 16 bits.
"""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from agentrl.config.run import RunConfig
from agentrl.engines import manifest as manifests
from agentrl.engines import safetensors_layout
from agentrl.engines.canary import Canary, Noise
from agentrl.engines.manifest import Manifest
from agentrl.engines.safetensors_layout import INDEX_FILE, Numbers
from agentrl.files import deltas
from agentrl.files.deltas import Delta
from agentrl.files.pieces import Content, ContentHash, content_of
from agentrl.store.publications import path_of
from agentrl.training.atomic_directories import whole_directory
from agentrl.training.learner import Learner
from agentrl.training.policy_model import save_config
from agentrl.training.snapshots import Snapshot

PROBES = 8
PROBE_TOKENS = 48
WRITERS = 2
"""Files that are written at the same time: most of the time goes into their hashes."""
WRITE_BYTES = 4 << 20
MOST_OF_A_FILE = 0.5
"""A larger difference is not worth its work."""
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
_MULTIPLIER, _INCREMENT, _MODULUS = 6_364_136_223_846_793_005, 1_442_695_040_888_963_407, 1 << 64


def probe_set(vocabulary: int) -> list[list[int]]:
    """Sequences of ids that depend on the size of the vocabulary only. Arbitrary ids find differences that typical text
    would not show."""
    state, found = vocabulary, []
    for probe in range(PROBES):
        sequence: list[int] = []
        # Different lengths show mistakes in padding or in slots.
        for _ in range(PROBE_TOKENS // 2 + probe * PROBE_TOKENS // (2 * PROBES)):
            state = (state * _MULTIPLIER + _INCREMENT) % _MODULUS
            sequence.append((state >> 33) % vocabulary)
        found.append(sequence)
    return found


def make_canary(
    learner: Learner,
    texts: Sequence[Sequence[int]] = (),
    *,
    dtype: torch.dtype | None = None,
    before: Canary | None = None,
    noise: Noise | None = None,
) -> Canary:
    """`texts` are typical sequences to probe as well; `dtype` is the published type; `before` is the canary of the
    version before. A call of all ranks."""
    ids = probe_set(int(learner.model.config.vocab_size)) + [list(text) for text in texts]
    precision, published = learner.settings.precision, dtype
    if learner.settings.adapters is not None and dtype not in (None, torch.float32):
        # Engines get adapters added to the weights, and rounded together with them. Here they are computed apart.
        precision, published = "bfloat16", None
    log_probs = learner.log_probs(ids, published=published)
    former = before.log_probs if before is not None and before.ids == ids else []
    return Canary(ids, log_probs, precision, former, noise)


class Prepared(NamedTuple):
    """A version before it is written: everything that needs the trainer."""

    version: int
    snapshot: Snapshot
    canary: Canary


def prepare(
    learner: Learner,
    version: int,
    texts: Sequence[Sequence[int]],
    dtype: torch.dtype,
    before: Canary | None = None,
    noise: Noise | None = None,
) -> Prepared:
    """What the trainer waits for. A call of all ranks."""
    canary = make_canary(learner, texts, dtype=dtype, before=before, noise=noise)
    return Prepared(version, learner.snapshot(dtype), canary)


class Former(NamedTuple):
    """A version that engines may have."""

    version: int
    manifest: Manifest


def write_weights(
    run_dir: Path, prepared: Prepared, learner: Learner, *, shard_bytes: int, former: Former | None = None
) -> Manifest:
    """Writes a version beside the training, with its difference to a former one if there is one; returns the manifest
    to announce. May be repeated after a failure."""
    weights = prepared.snapshot.take()
    # Not durable on purpose: after a power cut engines refuse damaged files, and a starting trainer publishes again.
    with whole_directory(run_dir / path_of(prepared.version), durable=False) as directory:
        files = write_tensors(directory, weights, shard_bytes=shard_bytes)
        for name in save_config(learner.model, directory, prepared.snapshot.dtype):
            files[name] = content_of(directory / name)
        for name, content in learner.companions.items():
            files[name] = _written(directory / name, [content], len(content))
        differences = (
            {} if former is None else write_deltas(directory, files, run_dir / path_of(former.version), former)
        )
        manifest = Manifest(files, prepared.canary, differences)
        manifests.write(directory, manifest)
    return manifest


def write_tensors(directory: Path, weights: Mapping[str, Tensor], *, shard_bytes: int) -> dict[str, Content]:
    """Writes safetensors files, and their index if there are several; several files at a time."""
    numbers = {
        name: Numbers(_TYPES[one.dtype], tuple(one.shape), one.numel() * one.element_size())
        for name, one in weights.items()
    }
    files = safetensors_layout.files_of(numbers, shard_bytes)

    def write(file: safetensors_layout.File) -> Content:
        tensors = (_bytes_of(weights[name]) for name in file.tensors)
        return _written(directory / file.name, itertools.chain([file.header], tensors), file.bytes)

    with ThreadPoolExecutor(max_workers=WRITERS, thread_name_prefix="weights") as pool:
        written = dict(zip((file.name for file in files), pool.map(write, files), strict=True))
    if len(files) > 1:
        index = safetensors_layout.index_of(files)
        written[INDEX_FILE] = _written(directory / INDEX_FILE, [index], len(index))
    return written


def write_deltas(directory: Path, files: Mapping[str, Content], base: Path, former: Former) -> dict[str, Delta]:
    """The differences to the files of the same name, if they are much smaller than the files."""
    wanted = {
        name: former.manifest.files[name]
        for name, content in files.items()
        if name.endswith(safetensors_layout.SUFFIX)
        and name in former.manifest.files
        # A host that has the same content needs nothing.
        and former.manifest.files[name].blake2b != content.blake2b
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

    with ThreadPoolExecutor(max_workers=WRITERS, thread_name_prefix="deltas") as pool:
        written = dict(zip(wanted, pool.map(write, wanted), strict=True))
    return {name: delta for name, delta in written.items() if delta is not None}


def _written(file: Path, parts: Iterable[bytes | memoryview], size: int) -> Content:
    found = ContentHash(size)
    with file.open("wb", buffering=0) as opened:
        for part in parts:
            for at in range(0, len(part), WRITE_BYTES):
                piece = part[at : at + WRITE_BYTES]
                # A disk that is full may take a part only.
                if opened.write(piece) != len(piece):
                    raise OSError(errno.ENOSPC, "the disk took a part only")
                found.update(piece)
    return found.content()


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def published_type(config: RunConfig) -> torch.dtype:
    """The type of published weights. The model of `build` has none to save, and is computed in float32."""
    wanted = config.training.publication.precision
    if wanted == "auto":
        wanted = "float32" if config.model is not None and config.model.build else "bfloat16"
    found: torch.dtype = getattr(torch, wanted)
    return found


def as_document(manifest: Manifest) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    return plain


def remove_weights(run_dir: Path, version: int) -> None:
    shutil.rmtree(run_dir / path_of(version), ignore_errors=True)

"""Weights for engines: a directory with a manifest, and the canary by which an engine proves that it computes alike.

Invariants: the directory of a version is complete before the database names it; the canary has the same sequences in
all versions of a model, so its numbers can be compared over time.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.engines import manifest as manifests
from agentrl.engines.canary import Canary
from agentrl.engines.manifest import Manifest
from agentrl.store.publications import path_of
from agentrl.training.atomic_directories import whole_directory
from agentrl.training.learner import Learner

PROBES = 8
PROBE_TOKENS = 48
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


def make_canary(learner: Learner, texts: Sequence[Sequence[int]] = ()) -> Canary:
    """`texts` are typical sequences to probe as well."""
    ids = probe_set(int(learner.model.config.vocab_size)) + [list(text) for text in texts]
    return Canary(ids, learner.log_probs(ids), learner.settings.precision)


def write_weights(run_dir: Path, version: int, learner: Learner, texts: Sequence[Sequence[int]] = ()) -> Manifest:
    """Writes the current weights; returns the manifest to announce."""
    # Not durable on purpose: after a power cut engines refuse damaged files, and a starting trainer publishes again.
    with whole_directory(run_dir / path_of(version), durable=False) as directory:
        names = learner.save(directory)
        manifest = manifests.describe(directory, names, make_canary(learner, texts))
        manifests.write(directory, manifest)
    return manifest


def as_document(manifest: Manifest) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    return plain


def remove_weights(run_dir: Path, version: int) -> None:
    shutil.rmtree(run_dir / path_of(version), ignore_errors=True)

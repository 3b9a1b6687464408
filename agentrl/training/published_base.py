"""The base of versions that are adapters: the files of the model that a run began with, beside its versions.

Invariants:
- it is named after its content, so another model never replaces it, and a restarted trainer finds it;
- its directory is complete or absent, also after a power cut: no later version replaces it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import safetensors

from agentrl.engines.adapters import name_in, pairs_of
from agentrl.engines.manifest import CONFIG_FILE, Base
from agentrl.engines.safetensors_layout import INDEX_FILE, SUFFIX
from agentrl.files.pieces import Content, content_of
from agentrl.store.publications import path_of
from agentrl.training.atomic_directories import whole_directory

AROUND = (CONFIG_FILE, "generation_config.json")
"""Files of the base that each version has too."""


def publish_base(run_dir: Path, source: Path) -> Base:
    """Reads the files of the model, and puts them where engines find them."""
    names = sorted(
        file.name for file in source.iterdir() if file.suffix == SUFFIX or file.name in (*AROUND, INDEX_FILE)
    )
    files = {name: content_of(source / name) for name in names}
    digest = hashlib.blake2b(msgspec.json.encode(files), digest_size=6).hexdigest()
    base = Base(f"base-{digest}", files)
    target = base.beside(run_dir / path_of(0))
    if not _has(target, files):
        with whole_directory(target, durable=True) as directory:
            for name in names:
                _put(source / name, directory / name)
    return base


def missing(source: Path, adapters: Iterable[str]) -> str:
    """Empty, or the name of a weight that these adapters change and that has another name in the files of the model."""
    stored: set[str] = set()
    for file in source.glob(f"*{SUFFIX}"):
        with safetensors.safe_open(file, "pt") as opened:
            stored |= set(opened.keys())
    return next((name for name in pairs_of(adapters) if not name_in(stored, name)), "")


def _has(directory: Path, files: Mapping[str, Content]) -> bool:
    """By their sizes, because engines compare the contents."""
    try:
        return all((directory / name).stat().st_size == content.bytes for name, content in files.items())
    except OSError:
        return False


def _put(source: Path, target: Path) -> None:
    with contextlib.suppress(OSError):
        # Linux would make a link to a link, which is broken in another directory.
        os.link(source.resolve(), target)
        return
    shutil.copyfile(source, target)  # another file system

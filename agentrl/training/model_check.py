"""Checks, without loading it, whether the model of a run can be served by its engines and trained.

Invariant: the file imports no torch, because the command line runs these checks before it starts anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.chat.template import Template
from agentrl.config.run import RunConfig
from agentrl.engines.embedded.tiny_config import TINY
from agentrl.errors import ConfigError
from agentrl.images.processing import processing_of, reads_images
from agentrl.training.architectures import LINEAR_MODELS, TREE_MODELS, VISION_MODELS
from agentrl.training.parallel_check import refuse_parallel

_AGAIN = "Copy or download it again; after `git clone`, `git lfs pull` gets the weights."


def refuse_model(config: RunConfig) -> None:
    """Raise ConfigError if the model cannot work in this run."""
    sizes = config.training.parallel.model_dump()
    if config.model is not None and not config.model.path:
        refuse_parallel(sizes, TINY)
    if config.model is None or not config.model.path:
        return
    directory = Path(config.model.path)
    if not directory.is_dir():
        raise ConfigError(
            f"model.path: there is no directory {directory}.",
            hint="It must have config.json, *.safetensors and tokenizer.json. Names of a hub are not downloaded.",
        )
    described = _config_of(directory)
    if (directory / "adapter_config.json").is_file():
        raise ConfigError(
            f"model.path: {directory} has adapters, which are no whole model.",
            hint="Name the model with them merged: a published version, or `merged` of a job on demonstrations.",
        )
    if not any(directory.glob("*.safetensors")):
        raise ConfigError(f"model.path: {directory} has no *.safetensors.", hint="Other formats are not read.")
    for file in sorted(directory.glob("*.safetensors")):
        refuse_incomplete(file)
    kind = str(described.get("model_type") or "")
    if reads_images(described):
        _refuse_vision(config, directory, described)
    trainable(kind)
    refuse_parallel(sizes, described)
    Template.of(directory, config.model.template)


def _refuse_vision(config: RunConfig, directory: Path, described: Mapping[str, Any]) -> None:
    """Raise ConfigError for a model that reads images if it cannot work in this run."""
    kind = str(described.get("model_type") or "")
    if kind not in VISION_MODELS:
        raise ConfigError(
            f"model.path: {directory} reads images, and it is not known how models of the type {kind!r} do.",
            hint=f"Known types that read images are: {', '.join(sorted(VISION_MODELS))}. Or name a text model.",
        )
    processing_of(directory, described)
    if not Template.of(directory, config.model.template if config.model else None).has_images:
        raise ConfigError(
            f"model.path: {directory} reads images, and its chat template writes none into messages.",
            hint="Its config.json needs image_token_id, and its chat template content that is a list of parts.",
        )
    if config.training.advantage == "gae":
        raise ConfigError("training.advantage: models that read images have no critic.", hint="Set grpo.")
    if config.training.publication.adapters == "apart" and config.engines.kind != "embedded":
        raise ConfigError(
            "training.publication.adapters: only embedded engines load adapters of a model that reads images.",
            hint="Set merged.",
        )
    if config.engines.kind not in ("embedded", "sglang"):
        raise ConfigError(f"engines.kind: {config.engines.kind} gets no images.", hint="Set `embedded` or `sglang`.")
    if config.engines.kind == "sglang" and (problem := _not_by_sglang(described)):
        raise ConfigError(
            f"engines.kind: sglang does not compute images of this model: {problem}.", hint="Set `embedded`."
        )


def _not_by_sglang(described: Mapping[str, Any]) -> str:
    """Empty, or the property in which this model differs from published models of its type, and which SGLang
    assumes."""
    seen, text = described["vision_config"], described.get("text_config") or described
    sizes = {"patch_size": 14, "temporal_patch_size": 2}
    if described.get("model_type") == "qwen2_5_vl":
        wrong = [name for name, size in sizes.items() if seen.get(name, size) != size]
        return f"vision_config.{wrong[0]} is not {sizes[wrong[0]]}" if wrong else ""
    rotation = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return "" if rotation.get("mrope_interleaved") else "config.json has no mrope_interleaved"


def trainable(kind: str) -> None:
    """Raise ConfigError for a `model_type` for which it is unknown how to pack trajectories."""
    known = TREE_MODELS | LINEAR_MODELS | VISION_MODELS
    if kind not in known:
        raise ConfigError(
            f"Models of the type {kind!r} cannot be trained: it is not known how to pack their trajectories.",
            hint=f"Known types are: {', '.join(sorted(known))}.",
        )


def refuse_incomplete(file: Path) -> None:
    """Raise ConfigError if a file of weights is cut off, or is something else, such as a pointer of Git LFS."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = opened.read(length) if 8 + length <= size else b""
    try:
        tensors = [value for name, value in json.loads(header).items() if name != "__metadata__"]
        wanted = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors), default=0)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(f"model.path: {file} is no file of weights, or is cut off.", hint=_AGAIN) from None
    if size < wanted:
        raise ConfigError(f"model.path: {file} is cut off: it has {size} of {wanted} bytes.", hint=_AGAIN)


def _config_of(directory: Path) -> dict[str, Any]:
    try:
        found = json.loads((directory / "config.json").read_bytes())
    except OSError as missing:
        raise ConfigError(f"{directory} is not a model: config.json: {missing.strerror}.") from missing
    except ValueError as broken:
        raise ConfigError(f"{directory / 'config.json'} is no JSON: {broken}.") from broken
    return found if isinstance(found, dict) else {}

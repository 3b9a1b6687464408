"""The model that is trained: loading, saving, and how its rows are packed.

Invariants:
- there is no dropout: the trainer computes the model that engines sample from;
- an architecture that a packed tree would corrupt is computed branch by branch; an unknown one is refused.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion

from agentrl.errors import ConfigError
from agentrl.images.processing import FILES, Processing, processing_from, reads_images
from agentrl.training import tree_attention
from agentrl.training.architectures import VISION_MODELS, packs_trees
from agentrl.training.model_check import trainable
from agentrl.training.packing import Layout

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
"""Files of a model besides its configuration and weights; they are copied unchanged."""


def load_model(directory: Path, *, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    """Raises ConfigError if the directory has no model that can be trained."""
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{directory} is not a model: it has no config.json.")
    with _quietly():
        try:
            described = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
            reads_images = described.model_type in VISION_MODELS
            kind: Any = transformers.AutoModelForImageTextToText if reads_images else transformers.AutoModelForCausalLM
            # safetensors only: reading never unpickles.
            model = kind.from_pretrained(directory, dtype=dtype, use_safetensors=True, local_files_only=True)
        except (OSError, ValueError, KeyError) as broken:
            raise ConfigError(f"The model in {directory} cannot be loaded: {broken}.") from broken
    if layout_of(model) == "tree":
        # A vision tower cannot process trees.
        both = {"text_config": tree_attention.NAME, "vision_config": "sdpa"}
        model.set_attn_implementation(both if reads_images else tree_attention.NAME)
    model.train(False)
    return cast(transformers.PreTrainedModel, model)


def compile_layers(model: transformers.PreTrainedModel) -> None:
    """Compile each layer by itself: all of them share one graph, which is made in seconds."""
    for layer in layers_of(model):
        layer.forward = torch.compile(layer.forward)


def layers_of(model: transformers.PreTrainedModel) -> Iterable[Any]:
    untyped: Any = model
    layers: Iterable[Any] = untyped.get_decoder().layers
    return layers


def is_elsewhere(module: torch.nn.Module) -> bool:
    """Whether another stage of a pipeline has it."""
    return any(parameter.is_meta for parameter in module.parameters())


def layout_of(model: transformers.PreTrainedModel) -> Layout:
    """How rows of this model may be packed. Raises ConfigError for an architecture in neither list."""
    trainable(str(model.config.model_type))
    return "tree" if packs_trees(model.config.to_dict()) else "linear"


def how_images_are_shown(
    model: transformers.PreTrainedModel, companions: Mapping[str, bytes], directory: Path
) -> Processing | None:
    """How the processor in the model's directory prepares images; None for a model that reads only texts. Raises
    ConfigError."""
    described = model.config.to_dict()
    if not reads_images(described):
        return None
    name = next((name for name in FILES if name in companions), None)
    if name is None:
        raise ConfigError(f"{directory} reads images and has no {FILES[0]}.")
    return processing_from(companions[name], name, described, str(directory))


def read_companions(directory: Path) -> dict[str, bytes]:
    """The tokenizer's files by name."""
    return {name: (directory / name).read_bytes() for name in COMPANIONS if (directory / name).is_file()}


def save_model(
    model: transformers.PreTrainedModel,
    directory: Path,
    weights: dict[str, torch.Tensor],
    *,
    companions: Mapping[str, bytes],
) -> list[str]:
    """Writes configuration, weights and the tokenizer's files; returns the names of all files. `weights` are those of
    the model's own state, which may be spread over ranks."""
    directory.mkdir(parents=True, exist_ok=True)
    with _quietly():
        # One file of any size, because engines load it whole.
        model.save_pretrained(directory, state_dict=weights, max_shard_size="1TB")
    save_around(model, directory, companions=companions)
    return sorted(file.name for file in directory.iterdir() if file.is_file())


def save_around(model: transformers.PreTrainedModel, directory: Path, *, companions: Mapping[str, bytes]) -> None:
    """Writes the files besides the weights: configuration and the tokenizer's files."""
    directory.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(directory)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    for name, content in companions.items():
        (directory / name).write_bytes(content)


def stored_form(model: transformers.PreTrainedModel, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights with the names and shapes of the model's files. Some models join tensors in memory that are separate in
    files, such as the experts of a layer."""
    untyped: Any = model
    ignored = untyped._keys_to_ignore_on_save or ()
    kept = {name: one for name, one in weights.items() if name not in ignored}
    stored: dict[str, torch.Tensor] = revert_weight_conversion(model, kept)
    return stored


def save_config(model: transformers.PreTrainedModel, directory: Path, dtype: torch.dtype) -> list[str]:
    """Writes the configuration for weights of this type; returns the names of its files."""
    untyped: Any = model
    config = copy.deepcopy(untyped.config)
    config.dtype = name_of(dtype)
    config.architectures = [type(model).__name__.removeprefix("FSDP")]
    before = set(directory.iterdir())
    config.save_pretrained(directory)
    if untyped.can_generate():
        untyped.generation_config.save_pretrained(directory)
    return sorted(file.name for file in set(directory.iterdir()) - before)


def name_of(dtype: torch.dtype) -> str:
    """`bfloat16`"""
    return str(dtype).removeprefix("torch.")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without progress bars, which would fill the logs."""
    bars: Any = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()

"""Low-rank adapters (LoRA) through peft, within a model whose own weights stay as they are.

Invariants:
- adapters begin with no effect, and with the same numbers on every rank;
- a model without its adapters equals the base, bit for bit, so no copy of the base is needed for comparisons;
- engines get the base with the adapters added, under the names of the base, or the adapters alone;
- files of adapters have the form that peft reads, and nothing in them is unpickled.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentrl.engines.adapters import ADAPTER_CONFIG, ADAPTER_FILE, PREFIX
from agentrl.errors import ConfigError
from agentrl.training.policy_model import layers_of

_NAME = "default"
_BASE = ".base_layer."
_DOWN, _UP = f".lora_A.{_NAME}.", f".lora_B.{_NAME}."
_SEED = 0
TOWER = "visual"
"""The part of a model that reads images."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Which layers have adapters, and their scale."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = ()
    """Names of linear layers; empty means all linear layers of the decoder. A layer of a vision tower gets adapters
    only if no layer of the decoder has its name."""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def add(model: transformers.PreTrainedModel, wanted: Adapters) -> None:
    """Adds adapters in place; from now on only they are trained. Raises ConfigError if the model has no such layers."""
    import peft  # takes a second, and most runs train all weights

    targets = _targets(model, wanted.targets)
    described = peft.LoraConfig(r=wanted.rank, lora_alpha=wanted.alpha, target_modules=targets, lora_dropout=0.0)  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        try:
            peft.inject_adapter_in_model(described, model, adapter_name=_NAME)
        except ValueError as refused:
            raise ConfigError(f"training.lora: the model cannot have these adapters: {refused}") from refused


def _targets(model: transformers.PreTrainedModel, wanted: Sequence[str]) -> list[str]:
    """The whole names of the layers, because parts of a model may have layers of the same name."""
    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    inner = {id(module) for layer in layers_of(model) for module in layer.modules()}
    decoder = [name for name, module in linear.items() if id(module) in inner]
    tower = [name for name in linear if TOWER in name.split(".")]
    if not wanted:
        return decoder
    found = {target: _named(decoder, target) or _named(tower, target) for target in wanted}
    if unknown := sorted(target for target, names in found.items() if not names):
        known = sorted({name.rpartition(".")[2] for name in decoder})
        raise ConfigError(
            f"training.lora.targets: the model has no linear layer {unknown[0]!r} within its decoder's layers.",
            hint=f"It has: {', '.join(known)}.",
        )
    return [name for names in found.values() for name in names]


def _named(layers: Sequence[str], target: str) -> list[str]:
    return [name for name in layers if f".{name}".endswith(f".{target}")]


@contextlib.contextmanager
def without(model: transformers.PreTrainedModel) -> Iterator[None]:
    """Within this context the model is its base."""
    from peft.tuners.lora import LoraLayer

    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    scales = [layer.scaling[_NAME] for layer in layers]
    # Not disabled by peft's own method: that sets requires_grad to False, and shards that are made meanwhile keep it.
    for layer in layers:
        layer.scaling[_NAME] = 0.0
    try:
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scaling[_NAME] = scale


def layers_with_input(module: Any) -> list[Any]:
    """The layers that get the input of a linear layer: the layer itself, or with adapters its base layer and the first
    adapter matrix."""
    return [module.base_layer, module.lora_A[_NAME]] if hasattr(module, "base_layer") else [module]


def layers_with_output(module: Any) -> list[Any]:
    """The layers whose output is added up to that of a linear layer."""
    return [module.base_layer, module.lora_B[_NAME]] if hasattr(module, "base_layer") else [module]


def merged(tensors: Mapping[str, Tensor], adapters: Adapters) -> dict[str, Tensor]:
    """The weights of a model with its adapters added, by the names that the model has without them."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if _DOWN in name or _UP in name:
            continue
        up = tensors.get(name.replace(_BASE, _UP)) if _BASE in name else None
        if up is not None and name.endswith(".weight"):
            down = tensors[name.replace(_BASE, _DOWN)]
            tensor = tensor + (adapters.scale * (up @ down)).to(tensor.dtype)
        found[name.replace(_BASE, ".")] = tensor
    return found


def save(directory: Path, tensors: Mapping[str, Tensor], adapters: Adapters, *, base: Path) -> None:
    """Writes the adapters, by their names in the model, as peft reads them. Layers of a vision tower and of the decoder
    may have the same names, so whole names tell them apart."""
    kept = {stored_name(name): tensor.contiguous() for name, tensor in tensors.items()}
    save_file(kept, directory / ADAPTER_FILE, {"format": "pt"})
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({_target_of(name) for name in tensors}),
        "inference_mode": True,
    }
    (directory / ADAPTER_CONFIG).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def _target_of(name: str) -> str:
    module = name[: name.index(".lora_")]
    return module if {TOWER, "language_model"} & set(module.split(".")) else module.rpartition(".")[2]


def stored_name(name: str) -> str:
    """The name in peft's files of the tensor that has this name in the model."""
    return PREFIX + name.replace(f".{_NAME}.", ".")


def load(model: transformers.PreTrainedModel, directory: Path) -> None:
    """Reads adapters into a model that has the same adapters. Raises ConfigError if it has others."""
    try:
        stored = load_file(directory / ADAPTER_FILE)
    except (OSError, safetensors.SafetensorError) as broken:
        raise ConfigError(f"{directory / ADAPTER_FILE} cannot be read: {broken}.") from broken
    own = {name: one for name, one in model.named_parameters() if one.requires_grad}
    given = {_inner(name): tensor for name, tensor in stored.items()}
    if {name: one.shape for name, one in own.items()} != {name: one.shape for name, one in given.items()}:
        raise ConfigError(
            f"{directory} has adapters of other layers or of another rank than training.lora.",
            hint="Set rank and targets as they were when it was written.",
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(given[name])


def has_adapters(directory: Path) -> bool:
    return (directory / ADAPTER_CONFIG).is_file()


def check_start(directory: Path, wanted: Adapters | None, *, is_checkpoint: bool) -> None:
    """Raises ConfigError if a run that trains adapters, or all weights, cannot start from this directory."""
    stores_them = has_adapters(directory)
    if stores_them and wanted is None:
        raise ConfigError(
            f"{directory} has adapters, and the run file trains all weights.",
            hint="Set training.lora as it was; to train all weights, begin a run with published weights as model.path.",
        )
    if is_checkpoint and not stores_them and wanted is not None:
        raise ConfigError(
            f"{directory} has whole weights, and the run file trains adapters.",
            hint=f"Begin a new run with model.path: {directory}.",
        )
    if stores_them and wanted is not None:
        stored = _described(directory)
        if float(stored.get("lora_alpha", 0)) != wanted.alpha or stored.get("r") != wanted.rank:
            raise ConfigError(
                f"{directory} has adapters of rank {stored.get('r')} and alpha {stored.get('lora_alpha')}, not of rank "
                f"{wanted.rank} and alpha {wanted.alpha:g}.",
                hint="Set training.lora as it was.",
            )


def base_of(directory: Path) -> Path:
    """The model on which the adapters of a directory are based."""
    return Path(str(_described(directory).get("base_model_name_or_path", "")))


def _described(directory: Path) -> dict[str, Any]:
    try:
        found = json.loads((directory / ADAPTER_CONFIG).read_bytes())
    except (OSError, ValueError) as broken:
        raise ConfigError(f"{directory / ADAPTER_CONFIG} cannot be read: {broken}.") from broken
    return found if isinstance(found, dict) else {}


def _inner(name: str) -> str:
    """The name of a tensor in the model."""
    module, _, rest = name.removeprefix(PREFIX).rpartition(".lora_")
    matrix, _, kind = rest.partition(".")
    return f"{module}.lora_{matrix}.{_NAME}.{kind}"

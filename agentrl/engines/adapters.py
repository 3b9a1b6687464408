"""Versions that consist of adapters: low-rank changes of a base, which each engine has once. Does not import torch.

The files have the format of peft. The base is a directory beside the directories of versions; its files are in the
manifest of each version, so an engine that starts late gets the base like the version itself.

Invariant: a config of adapters that could mean more than `base + alpha / r * up @ down` is refused.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agentrl.engines.interface import WeightsRefusedError

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
PREFIX = "base_model.model."
"""The prefix of the names in these files."""
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


class Pair(NamedTuple):
    """The names of the two matrices that change a weight by their product."""

    down: str
    up: str


class AdapterConfig(msgspec.Struct, frozen=True):
    """The part of `adapter_config.json` that affects the computation."""

    r: int
    lora_alpha: float
    target_modules: list[str] = []
    peft_type: str = "LORA"
    use_dora: bool = False
    use_rslora: bool = False
    fan_in_fan_out: bool = False
    bias: str = "none"
    rank_pattern: dict[str, Any] = {}
    alpha_pattern: dict[str, Any] = {}
    modules_to_save: list[str] | None = None

    @property
    def scale(self) -> float:
        return self.lora_alpha / self.r

    @property
    def is_plain(self) -> bool:
        unusual = (self.use_dora, self.use_rslora, self.fan_in_fan_out, self.rank_pattern, self.alpha_pattern)
        return self.peft_type == "LORA" and self.bias == "none" and not any(unusual) and not self.modules_to_save


def config_of(data: bytes, source: Path) -> AdapterConfig:
    """The checked config of a version's adapters. Raises WeightsRefusedError."""
    try:
        found = msgspec.json.decode(data, type=AdapterConfig)
    except msgspec.MsgspecError as broken:
        raise WeightsRefusedError(f"{source} is not a configuration of adapters: {broken}.") from broken
    if not found.is_plain or found.r <= 0:
        raise WeightsRefusedError(f"{source} describes adapters that are more than two matrices for each weight.")
    return found


def pairs_of(names: Iterable[str]) -> dict[str, Pair]:
    """The pairs of matrices, by the name of the base's weight that each changes. Raises ValueError for other
    tensors."""
    known = set(names)
    pairs = {
        name.removeprefix(PREFIX).removesuffix(_DOWN) + ".weight": Pair(name, name.removesuffix(_DOWN) + _UP)
        for name in known
        if name.endswith(_DOWN)
    }
    if known != {name for pair in pairs.values() for name in pair}:
        raise ValueError("its tensors are not pairs of matrices")
    return pairs


def name_in(base: Container[str], name: str) -> str:
    """The name of a weight of the model in the files of a base. Some models that read images are stored with older
    names, without the common root of their parts. Empty if the base has neither name."""
    older = name.replace("model.language_model.", "model.", 1).replace("model.visual.", "visual.", 1)
    return next((one for one in (name, older) if one in base), "")

"""Writes a Qwen3 with random weights in bfloat16: `python -m assets.random_model DIR [--layers 12] [--hidden 768]`.

It has the architecture of a real model, so a whole run can be tried without downloading weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.engines.safetensors_layout import ONE_FILE
from assets import shop_dataset

HEAD = 64
SEED = 1


def write(directory: Path, *, layers: int, hidden: int) -> int:
    """Returns the number of its parameters."""
    heads = hidden // HEAD
    texts = [str(tool) for tool in shop_dataset.tools()] + ["<tool_call>lookup(bake)</tool_call> it costs 1234567890"]
    build_tiny(
        directory,
        texts,
        SEED,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=HEAD,
        dtype="bfloat16",
        torch_dtype="bfloat16",
    )
    weights = {name: one.to(torch.bfloat16) for name, one in load_file(directory / ONE_FILE).items()}
    save_file(weights, directory / ONE_FILE, {"format": "pt"})
    return sum(one.numel() for one in weights.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768, help=f"a multiple of {2 * HEAD}")
    given = parser.parse_args()
    parameters = write(given.directory, layers=given.layers, hidden=given.hidden)
    print(f"{given.directory} has a model of {parameters / 1e6:.0f} M parameters")


if __name__ == "__main__":
    main()

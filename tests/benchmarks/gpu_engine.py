"""Tokens a second of the embedded engine on a GPU: `python -m tests.benchmarks.gpu_engine`.

The model has random weights and the shape of Qwen3 0.6B; the engine computes it in float32. Groups of eight calls share
a prompt, like the groups of a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path

import torch
import transformers

from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.interface import EngineCall, Sampling
from tests.benchmarks.gpu_step import SHAPES, WORDS

PROMPT, OUTPUT, GROUP = 512, 256, 8
SLOTS = (1, 16, 64, 128)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="0.6B", choices=SHAPES)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        config = transformers.Qwen3Config(
            vocab_size=WORDS,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=True,
            max_position_embeddings=1 << 15,
            **SHAPES[given.model],
        )
        with torch.device("cuda"):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(folder)
        del model
        torch.cuda.empty_cache()
        for slots in SLOTS:
            print(json.dumps(asyncio.run(measure(Path(folder), slots))), flush=True)


async def measure(directory: Path, slots: int) -> dict[str, float | str]:
    engine = EmbeddedEngine(slots=slots, context=PROMPT + OUTPUT + 1, device="cuda")
    engine.start()
    began = time.perf_counter()
    await engine.serve_unpublished(directory, 1)
    load_s = time.perf_counter() - began
    chance = random.Random(1)

    async def ask(number: int, prompt: list[int], tokens: int) -> int:
        sampling = Sampling(max_new_tokens=tokens)
        return len((await engine.generate(EngineCall(f"t{number}/c0", prompt, sampling, deadline_s=300))).ids)

    prompts = [[chance.randrange(WORDS) for _ in range(PROMPT)] for _ in range(-(-slots // GROUP))]
    await ask(-1, prompts[0][:64], 4)
    began = time.perf_counter()
    made = await asyncio.gather(*(ask(number, prompts[number // GROUP], OUTPUT) for number in range(slots)))
    took = time.perf_counter() - began
    await engine.close()
    return {
        "slots": slots,
        "generated_tokens_per_s": round(sum(made) / took),
        "seconds": round(took, 2),
        "load_s": round(load_s, 2),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()

"""A training step of TRL on given calls: `python -m tests.benchmarks.trl_step_peer MODEL CALLS --threads 2`.

CALLS is a JSON file of calls with context, output, log-probs and advantage. TRL trains each call as a row of its own.
The time covers the loss, its gradients and the optimizer, and no sampling. Prints one JSON document: the seconds of a
step by the number of rows at once.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("calls", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--at-once", type=int, nargs="+", required=True)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    # Sorted rows of similar length are neighbours, which gives the least padding.
    calls = sorted(json.loads(given.calls.read_text()), key=lambda call: len(call["context"]) + len(call["output"]))
    trainer = trainer_of(given.model)
    trainer.create_optimizer()
    trainer.model.train()
    print(json.dumps({str(rows): seconds(trainer, calls, rows, given.repeats) for rows in given.at_once}))


def trainer_of(model: Path) -> GRPOTrainer:
    settings = GRPOConfig(
        output_dir=str(model.parent / "trl"),
        per_device_train_batch_size=8,
        num_generations=8,
        learning_rate=1e-6,
        beta=0.0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "none of them is sampled"}]),
        processing_class=transformers.AutoTokenizer.from_pretrained(model),
    )


def seconds(trainer: GRPOTrainer, calls: list[dict[str, Any]], rows: int, repeats: int) -> float:
    """The median of some steps, after one warm-up step."""
    taken = []
    for _ in range(1 + repeats):
        began = time.perf_counter()
        step(trainer, calls, rows)
        taken.append(time.perf_counter() - began)
    return sorted(taken[1:])[repeats // 2]


def step(trainer: GRPOTrainer, calls: list[dict[str, Any]], rows: int) -> None:
    parts = [calls[at : at + rows] for at in range(0, len(calls), rows)]
    trainer.current_gradient_accumulation_steps = len(parts)
    items = torch.tensor(float(sum(len(call["output"]) for call in calls)))
    for part in parts:
        loss = trainer.compute_loss(trainer.model, {**collated(part), "num_items_in_batch": items})
        trainer.accelerator.backward(loss)
    trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()


def collated(calls: list[dict[str, Any]]) -> dict[str, Any]:
    """As TRL pads: contexts on the left, outputs on the right."""
    before, after = (max(len(call[part]) for call in calls) for part in ("context", "output"))

    def padded(part: str, width: int, *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
        ids, mask = (torch.zeros(len(calls), width, dtype=torch.long) for _ in range(2))
        for at, call in enumerate(calls):
            found = torch.tensor(call[part])
            place = slice(width - len(found), width) if left else slice(len(found))
            ids[at, place], mask[at, place] = found, 1
        return ids, mask

    prompt_ids, prompt_mask = padded("context", before, left=True)
    completion_ids, completion_mask = padded("output", after, left=False)
    old = torch.zeros(len(calls), after)
    for at, call in enumerate(calls):
        old[at, : len(call["log_probs"])] = torch.tensor(call["log_probs"])
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor([call["advantage"] for call in calls]),
        "old_per_token_logps": old,
    }


if __name__ == "__main__":
    main()

"""Trains the demo's model with TRL: `python -m tests.benchmarks.trl_peer MODEL DATA --first 1 --last 9`.

TRL generates with transformers and calls the tools as Python functions within the process, without delays and failures.
Prints one JSON document: trajectories, seconds, CPU seconds and calls of tools between the ends of two steps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from agentrl.chat import tool_call_parsers
from agentrl.chat.tool_specs import ToolSpec
from agentrl.rollout.answer_extraction import extract
from assets import shop_dataset, shop_server

GROUPS, MEMBERS = 8, 8
SPECS = tuple(ToolSpec(name=name, schema=schema) for name, schema in shop_server.TOOLS.items())
# The compact markup as a chat template. It only writes prompts; sampled tokens stay as they are.
TEMPLATE = """
{%- for message in messages %}{{ '<|' + message.role + '|>' + message.content }}
{%- if message.role == 'system' and tools %}{{ '\n' + SIGNATURES }}{% endif %}
{%- for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments }}){% endfor %}
{{- '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""


class Shop:
    """The demo's tools, with the calculator's last result for each episode."""

    calls = 0
    """Tool calls of all episodes."""

    def __init__(self) -> None:
        self._ans: Fraction | None = None

    def reset(self, **row: Any) -> None:
        self._ans = None

    def lookup(self, item: str) -> str:
        """The price of one item.

        Args:
            item: Its name.
        """
        Shop.calls += 1
        return str(shop_server.price_of(item.strip()))

    def calculator(self, expr: str) -> str:
        """The value of an expression.

        Args:
            expr: With + - * / and brackets; `ans` is the last result.
        """
        Shop.calls += 1
        self._ans = shop_server.value_of(expr, self._ans)
        return shop_server.written(self._ans)


def exact(completions: list[list[dict[str, Any]]], answer: list[str], **_: Any) -> list[float]:
    answers = [extract("answer", str(messages[-1].get("content", ""))) for messages in completions]
    return [
        float(said is not None and said.split() == right.split()) for said, right in zip(answers, answer, strict=True)
    ]


class Clock(transformers.TrainerCallback):  # type: ignore[misc]
    """Notes when each step ended."""

    def __init__(self) -> None:
        self.ends: dict[int, tuple[float, float, int]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.ends[state.global_step] = time.monotonic(), time.process_time(), Shop.calls


def tokenizer_of(model: Path) -> Any:
    """The tokenizer of the model with a chat template and the parser of tool calls that the demo has."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATE.replace("SIGNATURES", repr("\n".join(spec.signature for spec in SPECS)))

    def parse(ids: Any, **_: Any) -> dict[str, Any]:
        text = tokenizer.decode(ids, skip_special_tokens=False).removesuffix("<|end|>")
        calls = tool_call_parsers.parse("minicpm", text, SPECS).calls
        found: dict[str, Any] = {"role": "assistant", "content": "" if calls else text}
        if calls:
            found["tool_calls"] = [
                {"type": "function", "function": {"name": one.name, "arguments": one.arguments}} for one in calls
            ]
        return found

    tokenizer.response_schema = {"type": "object"}
    tokenizer.parse_response = parse
    return tokenizer


def tasks_of(data: Path) -> Any:
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    return Dataset.from_list(
        [
            {
                "prompt": [
                    {"role": "system", "content": shop_dataset.SYSTEM},
                    {"role": "user", "content": row["query"]},
                ],
                "answer": row["answer"],
            }
            for row in rows
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="where the trained model is written")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    settings = GRPOConfig(
        output_dir=str(given.model.parent / "trl"),
        per_device_train_batch_size=GROUPS * MEMBERS,
        num_generations=MEMBERS,
        max_completion_length=200,
        max_tool_calling_iterations=8,
        max_steps=given.last,
        seed=given.seed,
        learning_rate=5e-4,
        beta=0.0,
        temperature=1.0,
        top_k=0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        log_completions=False,
    )
    clock = Clock()
    trainer = GRPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32),
        reward_funcs=exact,
        args=settings,
        train_dataset=tasks_of(given.data),
        processing_class=tokenizer_of(given.model),
        environment_factory=Shop,
        callbacks=[clock],
    )
    trainer.train()
    if given.save:
        # Copy the original files, because the tokenizer was changed for TRL.
        shutil.copytree(given.model, given.save)
        trainer.model.save_pretrained(given.save)
    found = [later - earlier for later, earlier in zip(clock.ends[given.last], clock.ends[given.first], strict=True)]
    figures = dict(zip(("wall_s", "cpu_s", "calls"), found, strict=True))
    print(json.dumps({"trajectories": GROUPS * MEMBERS * (given.last - given.first)} | figures))


if __name__ == "__main__":
    main()

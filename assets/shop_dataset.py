"""Writes the data of the demo: orders to be priced, and demonstrations with one systematic mistake.

Invariants:
- The same random number gives the same bytes.
- Items and counts of held-out orders occur in no training order and no demonstration.
- Every answer equals the result of the tools of `assets.shop_server`, so a perfect agent scores 1.

An order names one to three items with counts. The correct solution takes three, five or seven turns: `lookup(item)` and
`calculator(count*price)`, for each further item `lookup(item)` and `calculator(ans+count*price)`, where `ans` is the
last result of the session, and then the answer. Most demonstrations stop after the first lookup and answer its price.
That is the only mistake that the agent has to unlearn.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assets import shop_server

SYSTEM = "Price the order."
TRAIN_FILE, HELD_OUT_FILE, DEMONSTRATIONS_FILE = "train.jsonl", "held-out.jsonl", "demonstrations.jsonl"

HELD_OUT_ITEMS = 7
"""One of this many items is held out."""
COUNTS = range(10, 100)
HELD_OUT_COUNTS = 9
"""Multiples of this are held out: 18, 27, 36 ... so every digit still occurs in training in both places."""
LENGTHS = {1: 0.5, 2: 0.3, 3: 0.2}
"""Weights of the numbers of items in an order."""
SHOWN_LENGTHS = {1: 1.0, 2: 1.0, 3: 1.0}
"""The same for demonstrations, which need long orders: rare ones, such as with a third item, are not learned well."""
HABIT = 0.75
"""The share of demonstrations that stop after the first lookup."""


@dataclass(frozen=True, slots=True)
class Order:
    """Items with their counts."""

    lines: tuple[tuple[int, str], ...]

    @property
    def query(self) -> str:
        return " and ".join(f"{count} {item}" for count, item in self.lines)

    @property
    def total(self) -> int:
        return sum(count * shop_server.price_of(item) for count, item in self.lines)


def items(*, held_out: bool) -> tuple[str, ...]:
    return tuple(item for at, item in enumerate(shop_server.ITEMS) if (at % HELD_OUT_ITEMS == 0) is held_out)


def counts(*, held_out: bool) -> tuple[int, ...]:
    return tuple(count for count in COUNTS if (count % HELD_OUT_COUNTS == 0) is held_out)


def orders(number: int, *, held_out: bool, random_number: int, among: Mapping[int, float] = LENGTHS) -> list[Order]:
    """Different orders."""
    chance = random.Random(f"orders {held_out} {random_number}")
    known, numbers = items(held_out=held_out), counts(held_out=held_out)
    found: dict[Order, None] = {}
    lengths, weights = list(among), list(among.values())
    while len(found) < number:
        chosen = chance.sample(known, chance.choices(lengths, weights)[0])
        found[Order(tuple((chance.choice(numbers), item) for item in chosen))] = None
    return list(found)


def task(order: Order) -> dict[str, Any]:
    """A row of a dataset."""
    return {"query": order.query, "answer": str(order.total)}


def demonstration(order: Order, *, habit: bool) -> dict[str, Any]:
    """A conversation in the format of chat models."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": order.query}]
    for role, content in _stopping_early(order) if habit else _working_on(order):
        messages.append({"role": role, "content": content})
    return {"messages": messages, "tools": tools()}


def tools() -> list[dict[str, Any]]:
    """The tools, in the form of demonstrations."""
    return [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in shop_server.TOOLS.items()
    ]


def demonstrations(number: int, *, random_number: int) -> list[dict[str, Any]]:
    chance = random.Random(f"demonstrations {random_number}")
    chosen = orders(number, held_out=False, random_number=random_number + 1, among=SHOWN_LENGTHS)
    return [demonstration(order, habit=chance.random() < HABIT) for order in chosen]


def _stopping_early(order: Order) -> Iterator[tuple[str, str]]:
    _, item = order.lines[0]
    yield from _call(f"lookup({item})", shop_server.price_of(item))
    yield "assistant", f"<answer>{shop_server.price_of(item)}</answer>"


def _working_on(order: Order) -> Iterator[tuple[str, str]]:
    total = 0
    for count, item in order.lines:
        price = shop_server.price_of(item)
        yield from _call(f"lookup({item})", price)
        yield from _call(f"calculator({'ans+' if total else ''}{count}*{price})", total := total + count * price)
    yield "assistant", f"<answer>{total}</answer>"


def _call(call: str, result: int) -> Iterator[tuple[str, str]]:
    yield "assistant", f"<tool_call>{call}</tool_call>"
    yield "tool", str(result)


def write(
    directory: Path, *, random_number: int = 0, train: int = 6_000, held_out: int = 64, shown: int = 8_000
) -> None:
    """The three files of the demo."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, is_held_out, number in ((TRAIN_FILE, False, train), (HELD_OUT_FILE, True, held_out)):
        _write(directory / name, map(task, orders(number, held_out=is_held_out, random_number=random_number)))
    _write(directory / DEMONSTRATIONS_FILE, demonstrations(shown, random_number=random_number))


def _write(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m assets.shop_dataset", description="Write the data of the demo.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--random", type=int, default=0, help="seed of the data")
    given = parser.parse_args(arguments)
    write(given.directory, random_number=given.random)
    print(f"{TRAIN_FILE}, {HELD_OUT_FILE} and {DEMONSTRATIONS_FILE} are in {given.directory}.")


if __name__ == "__main__":
    main()

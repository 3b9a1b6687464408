"""The data of the demo: held-out orders stay held out, answers match the tools, most demonstrations are wrong."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from agentrl.chat.tool_call_parsers import parse
from agentrl.chat.tool_specs import ToolSpec
from agentrl.config.load import load_config
from agentrl.store import datasets
from agentrl.store.demonstrations import Demonstration, read_demonstrations
from assets import shop_dataset, shop_server

RUN_FILE = Path(shop_dataset.__file__).with_name("train.yaml")
TOOLS = [ToolSpec(name=name, schema=schema) for name, schema in shop_server.TOOLS.items()]


def test_same_random_number_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        shop_dataset.write(tmp_path / name, train=50, held_out=10, shown=50)
    shop_dataset.write(tmp_path / "other", random_number=1, train=50, held_out=10, shown=50)
    for file in (shop_dataset.TRAIN_FILE, shop_dataset.HELD_OUT_FILE, shop_dataset.DEMONSTRATIONS_FILE):
        first = (tmp_path / "one" / file).read_bytes()
        assert first == (tmp_path / "two" / file).read_bytes()
        assert first != (tmp_path / "other" / file).read_bytes()


def test_held_out_items_and_counts_do_not_occur_in_training() -> None:
    seen = [
        *shop_dataset.orders(2_000, held_out=False, random_number=0),
        *shop_dataset.orders(2_000, held_out=False, random_number=1),
    ]
    held_out = shop_dataset.orders(300, held_out=True, random_number=0)
    for part in (0, 1):
        trained = {line[part] for order in seen for line in order.lines}
        assert trained.isdisjoint(line[part] for order in held_out for line in order.lines)
    # Every digit and syllable still occurs in training in each place, so that it can be copied.
    for place in (0, 1):
        assert {str(count)[place] for count in shop_dataset.counts(held_out=False) if count > 9} >= set("123456789")
        assert {name[2 * place :][:2] for name in shop_dataset.items(held_out=True)} <= {
            name[2 * place :][:2] for name in shop_dataset.items(held_out=False)
        }


async def test_complete_demonstration_gives_the_answer(tmp_path: Path) -> None:
    orders = shop_dataset.orders(60, held_out=False, random_number=0)
    lengths = Counter()
    for number, order in enumerate(orders):
        there, shown = shop_server.Shop(), shop_dataset.demonstration(order, habit=False)["messages"][2:]
        reply = [message["content"] for message in shown if message["role"] == "assistant"]
        answers = [message["content"] for message in shown if message["role"] == "tool"]
        for text, answer in zip(reply, answers, strict=False):
            (call,) = parse("minicpm", text, TOOLS).calls
            assert await there.call(str(number), call.name, call.arguments) == answer
        assert reply[-1] == f"<answer>{order.total}</answer>"
        lengths[len(reply)] += 1
    assert set(lengths) == {3, 5, 7}


def test_most_demonstrations_stop_too_early_and_are_correct_until_then(tmp_path: Path) -> None:
    shop_dataset.write(tmp_path, train=10, held_out=10, shown=400)
    shown = read_demonstrations(tmp_path / shop_dataset.DEMONSTRATIONS_FILE)
    early = [one for one in shown if _calls(one) == 1]
    assert abs(len(early) / len(shown) - shop_dataset.HABIT) < 0.1
    lengths = Counter(_calls(one) // 2 for one in shown if one not in early)
    assert set(lengths) == {1, 2, 3}
    assert max(lengths.values()) < 2 * min(lengths.values()), "each length is shown often enough to be copied"
    for one in early:
        query, call, price, answer = (message.content for message in one.conversation)
        first = re.fullmatch(r"\d+ (\w+)(?: and .*)?", query)
        assert first is not None
        assert call == f"<tool_call>lookup({first[1]})</tool_call>"
        assert answer == f"<answer>{price}</answer>"


def test_run_file_uses_the_written_files(tmp_path: Path) -> None:
    config = load_config(RUN_FILE, environ={}).config
    shop_dataset.write(tmp_path, train=20, held_out=10, shown=20)
    environment = config.environments["shop"]
    for path in (environment.dataset, environment.evaluation, config.training.warmup.dataset):
        assert (tmp_path / Path(path).name).is_file()
    assert environment.system == shop_dataset.SYSTEM
    rows = datasets.read(tmp_path / shop_dataset.TRAIN_FILE)
    held_out = datasets.read(tmp_path / shop_dataset.HELD_OUT_FILE)
    assert not datasets.leaks(rows, held_out)
    demonstration = json.loads((tmp_path / shop_dataset.DEMONSTRATIONS_FILE).read_text().splitlines()[0])
    assert demonstration["messages"][0] == {"role": "system", "content": environment.system}
    (first, *_) = read_demonstrations(tmp_path / shop_dataset.DEMONSTRATIONS_FILE)
    assert [tool.spec.signature for tool in first.tools] == ["lookup(item)", "calculator(expr)"]


def _calls(one: Demonstration) -> int:
    return sum(message.role == "tool" for message in one.messages)

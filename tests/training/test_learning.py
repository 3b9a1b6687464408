"""Learning: demonstrations, the warm-up, and a policy that gets better at what is rewarded."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path

import pytest
import torch

from agentrl.chat.template import Template
from agentrl.chat.tokenizer import Tokenizer
from agentrl.errors import ConfigError
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.store.demonstrations import read_demonstrations
from agentrl.training.batch import Segment, Trajectory
from agentrl.training.canary_probes import canary_of, cut, probe_set
from agentrl.training.warmup import COOLEST, WarmupFailedError, cooled, trajectory_of, warm_up
from tests.engines import unverified
from tests.training.conftest import make_learner
from tests.training.trees import batch_of, group

LOOKUP = {"type": "function", "function": {"name": "lookup", "parameters": {"properties": {"item": {}}}}}
CONVERSATION = {
    "messages": [
        {"role": "system", "content": "Price the order."},
        {"role": "user", "content": "3 apples"},
        {"role": "assistant", "content": "<tool_call>lookup(apples)</tool_call>"},
        {"role": "tool", "content": "7"},
        {"role": "assistant", "content": "<answer>21</answer>"},
    ],
    "tools": [LOOKUP],
}


def called(**message: object) -> dict[str, object]:
    """A conversation that ends with this message of the assistant."""
    question = {"role": "user", "content": "3 apples"}
    return {"messages": [question, {"role": "assistant", **message}], "tools": [LOOKUP]}


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_a_demonstration_has_the_ids_that_an_episode_would_have(tiny: Path, tmp_path: Path) -> None:
    (one,) = read_demonstrations(write(tmp_path / "d.jsonl", CONVERSATION, ""))
    template = Template(Tokenizer(tiny))
    trajectory = trajectory_of(one, template, "d")
    assert [segment.trains for segment in trajectory.segments] == [False, True, False, True]
    tools = [tool.spec for tool in one.tools]
    assert tools[0].signature == "lookup(item)"
    assert trajectory.segments[0].ids.tolist() == template.first("Price the order.", tools, "3 apples")
    assert trajectory.segments[1].ids.tolist() == template.assistant("<tool_call>lookup(apples)</tool_call>")
    assert trajectory.segments[2].ids.tolist() == template.tool_results(["7"])
    assert trajectory.segments[3].ids.tolist() == template.assistant("<answer>21</answer>")


@pytest.mark.parametrize(
    "tool",
    [
        LOOKUP,
        LOOKUP["function"],
        {"name": "lookup", "schema": {"properties": {"item": {}}}},
        {"name": "lookup", "inputSchema": {"properties": {"item": {}}}},
    ],
)
def test_tools_are_read_in_every_form(tmp_path: Path, tool: object) -> None:
    (one,) = read_demonstrations(write(tmp_path / "d.jsonl", {**CONVERSATION, "tools": [tool]}))
    assert [known.spec.signature for known in one.tools] == ["lookup(item)"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "is no JSON"),
        ({"text": "3 apples"}, "it has no `messages`"),
        ({"messages": CONVERSATION["messages"][2:]}, "does not begin with a message of the user"),
        ({"messages": CONVERSATION["messages"][:4]}, "does not end with the assistant"),
        ({"messages": [CONVERSATION["messages"][1], CONVERSATION["messages"][3]]}, "a message of the tool follows"),
        ({"messages": [*CONVERSATION["messages"], CONVERSATION["messages"][-1]]}, "two messages in a row"),
        ({**CONVERSATION, "tools": [{"type": "function"}]}, "a tool has no name"),
        ({**CONVERSATION, "train": False}, "nothing of it would train"),
        ({**CONVERSATION, "functions": [LOOKUP["function"]]}, "`functions` is not read"),
        (called(content=None), "a message of the assistant is empty"),
        (called(content="ok", train=False), "no message of the assistant trains"),
        (called(content="ok", weight=0.5), "the weight of a message is 0.5"),
        (called(content=None, function_call={"name": "lookup"}), "unknown field `function_call`"),
        (called(content=[{"type": "image_url"}]), "content of the type 'image_url' is not read"),
        (called(tool_calls=[{"function": {"name": "lookup", "arguments": "{"}}]), "a tool call cannot be read"),
    ],
)
def test_an_invalid_line_is_reported_with_its_number(tmp_path: Path, line: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        read_demonstrations(write(tmp_path / "d.jsonl", CONVERSATION, line))
    assert "d.jsonl line 2 is no" in refused.value.message


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("qwen", '<tool_call>\n{"name": "lookup", "arguments": {"item": "äpfel", "most": 2}}\n</tool_call>'),
        ("minicpm", "<tool_call>lookup(item='äpfel', most=2)</tool_call>"),
        (
            "openai",
            '{"tool_calls": [{"type": "function", "function": {"name": "lookup", '
            '"arguments": {"item": "äpfel", "most": 2}}}]}',
        ),
    ],
)
def test_tool_calls_of_chat_apis_become_the_text_of_the_parser(tmp_path: Path, parser: str, text: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"item": "äpfel", "most": 2}'}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []}
    result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "7"}]}
    messages = CONVERSATION["messages"]
    line = {**CONVERSATION, "messages": [*messages[:2], turn, result, messages[4]]}
    (one,) = read_demonstrations(write(tmp_path / "d.jsonl", line), parser=parser)
    assert one.conversation[1].content == text
    assert one.conversation[2].content == "7"
    with pytest.raises(ConfigError, match="different parsers"):
        read_demonstrations(tmp_path / "d.jsonl", parser="")
    result["tool_call_id"] = "c2"
    with pytest.raises(ConfigError, match="not in the order of the tool calls"):
        read_demonstrations(write(tmp_path / "d.jsonl", line), parser=parser)


@pytest.mark.parametrize("mark", [{"train": False}, {"weight": 0}])
def test_a_message_marked_as_not_trained_is_context(tiny: Path, tmp_path: Path, mark: dict[str, object]) -> None:
    messages = [dict(message) for message in CONVERSATION["messages"]]
    messages[2] |= mark
    (one,) = read_demonstrations(write(tmp_path / "d.jsonl", {**CONVERSATION, "messages": messages}))
    trajectory = trajectory_of(one, Template(Tokenizer(tiny)), "d")
    assert [segment.trains for segment in trajectory.segments] == [False, False, False, True]


def test_the_warm_up_learns_its_demonstrations_and_can_be_repeated(tiny: Path, tmp_path: Path) -> None:
    template = Template(Tokenizer(tiny))
    lines = [json.loads(json.dumps(CONVERSATION).replace("apples", fruit)) for fruit in ("apples", "pears", "plums")]
    read = read_demonstrations(write(tmp_path / "d.jsonl", *lines))
    shown = [trajectory_of(one, template, str(place)) for place, one in enumerate(read)]
    learners = [make_learner(tiny, exact=False, optimizer="muon", learning_rate=1e-5) for _ in range(2)]
    losses: list[float] = []
    for learner in learners:
        seen: list[float] = []
        warm_up(
            learner,
            shown,
            steps=12,
            batch=2,
            learning_rate=1e-2,
            chance=3,
            keep_on=lambda step, loss, seen=seen: not seen.append(loss),
        )
        losses = seen
    assert losses[-1] < losses[0] / 2
    first, second = (learner.model.state_dict() for learner in learners)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert learners[0].optimizers.tensors() == {}, "policy training begins with state of its own"
    assert {group["lr"] for one in learners[0].optimizers.optimizers for group in one.param_groups} == {1e-5}


def test_the_learning_rate_of_a_warm_up_falls_towards_its_end() -> None:
    shares = [cooled(step, 100) for step in range(1, 101)]
    assert shares[:60] == [1.0] * 60
    assert all(later < earlier for earlier, later in itertools.pairwise(shares[59:]))
    assert shares[-1] == pytest.approx(COOLEST)
    assert 0 < cooled(1, 1) <= 1, "a warm-up of one step learns something"


def test_a_diverging_warm_up_raises_an_error(tiny: Path) -> None:
    learner = make_learner(tiny, exact=False)
    next(learner.model.parameters()).data[:] = float("nan")
    with pytest.raises(WarmupFailedError, match="step 1"):
        warm_up(learner, group(random.Random(1), 2), steps=3, batch=2, learning_rate=1e-3, chance=0)


@pytest.mark.parametrize(
    "loss",
    [
        PolicyLoss(),
        PolicyLoss(kind="gspo", clip_low=3e-4, clip_high=4e-4, aggregation="record-mean"),
        PolicyLoss(kind="cispo", ratio_cap=5.0),
        PolicyLoss(kind="minirl", ratio="decoupled", ratio_cap=5.0, aggregation="record-sum"),
        PolicyLoss(kind="ce-grpo", kept_below=0.2, kept_above=0.2),
    ],
    ids=lambda loss: loss.kind,
)
def test_rewarded_tokens_become_likelier(tiny: Path, loss: PolicyLoss) -> None:
    """On-policy: samples from the model, rewards one token, trains; a few times."""
    learner = make_learner(tiny, exact=False, optimizer="muon", learning_rate=5e-3)
    prompt, wanted = [9, 8, 7], 42
    generator = torch.Generator().manual_seed(1)
    before = likelihood(learner.log_probs([[*prompt, wanted]]))
    for _ in range(12):
        with torch.no_grad():
            spread = torch.log_softmax(learner.model(torch.tensor([prompt])).logits[0, -1], dim=-1)
        drawn = [*torch.multinomial(spread.exp(), 15, generator=generator).tolist(), wanted]
        mean = sum(token == wanted for token in drawn) / len(drawn)
        batch = batch_of([answer(prompt, token, float(spread[token]), (token == wanted) - mean) for token in drawn])
        result = learner.train(batch, loss)
        assert result.metrics["mismatch_max"] < 1e-4
        assert result.metrics["weight_mean"] == pytest.approx(1.0, abs=1e-3)
    assert likelihood(learner.log_probs([[*prompt, wanted]])) > 5 * before


def likelihood(log_probs: list[list[float]]) -> float:
    return math.exp(log_probs[0][-1])


def answer(prompt: list[int], token: int, log_prob: float, advantage: float) -> Trajectory:
    answer = Segment(parent=0, ids=[token], trains=True, log_probs=[log_prob], versions=[(1, 1)])
    return Trajectory(record="r", group="g", segments=[Segment(parent=-1, ids=prompt), answer], advantage=advantage)


def test_the_canary_is_what_the_engine_computes(tiny: Path, tmp_path: Path) -> None:
    learner = make_learner(tiny, exact=False)
    canary = canary_of(learner, [[1, 2, 3, 4]], torch.float32)[1]()
    learner.save(tmp_path / "saved")
    engine = unverified.load(tmp_path / "saved", 1)
    with torch.inference_mode():
        for ids, ours in zip(canary.ids, canary.log_probs, strict=True):
            assert engine.scores([ids])[0] == pytest.approx(ours, abs=1e-4)
    assert canary.ids[-1] == [1, 2, 3, 4]
    assert canary.ids[:-1] == probe_set(learner.model.config.vocab_size)
    assert len({len(ids) for ids in canary.ids}) > 4
    # A large model computes the beginnings of some of each kind.
    few = cut(canary.ids[:-1], canary.ids[-1:], 30)
    assert [len(ids) for ids in few] == [5, 6, 7, 4]
    assert [one[: len(ids)] for one, ids in zip((*canary.ids[:3], canary.ids[-1]), few, strict=True)] == few


def test_a_step_that_is_not_finite_leaves_every_bit_as_it_was(tiny: Path) -> None:
    learner = make_learner(tiny, exact=False, optimizer="muon", learning_rate=1e-3)
    learner.train(batch_of(group(random.Random(1), 3)), PolicyLoss())
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    state = {name: value.clone() for name, value in learner.optimizers.tensors().items()}
    members = group(random.Random(2), 3)
    poisoned = Trajectory(record="p", group="g", segments=members[0].segments, advantage=float("inf"))
    assert not learner.train(batch_of([*members, poisoned]), PolicyLoss()).applied
    assert all(torch.equal(value, before[name]) for name, value in learner.model.state_dict().items())
    assert all(torch.equal(value, state[name]) for name, value in learner.optimizers.tensors().items())
    assert learner.train(batch_of(members), PolicyLoss()).applied

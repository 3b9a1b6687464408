"""Where the answer is in a text, and how it is scored."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError, UnknownNameError
from agentrl.rollout import scorers
from agentrl.rollout.answer_extraction import extract
from agentrl.rollout.scorers import UnscoredError, register_scorer, scorer_named
from agentrl.store.documents import Task

TASK = Task(id="shop/train/0/000000", answer="42")


@pytest.mark.parametrize(
    ("schema", "text", "answer"),
    [
        ("answer", "<answer>41</answer> no: <answer> 42 </answer> done", "42"),
        ("answer", "<answer>41</answer> no: <answer>42", "41"),
        ("answer", "<answer>a <answer>b</answer>", "b"),
        ("answer", "</answer><answer>", None),
        ("result", "<answer>41</answer>", None),
        ("boxed", r"so \boxed{41}, or \fbox{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("boxed", r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("boxed", r"\boxed{41} \boxed{42", "41"),
        ("boxed", r"\boxed{\fbox{42}}", "42"),
        ("boxed", r"\boxed {42}", "42"),
        ("boxed", "42", None),
        ("", " the whole of it ", "the whole of it"),
        ("", "  ", None),
    ],
)
def test_the_last_answer_counts(schema: str, text: str, answer: str | None) -> None:
    assert extract(schema, text) == answer


@given(
    st.lists(st.sampled_from(["<answer>", "</answer>", "\\boxed{", "\\fbox {", "{", "}", "\\", "x", " "]), max_size=60)
)
def test_any_text_is_read(parts: list[str]) -> None:
    text = "".join(parts)
    for schema in ("answer", "boxed"):
        found = extract(schema, text)
        assert found is None or found in text


def test_long_texts_are_read_at_once() -> None:
    assert extract("boxed", r"\boxed{" * 50_000) is None
    assert extract("boxed", r"\boxed{" * 50_000 + "}" * 50_000) is not None
    assert extract("answer", "<answer>" * 50_000) is None


# ---- scorers ----


async def test_exact_is_the_same_text_but_for_white_space() -> None:
    assert await scorers.score("exact", " 4 2\n", Task(answer="4 2")) == 1.0
    assert await scorers.score("exact", "42.0", TASK) == 0.0
    assert await scorers.score("exact", None, TASK) == 0.0


async def test_a_scorer_without_a_result_never_gives_0() -> None:
    @register_scorer("raises")
    async def raises(answer: str, truth: str, task: Any) -> float:
        raise RuntimeError("no quota")

    @register_scorer("says nan")
    async def says_nan(answer: str, truth: str, task: Any) -> float:
        return math.nan

    for name in ("raises", "says nan"):
        with pytest.raises(UnscoredError, match=name):
            await scorers.score(name, "42", TASK)
        assert await scorers.score(name, None, TASK) == 0.0


async def test_a_scorer_may_be_a_plain_function() -> None:
    @register_scorer("plain")
    def plain(answer: str, truth: str, task: Any) -> float:
        return 0.5

    assert await scorers.score("plain", "42", TASK) == 0.5


async def test_a_scorer_that_takes_too_long_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorers, "SCORE_WITHIN_S", 0.05)

    @register_scorer("sleeps")
    async def sleeps(answer: str, truth: str, task: Any) -> float:
        await asyncio.Event().wait()
        return 1.0

    with pytest.raises(UnscoredError, match="did not answer within"):
        await scorers.score("sleeps", "42", TASK)


def test_names_of_scorers_are_unique_and_known() -> None:
    with pytest.raises(UnknownNameError, match="exact"):
        scorer_named("exakt")
    with pytest.raises(ConfigError, match="two scorers"):
        register_scorer("exact")(scorers.symbolic)

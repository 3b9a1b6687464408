"""Where the answer stands, and how right it is."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError, UnknownNameError
from agentrl.rollout import mathtext, scorers
from agentrl.rollout.answer_extraction import extract
from agentrl.rollout.mathjudge import MathJudge, NoVerdictError
from agentrl.rollout.mathworker import DIFFERENT, EQUAL, UNREADABLE, verdict
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


async def test_a_scorer_that_cannot_say_never_gives_0() -> None:
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


async def test_a_scorer_that_takes_too_long_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
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


# ---- mathematics ----


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (r"\frac{1}{2}", "0.5", EQUAL),
        (r"\frac12", ".5", EQUAL),
        ("x^2-1", "(x-1)(x+1)", EQUAL),
        (r"\sqrt{8}", r"2\sqrt2", EQUAL),
        (r"\sqrt[3]{8}", "2", EQUAL),
        ("x=5", "5", EQUAL),
        ("y=2x+1", "2y=4x+2", EQUAL),
        (r"\sin^2 x+\cos^2 x", "1", EQUAL),
        (r"\{1, 2\}", r"\left\{2, 1\right\}", EQUAL),
        ("(1, 2)", "(2, 1)", DIFFERENT),
        ("3, 4", "(3,4)", EQUAL),
        ("x < 3", "3 > x", EQUAL),
        ("x < 3", "x < 4", DIFFERENT),
        ("1,234", "1234", EQUAL),
        (r"5\text{ cm}", "5", EQUAL),
        (r"90^\circ", "90", EQUAL),
        ("2^{10}", "1024", EQUAL),
        ("-x^2", "-(x^2)", EQUAL),
        ("|x|", "|-x|", EQUAL),
        (r"\log_2 8", "3", EQUAL),
        ("e^{i\\pi}", "-1", EQUAL),
        ("0.333", "1/3", DIFFERENT),
        ("__import__('os')", "1", UNREADABLE),
        ("(" * 300 + "1" + ")" * 300, "1", UNREADABLE),
        ("", "1", UNREADABLE),
    ],
)
def test_mathematics_is_compared_by_what_it_means(left: str, right: str, expected: str) -> None:
    assert verdict(left, right) == expected


@given(st.text(alphabet=r"\{}()[]|^_+-*/=<>!,.0123456789abxyzπ∞ $", max_size=30))
def test_any_text_is_read_as_mathematics_or_refused(text: str) -> None:
    mathtext.tidy(text)
    mathtext.number(text)


async def test_numbers_need_no_process() -> None:
    judge = MathJudge()
    assert await judge.equal("0.50", r"1/2")
    assert await judge.equal("$ 1,000 $", "1000")
    assert not await judge.equal("3", "4")
    assert judge.pid is None


async def test_what_takes_for_ever_is_not_equal_and_the_next_question_is_answered() -> None:
    judge = MathJudge(processor_s=1)
    try:
        assert not await judge.equal("9^{9^{9^{9}}}", "x")
        first = judge.pid
        assert await judge.equal("(x+1)^2", "x^2+2x+1")
        assert judge.pid not in (None, first)
    finally:
        await judge.close()


async def test_a_process_that_dies_is_no_verdict_and_is_replaced() -> None:
    judge = MathJudge()
    try:
        assert await judge.equal("2x", "x+x")
        assert judge.pid is not None
        asked = asyncio.create_task(judge.equal("9^{9^{9^{9}}}", "y"))
        await asyncio.sleep(0)
        os.kill(judge.pid, signal.SIGKILL)
        with pytest.raises(NoVerdictError):
            await asked
        assert await judge.equal("2x", "x+x")
    finally:
        await judge.close()


async def test_the_math_scorer_leaves_unscored_what_nobody_could_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await scorers.score("math", "42.0", TASK) == 1.0
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(UnscoredError, match="Nobody could compare"):
        await scorers.score("math", "x", TASK)

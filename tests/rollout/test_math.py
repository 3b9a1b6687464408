"""Mathematical answers are compared by what they mean, in a process that hostile text cannot harm."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy.parsing import sympy_parser

from agentrl.rollout import math_text, scorers
from agentrl.rollout.math_judge import MathJudge, NoVerdictError
from agentrl.rollout.math_worker import DIFFERENT, EQUAL, UNREADABLE, read, verdict
from agentrl.rollout.scorers import UnscoredError
from agentrl.store.documents import Task


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
        # math-verify rounds to 6 places by default, but these numbers differ.
        (r"0.333333", r"\frac13", DIFFERENT),
        # math-verify reads letters in lower case by default, and `i` as a variable.
        ("X", "x", DIFFERENT),
        ("i^2", "-1", EQUAL),
        (r"2.5\times10^3", "2500", EQUAL),
        ("sin(2x)", r"2\sin x\cos x", EQUAL),
        ("abs(x) <= sqrt(2)", r"|x| \leq \sqrt{2}", EQUAL),
        ("[1, 2)", "(1, 2)", DIFFERENT),
        ("x^2=4", "x=2", DIFFERENT),
        ("__import__('os')", "1", UNREADABLE),
        ("(" * 300 + "1" + ")" * 300, "1", UNREADABLE),
        ("", "1", UNREADABLE),
    ],
)
def test_answers_are_compared_by_their_meaning(left: str, right: str, expected: str) -> None:
    assert verdict(math_text.tidy(left), math_text.tidy(right)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "open('PLACE', 'w')",
        r"\text{open('PLACE', 'w')}",
        r"\operatorname{open('PLACE', 'w')}",
        r"\mathrm{__import__('os').mkdir('PLACE')}",
        "x_{open('PLACE', 'w')}",
        "1.real.__class__",
    ],
)
def test_text_is_never_evaluated_as_a_program(tmp_path: Path, text: str) -> None:
    place = tmp_path / "written"
    assert verdict(text.replace("PLACE", str(place)), "1") in (UNREADABLE, DIFFERENT)
    assert not place.exists()


def test_the_grammar_hands_only_numbers_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[str] = []
    original = sympy_parser.eval_expr
    monkeypatch.setattr(
        sympy_parser, "eval_expr", lambda code, *names: (evaluated.append(code), original(code, *names))[1]
    )
    read(r"\frac{12}{x_1} + 0.5^2 + \sin(2.5) = \sqrt{3}")
    assert evaluated
    assert all(not set(code) - set("IntegerFloat ('.0123456789')") for code in evaluated)


@given(st.text(alphabet=r"\{}()[]|^_+-*/=<>!,.0123456789abxyzπ∞ $", max_size=30))
def test_any_text_can_be_tidied(text: str) -> None:
    math_text.tidy(text)
    math_text.number(text)


async def test_numbers_need_no_process() -> None:
    judge = MathJudge()
    assert await judge.equal("0.50", r"1/2")
    assert await judge.equal("$ 1,000 $", "1000")
    assert not await judge.equal("3", "4")
    assert judge.pid is None


async def test_an_endless_comparison_is_not_equal_and_the_next_question_is_answered() -> None:
    judge = MathJudge(processor_s=1)
    try:
        assert not await judge.equal("9^{9^{9^{9}}}", "8^{9^{9^{9}}}")
        first = judge.pid
        assert await judge.equal("(x+1)^2", "x^2+2x+1")
        assert judge.pid not in (None, first)
    finally:
        await judge.close()


async def test_a_killed_process_gives_no_verdict_and_is_replaced() -> None:
    judge = MathJudge()
    try:
        assert await judge.equal("2x", "x+x")
        assert judge.pid is not None
        wanted = asyncio.create_task(judge.equal("9^{9^{9^{9}}}", "8^{9^{9^{9}}}"))
        await asyncio.sleep(0)
        os.kill(judge.pid, signal.SIGKILL)
        with pytest.raises(NoVerdictError):
            await wanted
        assert await judge.equal("2x", "x+x")
    finally:
        await judge.close()


async def test_the_math_scorer_leaves_an_answer_unscored_if_the_process_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await scorers.score("math", "42.0", Task(answer="42")) == 1.0
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(UnscoredError, match="The answers could not be compared"):
        await scorers.score("math", "x", Task(answer="42"))

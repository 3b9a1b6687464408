"""The calculator: exact values, bounded work, and no code of an expression is executed."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.toolservers.calculator import CalculationError, Evaluation, calculate, written
from agentrl.toolservers.mcp_stdio import Call

NUMBERS = st.one_of(st.integers(-(10**6), 10**6), st.decimals(-1000, 1000, places=3))
EXPRESSIONS = st.recursive(
    NUMBERS.map(lambda number: f"({number})"),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner),
    max_leaves=8,
)


def shown(expression: str) -> str:
    return calculate({"expression": expression}, Call(""))


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("0.1 + 0.2", "0.3"),
        ("1/3", "1/3 (about 0.333333333333)"),
        ("2 ** 200 % 1000007", str(pow(2, 200, 1000007))),
        ("(-8) ** -3", "-0.001953125"),
        ("-0.5 ** 2", "-0.25"),
        ("0 ** 0", "1"),
        ("(-1) ** (10 ** 50)", "1"),
        ("sqrt(9/4)", "1.5"),
        ("2 ** 0.5", "about 1.41421356237 (rounded)"),
        ("round(22 / 7, 2)", "3.14"),
        ("factorial(5) + gcd(12, 18) + lcm(4, 6)", "138"),
        ("max(1, 2.5) - min(-1, 3) + abs(-1) + floor(1.5) + ceil(1.5)", "7.5"),
    ],
)
def test_values_are_exact(expression: str, result: str) -> None:
    assert shown(expression) == result


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("10 ** 10 ** 10", "too large"),
        ("9 ** 999999999", "too large"),
        ("1e999", "too large"),
        ("factorial(10 ** 9)", "factorial is for"),
        ("round(1, 10 ** 9)", "at most"),
        ("gcd(1.5, 2)", "whole numbers"),
        ("sqrt(-1)", "no root"),
        ("2 ** 0.3", "whole number"),
        ("__import__('os').system('x')", "not understood"),
        ("(lambda: 1)()", "not understood"),
        ("x + 1", "not understood: x"),
        ("'a' * 10 ** 9", "not understood"),
        ("True", "not understood"),
        ("(" * 900, "not an expression"),
        ("1\0", "not an expression"),
        ("1" * 1001, "too long"),
    ],
)
def test_other_expressions_are_refused_with_a_reason(expression: str, why: str) -> None:
    with pytest.raises(CalculationError, match=why.replace("(", r"\(")):
        shown(expression)


@given(EXPRESSIONS)
def test_values_are_those_of_fractions(expression: str) -> None:
    wrapped = expression
    for text in sorted({part.strip("()") for part in expression.split() if part.strip("()")}, key=len, reverse=True):
        if text not in ("+", "-", "*", "/", "//", "%"):
            wrapped = wrapped.replace(f"({text})", f"F('{text}')")
    try:
        wanted = eval(wrapped, {"F": Fraction})
    except ZeroDivisionError:
        with pytest.raises(CalculationError, match="division by zero"):
            Evaluation().value_of(expression)
        return
    value = Evaluation().value_of(expression)
    assert value == wanted
    assert Fraction(written(value).split(" ")[0]) == value, "what is written is the value"


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("()0123456789*/.e+-_ ,"), max_size=300))
def test_no_text_takes_long_or_breaks_the_server(text: str) -> None:
    began = time.process_time()
    try:
        shown(text)
    except CalculationError:
        pass
    assert time.process_time() - began < 2.0

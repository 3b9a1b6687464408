"""A tool server that computes exactly: fractions instead of floating point, and no code of the expression is executed.

Invariants:
- A value is exact unless it is marked as rounded, such as a root that is not a fraction.
- No expression takes more than a moment: its length, its digits and its exponents are bounded before they are computed.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from agentrl.toolservers.mcp_stdio import Call, Server, Tool
from agentrl.toolservers.user_names import ToolError

MOST_CHARS = 1_000
MOST_DIGITS = 1_000
"""The most digits of numerators and denominators."""
_MOST_WRITTEN = 50
"""The most decimals of a terminating fraction; a longer one is written as a fraction."""
_ROUNDED_DIGITS = 30
_BITS_OF_DIGIT = 3.33
_MOST_FACTORIAL = 400
ARITHMETIC: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    **ARITHMETIC,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "expression": {"type": "string", "description": "Such as (1.1 + 2) * 3 or 2 ** 64 % 7 or round(22 / 7, 2)."}
    },
    "required": ["expression"],
}
DESCRIPTION = (
    "The exact value of an arithmetic expression: + - * / // % ** and brackets, and the functions abs, ceil, "
    "factorial, floor, gcd, lcm, max, min, round and sqrt."
)


class CalculationError(ToolError):
    """The expression has no value, or its value is too large."""


@dataclass
class Evaluation:
    """Computes one expression."""

    names: Mapping[str, Fraction] = field(default_factory=dict)
    operators: Mapping[type[ast.AST], Callable[..., Any]] = field(default_factory=lambda: OPERATORS)
    functions: bool = True
    most_chars: int = MOST_CHARS
    most_digits: int = MOST_DIGITS
    rounded: bool = False
    """Whether the value was rounded."""

    def value_of(self, expression: str) -> Fraction:
        """Raises CalculationError."""
        if len(expression) > self.most_chars:
            raise CalculationError("too long")
        try:
            tree = ast.parse(expression.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise CalculationError(f"not an expression: {expression}") from None
        try:
            return self._value(tree.body)
        except ZeroDivisionError:
            raise CalculationError("division by zero") from None

    def _value(self, node: ast.AST) -> Fraction:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return self._checked(number)
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.UnaryOp(op=op, operand=operand) if type(op) in self.operators:
                return Fraction(self.operators[type(op)](self._value(operand)))
            case ast.BinOp(left=left, op=ast.Pow() as op, right=right) if type(op) in self.operators:
                return self._power(self._value(left), self._value(right))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in self.operators:
                return self._checked(self.operators[type(op)](self._value(left), self._value(right)))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if self.functions and name in _FUNCTIONS:
                return self._called(name, [self._value(each) for each in args])
            case _:
                raise CalculationError(f"not understood: {ast.unparse(node)}")

    def _checked(self, number: Fraction | float) -> Fraction:
        if isinstance(number, float) and not math.isfinite(number):
            raise CalculationError("too large")
        if isinstance(number, int) and number.bit_length() > self.most_digits * 4:
            raise CalculationError("too large")
        # The exact decimal digits of the expression, not the nearest binary number.
        value = Fraction(str(number)) if isinstance(number, float) else Fraction(number)
        if max(abs(value.numerator), value.denominator) >= 10**self.most_digits:
            raise CalculationError("too large")
        return value

    def _power(self, base: Fraction, exponent: Fraction) -> Fraction:
        if exponent == Fraction(1, 2):
            return self._root(base)
        if exponent.denominator != 1:
            raise CalculationError("an exponent must be a whole number, or 1/2")
        times = abs(exponent.numerator)
        if abs(base) == 1:
            times %= 2
        elif base == 0:
            times = min(times, 1)
        bits = max(abs(base.numerator).bit_length(), base.denominator.bit_length())
        if bits * times > 2 * _BITS_OF_DIGIT * self.most_digits:
            raise CalculationError("too large")
        return self._checked(base**times if exponent >= 0 else 1 / base**times)

    def _root(self, value: Fraction) -> Fraction:
        if value < 0:
            raise CalculationError("a negative number has no root")
        # The root of n/d is the root of n*d, divided by d.
        product = value.numerator * value.denominator
        root = math.isqrt(product)
        if root * root == product:
            return Fraction(root, value.denominator)
        self.rounded = True
        scale = 10 ** max(_ROUNDED_DIGITS - len(str(root)) + len(str(value.denominator)), 0)
        return self._checked(Fraction(math.isqrt(product * scale * scale), value.denominator * scale))

    def _called(self, name: str, given: list[Fraction]) -> Fraction:
        least, most, whole, compute = _FUNCTIONS[name]
        if not least <= len(given) <= most:
            raise CalculationError(f"not understood: {name} with {len(given)} values")
        if whole and any(value.denominator != 1 for value in given[whole - 1 :]):
            raise CalculationError(f"{name} is for whole numbers")
        if name == "sqrt":
            return self._root(given[0])
        return self._checked(compute(*given))


def _factorial(number: Fraction) -> int:
    if not 0 <= number <= _MOST_FACTORIAL:
        raise CalculationError(f"factorial is for numbers from 0 to {_MOST_FACTORIAL}")
    return math.factorial(int(number))


def _rounded(value: Fraction, decimals: Fraction = Fraction(0)) -> Fraction:
    if abs(decimals) > MOST_DIGITS:
        raise CalculationError(f"round is for at most {MOST_DIGITS} decimals")
    return Fraction(round(value, int(decimals)))


_MANY = 100
_FUNCTIONS: Mapping[str, tuple[int, int, int, Callable[..., Any]]] = {
    "abs": (1, 1, 0, abs),
    "ceil": (1, 1, 0, math.ceil),
    "factorial": (1, 1, 1, _factorial),
    "floor": (1, 1, 0, math.floor),
    "gcd": (1, _MANY, 1, lambda *given: math.gcd(*map(int, given))),
    "lcm": (1, _MANY, 1, lambda *given: math.lcm(*map(int, given))),
    "max": (1, _MANY, 0, lambda *given: max(given)),
    "min": (1, _MANY, 0, lambda *given: min(given)),
    "round": (1, 2, 2, _rounded),
    "sqrt": (1, 1, 0, None),  # type: ignore[dict-item]
}
"""For each function: the fewest and the most values, the first value that must be a whole number (0: none), and what it
computes."""


def written(value: Fraction) -> str:
    """The number as a decimal if it terminates, otherwise as a fraction with an approximation."""
    if value.denominator == 1:
        return str(value.numerator)
    rest = value.denominator
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    if rest == 1:
        decimals = next((n for n in range(1, _MOST_WRITTEN + 1) if 10**n % value.denominator == 0), 0)
        if decimals:
            return _decimal(value, decimals)
    return f"{value.numerator}/{value.denominator} (about {_about(value)})"


def _decimal(value: Fraction, decimals: int) -> str:
    digits = str(abs(round(value * 10**decimals))).rjust(decimals + 1, "0")
    return f"{'-' * (value < 0)}{digits[:-decimals]}.{digits[-decimals:]}"


def _about(value: Fraction) -> str:
    """An approximation with twelve digits, also for numbers beyond the range of floats (1e308)."""
    size = len(str(abs(value.numerator))) - len(str(value.denominator))
    if abs(size) < 300:
        return f"{float(value):.12g}"
    scaled = value / Fraction(10) ** size
    return f"{float(scaled):.12g}e{size:+d}"


def calculate(arguments: dict[str, Any], call: Call) -> str:
    expression = arguments.get("expression")
    if not isinstance(expression, str):
        raise ToolError("expression must be a text")
    evaluation = Evaluation()
    value = evaluation.value_of(expression)
    return f"about {_about(value)} (rounded)" if evaluation.rounded else written(value)


def main(arguments: list[str]) -> None:
    tool = Tool("calculate", DESCRIPTION, SCHEMA, calculate, effect="pure")
    Server("agentrl-calculator", "1", [tool]).serve()

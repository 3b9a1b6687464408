"""A mathematical answer as a sympy expression, read from LaTeX or plain text.

Invariants: the text is read by a grammar and never evaluated as a program; what cannot be read is an error and never a
guess. Computing with what was read may take for ever (`9^9^9^9`): that is for a process that can be ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import sympy  # type: ignore[import-untyped]

from agentrl.rollout.mathtext import tidy

LONGEST = 2_000
_DEEPEST = 60


class UnreadableError(ValueError):
    """The text is no mathematics that this grammar knows."""


Value: TypeAlias = Any
"""Of sympy, which declares no types."""

_TOKEN = re.compile(
    r"\s*(?:((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)|(\\[a-zA-Z]+|\\.)|([a-zA-Z]+)|(\*\*|<=|>=|!=|.))", re.DOTALL
)
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tan": sympy.tan,
    "cot": sympy.cot,
    "sec": sympy.sec,
    "csc": sympy.csc,
    "arcsin": sympy.asin,
    "arccos": sympy.acos,
    "arctan": sympy.atan,
    "asin": sympy.asin,
    "acos": sympy.acos,
    "atan": sympy.atan,
    "sinh": sympy.sinh,
    "cosh": sympy.cosh,
    "tanh": sympy.tanh,
    "ln": sympy.log,
    "log": sympy.log,
    "exp": sympy.exp,
    "sqrt": sympy.sqrt,
    "abs": sympy.Abs,
}
_CONSTANTS: dict[str, Value] = {
    "pi": sympy.pi,
    "π": sympy.pi,
    "e": sympy.E,
    "i": sympy.I,
    "infty": sympy.oo,
    "infinity": sympy.oo,
    "∞": sympy.oo,
    "emptyset": sympy.EmptySet,
}
_SIGNS = {
    "\\cdot": "*",
    "\\times": "*",
    "\\div": "/",
    "×": "*",
    "·": "*",
    "÷": "/",
    "−": "-",
    "**": "^",
    "\\le": "<=",
    "\\leq": "<=",
    "\\ge": ">=",
    "\\geq": ">=",
    "≤": "<=",
    "≥": ">=",
    "\\lbrace": "\\{",
    "\\rbrace": "\\}",
    "\\lvert": "|",
    "\\rvert": "|",
    "\\mid": "|",
    "\\dfrac": "\\frac",
    "\\tfrac": "\\frac",
    "√": "\\sqrt",
}
_GREEK = frozenset(
    ("alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "nu", "rho", "sigma", "tau", "phi", "omega")
)


def read(text: str) -> Value:
    """The expression, equation, set or tuple that a text is. Raises UnreadableError."""
    if len(text) > LONGEST:
        raise UnreadableError(f"it is longer than {LONGEST} characters")
    return _Reader(_tokens(tidy(text))).whole()


def same(left: Value, right: Value) -> bool:
    """Whether both are equal for all values of their variables. `x = 5` is the same as `5`."""
    if isinstance(left, sympy.Rel) != isinstance(right, sympy.Rel):
        left, right = _assigned(left), _assigned(right)
    if isinstance(left, sympy.Tuple) and isinstance(right, sympy.Tuple):
        return len(left.args) == len(right.args) and all(map(same, left.args, right.args))
    if isinstance(left, sympy.FiniteSet) and isinstance(right, sympy.FiniteSet):
        return _same_members(list(left.args), list(right.args))
    if isinstance(left, sympy.Rel) and isinstance(right, sympy.Rel):
        return _same_relation(left, right)
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        return left == right or _vanishes(left - right)
    return bool(left == right)


def _assigned(value: Value) -> Value:
    return value.rhs if isinstance(value, sympy.Eq) and isinstance(value.lhs, sympy.Symbol) else value


def _same_members(left: list[Value], right: list[Value]) -> bool:
    """Equality is transitive, so each member may take the first partner that is found."""
    for one in left:
        partner = next((index for index, other in enumerate(right) if same(one, other)), None)
        if partner is None:
            return False
        del right[partner]
    return not right


def _same_relation(left: sympy.Rel, right: sympy.Rel) -> bool:
    if left.func != right.func:
        right = right.reversed
    if left.func != right.func:
        return False
    sides = (left.lhs - left.rhs, right.lhs - right.rhs)
    if isinstance(left, sympy.Eq):
        ratio = sympy.simplify(sides[0] / sides[1]) if sides[1] != 0 else sympy.nan
        return bool(ratio.is_number and ratio.is_finite and ratio != 0)
    return _vanishes(sides[0] - sides[1])


def _vanishes(difference: sympy.Expr) -> bool:
    if difference.is_number and (near := _near_zero(difference)) is not None:
        return near
    simpler = sympy.simplify(difference)
    return bool(simpler == 0 or simpler.equals(0))


def _near_zero(value: sympy.Expr) -> bool | None:
    """False if it is surely not zero; None if digits cannot tell."""
    digits = value.evalf(30)
    if digits.is_comparable is False and not digits.is_finite:
        return None
    return False if abs(digits) > sympy.Float("1e-20") else None


# ---- the grammar ----


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    for number_, command, word, sign in _TOKEN.findall(text):
        token = number_ or command or sign
        if word:
            found += _split_word(word)
        elif token.strip():
            found.append(_SIGNS.get(token, token))
    return found


def _split_word(word: str) -> list[str]:
    """A known name, or a product of variables: `xy` is x times y."""
    lower = word.lower()
    return [word] if lower in _FUNCTIONS or lower in _CONSTANTS or word in _GREEK else list(word)


class _Reader:
    """Recursive descent: relation < sum < product < unary < power < atom."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._bars = 0

    def whole(self) -> Value:
        found = self._list()
        if self._peek():
            raise UnreadableError(f"{self._peek()!r} is not expected here")
        return found

    def _list(self) -> Value:
        items = [self._relation()]
        while self._take(","):
            items.append(self._relation())
        return items[0] if len(items) == 1 else sympy.Tuple(*items)

    def _relation(self) -> Value:
        left = self._sum()
        kinds = {"=": sympy.Eq, "<": sympy.Lt, ">": sympy.Gt, "<=": sympy.Le, ">=": sympy.Ge}
        sign = self._peek()
        if sign not in kinds:
            return left
        self._at += 1
        right = self._sum()
        return kinds[sign](left, right, evaluate=False)

    def _sum(self) -> Value:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnreadableError(f"it is nested more than {_DEEPEST} deep")
        total = self._product()
        while (sign := self._peek()) in ("+", "-"):
            self._at += 1
            right = self._product()
            total = _expr(total) + (_expr(right) if sign == "+" else -_expr(right))
        self._depth -= 1
        return total

    def _product(self) -> Value:
        left = self._unary()
        while True:
            if self._take("*"):
                left = _expr(left) * _expr(self._unary())
            elif self._take("/"):
                left = _expr(left) / _expr(self._unary())
            elif self._begins_factor():
                left = _expr(left) * _expr(self._power())
            else:
                return left

    def _unary(self) -> Value:
        negative = False
        while (sign := self._peek()) in ("+", "-"):
            self._at += 1
            negative ^= sign == "-"
        value = self._power()
        return -_expr(value) if negative else value

    def _power(self) -> Value:
        base = self._postfix(self._atom())
        if not self._take("^"):
            return base
        self._depth += 1
        exponent = self._group() if self._peek() == "{" else self._signed_power()
        self._depth -= 1
        return _expr(base) ** _expr(exponent)

    def _signed_power(self) -> Value:
        if self._depth > _DEEPEST:
            raise UnreadableError(f"it is nested more than {_DEEPEST} deep")
        return -_expr(self._power()) if self._take("-") else self._power()

    def _postfix(self, value: Value) -> Value:
        while self._take("!"):
            value = sympy.factorial(_expr(value))
        return value

    def _atom(self) -> Value:
        token = self._next()
        if token[0].isdigit() or token[0] == ".":
            return sympy.Rational(token)
        if token in ("(", "["):
            return self._bracket()
        if token == "{":
            self._at -= 1
            return self._group()
        if token == "\\{":
            return self._set()
        if token == "|":
            return self._absolute()
        if token == "\\frac":
            return _expr(self._argument()) / _expr(self._argument())
        if token == "\\sqrt":
            return self._root()
        return self._named(token.removeprefix("\\"))

    def _named(self, name: str) -> Value:
        lower = name.lower()
        if lower in _FUNCTIONS:
            return self._function(lower)
        if lower in _CONSTANTS:
            return _CONSTANTS[lower]
        if (len(name) == 1 and name.isalpha()) or name in _GREEK:
            return sympy.Symbol(f"{name}_{self._next()}" if self._take("_") else name)
        raise UnreadableError(f"{name!r} is not known")

    def _function(self, name: str) -> Value:
        base = self._argument() if name == "log" and self._take("_") else None
        exponent = self._argument() if self._take("^") else None
        value = _expr(self._argument() if self._peek() in ("(", "{", "[", "|") else self._power())
        made = _FUNCTIONS[name](value) if base is None else sympy.log(value, _expr(base))
        return made if exponent is None else _expr(made) ** _expr(exponent)

    def _root(self) -> Value:
        if not self._take("["):
            return sympy.sqrt(_expr(self._argument()))
        degree = self._sum()
        self._expect("]")
        return _expr(self._argument()) ** (1 / _expr(degree))

    def _argument(self) -> Value:
        """A group, or a single token as in `\\frac12`."""
        token = self._peek()
        if token == "{":
            return self._group()
        if token[:1].isdigit() and len(token) > 1 and token.isdecimal():
            self._tokens[self._at : self._at + 1] = list(token)
        return self._atom()

    def _group(self) -> Value:
        self._expect("{")
        value = self._sum()
        self._expect("}")
        return value

    def _bracket(self) -> Value:
        items = [self._relation()]
        while self._take(","):
            items.append(self._relation())
        if self._peek() not in (")", "]"):
            raise UnreadableError("a bracket is not closed")
        self._at += 1
        return items[0] if len(items) == 1 else sympy.Tuple(*items)

    def _set(self) -> Value:
        items = [self._relation()]
        while self._take(","):
            items.append(self._relation())
        self._expect("\\}")
        return sympy.FiniteSet(*items)

    def _absolute(self) -> Value:
        self._bars += 1
        value = sympy.Abs(_expr(self._sum()))
        self._expect("|")
        self._bars -= 1
        return value

    def _begins_factor(self) -> bool:
        token = self._peek()
        if token == "|":
            return not self._bars
        return (
            bool(token)
            and (token[0].isalnum() or token in ("(", "[", "{", "\\{") or token[0] in "\\π∞.")
            and (token not in ("\\}", "\\|"))
        )

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise UnreadableError("it ends too early")
        self._at += 1
        return token

    def _take(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise UnreadableError(f"{token!r} is missing")


def _expr(value: Value) -> sympy.Expr:
    if not isinstance(value, sympy.Expr):
        raise UnreadableError("one cannot calculate with a set, a tuple or a relation")
    return value

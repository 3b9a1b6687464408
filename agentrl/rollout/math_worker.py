"""A process that decides whether mathematical answers are equal: `python -m agentrl.rollout.math_worker`.

It exists because comparing may take forever (`9^9^9^9`), and only a process can be ended. math-verify does the
mathematics.

Invariants:
- one question per line in, one verdict per line out, in order;
- text is parsed by a grammar: the only text that sympy may evaluate as Python is a single number;
- a question gets a bounded amount of processor time and memory, so a verdict does not depend on how busy the host is;
- the process ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import resource
import signal
import sys
from collections.abc import Iterator
from typing import Any, TypeAlias

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify
from sympy.parsing import sympy_parser

UNREADABLE, EQUAL, DIFFERENT = "unreadable", "equal", "different"
MEMORY_BYTES = 2 << 30
MAX_LENGTH = 2_000
MAX_NESTING = 60
Value: TypeAlias = Any
"""A sympy value; sympy declares no types."""

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_SIGNS = {
    "**": "^",
    "<=": "\\leq ",
    ">=": "\\geq ",
    "√": "\\sqrt ",
    "·": "*",
    "×": "*",
    "÷": "/",
    "−": "-",
    "≤": "\\leq ",
    "≥": "\\geq ",
    "π": "\\pi ",
}
_SIGNS |= {"∞": "\\infty ", "infinity": "\\infty ", "asin": "\\arcsin ", "acos": "\\arccos ", "atan": "\\arctan "}
_SIGN = re.compile("|".join(re.escape(sign) if not sign.isalpha() else rf"\b{sign}\b" for sign in _SIGNS))
_NAMES = (
    *("sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "sin", "cos", "tan", "cot", "sec", "csc", "ln", "log"),
    *("exp", "pi", "infty", "emptyset", "alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "nu"),
    *("rho", "sigma", "tau", "phi", "omega"),
)
_NAME = re.compile(rf"(?<![\\a-zA-Z])({'|'.join(_NAMES)})(?![a-zA-Z])")
"""Functions and constants that models also write without a backslash."""
_ABSOLUTE = re.compile(r"(?<![\\a-zA-Z])abs\(([^()]*)\)")
_ROOT = re.compile(r"(?<![\\a-zA-Z])sqrt\(([^()]*)\)")
_EXPONENT = re.compile(r"(?<=\d)[eE]([+-]?\d{1,3})(?!\d)")
_NUMBER = re.compile(r"-?(?:Integer|Float) ?\('?[\d.eE+-]+'? ?\)")
"""The Python code that sympy makes from a number."""


class UnreadableError(ValueError):
    """The text is not mathematics that the grammar knows."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sampler that started this process ends it
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of the alarms that it does not need here
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        _limit_processor_time(question["processor_s"])
        print(json.dumps({"verdict": verdict(question["left"], question["right"])}), flush=True)


def verdict(answer: str, truth: str) -> str:
    """Whether two answers are equal. An answer that is too deep or too large for this process counts as unreadable."""
    try:
        # The limits of this process bound the time, so math-verify needs no alarms of its own.
        same = verify(read(truth), read(answer), float_rounding=15, timeout_seconds=None)
        return EQUAL if same else DIFFERENT
    except Exception as error:  # noqa: BLE001 - the boundary: sympy raises any kind of error
        sentence = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        print(f"not decided: {sentence}", file=sys.stderr, flush=True)
        return UNREADABLE


def read(text: str) -> Value:
    """The expression, equation, set or tuple that a text stands for. Raises an error if there is none."""
    if not text.strip() or len(text) > MAX_LENGTH or _nesting(text) > MAX_NESTING:
        raise UnreadableError("The text is empty, too long or nested too deeply.")
    with _only_numbers_evaluated():
        value = latex2sympy(_latex(text), normalization_config=_NORMALIZATION, conversion_config=_CONVERSION)
    if not isinstance(value, sympy.Basic):
        return value
    # Decimals are exact, so that 0.333333 is not 1/3; `i` is the imaginary unit.
    exact = value.replace(lambda part: part.is_Float, lambda part: sympy.Rational(str(part)))
    return exact.subs(sympy.Symbol("i"), sympy.I)


def _latex(text: str) -> str:
    text = _SIGN.sub(lambda match: _SIGNS[match[0]], text)
    text = _EXPONENT.sub(r"\\times 10^{\1}", _ROOT.sub(r"\\sqrt{\1}", _ABSOLUTE.sub(r"|\1|", text)))
    return _NAME.sub(r"\\\1 ", text)


def _nesting(text: str) -> int:
    depth = deepest = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        deepest = max(deepest, depth)
    return deepest


@contextlib.contextmanager
def _only_numbers_evaluated() -> Iterator[None]:
    """sympy evaluates strings as Python, and the grammar hands it numbers as strings. Anything else is refused."""
    original = sympy_parser.eval_expr

    def evaluate(code: str, *names: Any) -> Value:
        if not _NUMBER.fullmatch(code):
            raise UnreadableError(f"{code[:80]!r} is not a number.")
        return original(code, *names)

    sympy_parser.eval_expr = evaluate
    try:
        yield
    finally:
        sympy_parser.eval_expr = original


def _limit_processor_time(seconds: int) -> None:
    """Counts from now. The limit is in whole seconds of the whole process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()

"""Compares two results of a tool call for people: JSON by path, text by line, both reduced to what changed.

Invariants:
- Results that are equal have no changes.
- The number of changes and the length of each are limited; what is left out is counted, up to MOST_COUNTED.
- Only changes that are listed are written out, and no text makes a comparison slow.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from agentrl.policies.replay_verdicts import CallResult, json_of

MOST_CHANGES = 40
MOST_COUNTED = 10_000
"""Changes that are counted beside those that are listed."""
MOST_JSON_CHARS = 1 << 20
"""Longer results are compared as text, because values take many times the memory of their text."""
MOST_CHARS = 400
MOST_NAME_CHARS = 80
"""Characters of a name in a path."""
MOST_LINES = 2_000
"""Lines that are compared one by one."""
MOST_EQUAL_PAIRS = 50_000
"""Pairs of equal lines. The comparison looks at all of them for each difference, so lines that repeat make it slow."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `then` or `now` is None if one of the results has nothing there."""

    path: str
    """`$.items[2].price` in JSON, `line 7` in text, `status`."""
    then: str | None = None
    now: str | None = None


@dataclass(frozen=True, slots=True)
class Diff:
    changes: tuple[Change, ...] = ()
    left_out: int = 0
    """Changes that are not listed."""


Found = Callable[[], Change]
"""A change that is written out when it is listed."""


def compare(then: CallResult, now: CallResult) -> Diff:
    changes = _changes(then, now)
    listed = tuple(found() for found in islice(changes, MOST_CHANGES))
    return Diff(listed, sum(1 for _ in islice(changes, MOST_COUNTED)))


def _changes(then: CallResult, now: CallResult) -> Iterator[Found]:
    if then.status != now.status:
        yield partial(Change, "status", then.status, now.status)
    short = max(len(then.text), len(now.text)) <= MOST_JSON_CHARS
    before, after = (json_of(then.text), json_of(now.text)) if short else (None, None)
    if before is not None and after is not None:
        yield from _of_values("$", before, after)
    else:
        yield from _of_lines(then.text, now.text)


_NOTHING = object()


def _of_values(path: str, then: object, now: object) -> Iterator[Found]:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*then, *now)):
            short = _cut(key, MOST_NAME_CHARS)
            name = f".{short}" if short.isidentifier() else f"[{json.dumps(short, ensure_ascii=False)}]"
            yield from _of_values(f"{path}{name}", then.get(key, _NOTHING), now.get(key, _NOTHING))
    elif isinstance(then, list) and isinstance(now, list):
        for index in range(max(len(then), len(now))):
            before = then[index] if index < len(then) else _NOTHING
            after = now[index] if index < len(now) else _NOTHING
            yield from _of_values(f"{path}[{index}]", before, after)
    elif then is _NOTHING or now is _NOTHING or then != now or isinstance(then, bool) != isinstance(now, bool):
        yield partial(_written, path, then, now)


def _written(path: str, then: object, now: object) -> Change:
    return Change(_cut(path), _shown(then), _shown(now))


def _shown(value: object) -> str | None:
    return None if value is _NOTHING else _cut(json.dumps(value, ensure_ascii=False))


def _of_lines(then: str, now: str) -> Iterator[Found]:
    before, after = _lines(then), _lines(now)
    first = 0
    while first < min(len(before), len(after)) and before[first] == after[first]:
        first += 1
    last = 0
    while last < min(len(before), len(after)) - first and before[-1 - last] == after[-1 - last]:
        last += 1
    before, after = before[first : len(before) - last], after[first : len(after) - last]
    if max(len(before), len(after)) > MOST_LINES or _equal_pairs(before, after) > MOST_EQUAL_PAIRS:
        opcodes = [("replace", 0, len(before), 0, len(after))]
    else:
        opcodes = list(difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes())
    for kind, i1, i2, j1, j2 in opcodes:
        if kind != "equal":
            line = first + (i1 if i2 > i1 else j1) + 1
            yield partial(Change, f"line {line}", _joined(before[i1:i2]), _joined(after[j1:j2]))


def _equal_pairs(before: list[str], after: list[str]) -> int:
    times = Counter(after)
    return sum(times[line] for line in before)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _joined(lines: list[str]) -> str | None:
    return _cut("\n".join(lines)) if lines else None


def _cut(text: str, most_chars: int = MOST_CHARS) -> str:
    return text if len(text) <= most_chars else f"{text[: most_chars - 1]}…"

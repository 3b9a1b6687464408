"""Whether an episode repeats itself. Pure.

Invariants: what is repeated is the same text, or the same call with the same arguments, in turns that follow each
other; a turn that does something else begins a new count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def equal_texts(texts: Sequence[str]) -> int:
    """How many turns at the end have the same text."""
    return _at_the_end([" ".join(text.split()) for text in texts])


def equal_calls(turns: Sequence[Sequence[tuple[str, Mapping[str, Any]]]]) -> int:
    """How many turns at the end make exactly the same calls; 0 if the last one makes none."""
    made = [json.dumps(sorted(map(_plain, calls)), sort_keys=True, default=str) if calls else "" for calls in turns]
    return _at_the_end(made) if made and made[-1] else 0


def _plain(call: tuple[str, Mapping[str, Any]]) -> tuple[str, str]:
    return call[0], json.dumps(dict(call[1]), sort_keys=True, default=str)


def _at_the_end(found: Sequence[str]) -> int:
    count = 0
    for each in reversed(found):
        if each != found[-1]:
            break
        count += 1
    return count

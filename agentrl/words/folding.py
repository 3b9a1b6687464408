"""What says the same again and again is told once, with how often. Pure.

Invariants: of lines, one is told as it was, where the last of them stood; those that belong to an indented block, such
as a traceback, are evidence of their own and stay as they are. Of messages, what differs is told as `…`, and words that
are the same in all of them are never left out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|<[^<>]{1,200}>")
_NUMBER = re.compile(r"(?:0x|U\+)[0-9a-fA-F]+|\b[0-9a-fA-F]{8}[0-9a-fA-F-]*\b|\d+(?:[.:,]\d+)*")


OPEN = "…"
"""Stands for what differs."""
_NAMES = 3
"""So many different words in one place are names; two may be two things that went wrong."""
_LEAST_WORDS = 2
"""That messages of one kind have in common."""
_MOST_WORDS = 60


def kind_of(text: str) -> str:
    """A text without what differs from one time to the next: numbers, quoted words, addresses, room between words."""
    return _NUMBER.sub("#", _QUOTED.sub("'…'", " ".join(text.split())))


def folded(lines: Sequence[str]) -> list[str]:
    """A program's last lines, the routine among them told once: `×13 call 7 has failed`."""
    kinds = [None if _is_of_a_block(lines, place) else kind_of(line) for place, line in enumerate(lines)]
    times = Counter(kind for kind in kinds if kind)
    last = {kind: place for place, kind in enumerate(kinds) if kind}
    return [
        line if not kind or times[kind] == 1 else f"×{times[kind]} {line}"
        for place, (kind, line) in enumerate(zip(kinds, lines, strict=True))
        if not kind or last[kind] == place
    ]


def _is_of_a_block(lines: Sequence[str], place: int) -> bool:
    return any(line[:1].isspace() for line in lines[max(0, place - 1) : place + 2])


def kinds_of(messages: Iterable[str]) -> Mapping[str, str]:
    """For messages of `kind_of`: their kind once names are left out as well. Such as differ in one word only are of one
    kind if there are several, and such as differ in what stands behind a colon: `no such item: …`."""
    names = list(dict.fromkeys(messages))
    alike: dict[str, list[str]] = defaultdict(list)
    for message in names:
        for kind in _wider(message):
            alike[kind].append(message)
    found = {message: message for message in names}
    # The kind that most are of is taken first; whoever has one is not asked again.
    several = ((kind, members) for kind, members in alike.items() if len(members) > 1)
    for kind, members in sorted(several, key=lambda one: (-len(one[1]), one[0])):
        left = [message for message in members if found[message] == message]
        if len(left) >= _least(kind, left):
            found |= dict.fromkeys(left, kind)
    return found


def _wider(message: str) -> Iterator[str]:
    words = message.split(" ")
    if len(words) <= _MOST_WORDS:
        real = [_is_word(word) for word in words]
        many, start = sum(real), 0
        for word, is_real in zip(words, real, strict=True):
            if many - is_real >= _LEAST_WORDS:
                yield f"{message[:start]}{OPEN}{message[start + len(word) :]}"
            start += len(word) + 1
    head, colon, _ = message.rpartition(": ")
    # One word and a colon is the name of an error, and what went wrong stands behind it.
    have_words = colon and sum(_is_word(word) for word in head.split(" ")) >= _LEAST_WORDS
    if have_words and (kind := f"{head}: {OPEN}") != " ".join([*words[:-1], OPEN]):
        yield kind


def _is_word(text: str) -> bool:
    return any(sign.isalpha() for sign in text)


def _least(kind: str, members: Sequence[str]) -> int:
    """A single word behind a colon is a name."""
    is_name = kind.endswith(f": {OPEN}") and all(" " not in each.removeprefix(kind[:-1]) for each in members)
    return 2 if is_name else _NAMES

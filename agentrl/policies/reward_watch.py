"""Signs that a policy earns reward in a way that is not meant: what is measured over the newest scored records. Pure.

Invariants:
- A sign is measured, with counts; whether it is an alarm follows from a limit.
- Length is compared with the score inside groups only, because hard tasks may be long for a good reason.
- Too few records give no reading.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

LEAST = 64
"""Fewer records are too little evidence."""
GROWTH = 1.2
"""A higher score for longer answers is a sign only if answers also grew by this factor."""
SAME = 0.8
"""Two answers with at least this share of common phrases are nearly the same."""
LEAST_WORDS = 12
"""Shorter answers, such as a number, yes or no, are often equal for a good reason."""
PHRASE = 3
"""Words of a phrase."""
SKETCH = 64
"""Phrases by which an answer is compared: those with the smallest hashes, so that equal texts have equal sketches."""
COMPARED_BY = 8
AGREE = 0.75
"""The share of equal votes below which a judge contradicts itself."""
AGREEMENT = "agreement"
"""The part of a score, or its last word after a slash, with the share of equal votes."""
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Watched:
    """What the signs are read from. Records are in the order of their ends, oldest first."""

    group: str
    task: str
    score: float
    tokens: int
    parts: Mapping[str, float]
    sketch: frozenset[int] | None = None
    """The sketch of the last text; None if the text is short or not stored."""


# ---- reward against length ----


@dataclass(frozen=True, slots=True)
class Length:
    correlation: float
    """The correlation of the ranks of length and score inside groups, from -1 to 1."""
    growth: float
    """The mean length of the newer half against that of the older half."""
    records: int
    """In groups with different scores."""


def by_length(records: Sequence[Watched]) -> Length | None:
    of_groups = [group for group in _grouped(records) if len({one.score for one in group}) > 1]
    both: list[tuple[float, float]] = []
    for group in of_groups:
        both += zip(_ranks([one.tokens for one in group]), _ranks([one.score for one in group]), strict=True)
    if len(both) < LEAST:
        return None
    spread = math.sqrt(sum(length**2 for length, _ in both) * sum(score**2 for _, score in both))
    older, newer = _halves([float(record.tokens) for record in records])
    growth = fmean(newer) / max(1.0, fmean(older))
    return Length(sum(length * score for length, score in both) / spread if spread else 0.0, growth, len(both))


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks around 0; equal values share the mean of their ranks."""
    places: dict[float, list[int]] = defaultdict(list)
    for place, value in enumerate(sorted(values)):
        places[value].append(place)
    middle = (len(values) - 1) / 2
    return [fmean(places[value]) - middle for value in values]


# ---- answers that repeat ----


@dataclass(frozen=True, slots=True)
class Repeats:
    within: float
    """The share of answers with nearly the same answer in their own group."""
    within_score: float
    """Their mean score; 0 if there are none."""
    across: float
    """The share of answers with nearly the same answer to another task."""
    gain: float
    """How much higher answers score that were given to several tasks; 0 if there are no other answers."""
    records: int


def sketch_of(text: str) -> frozenset[int] | None:
    """The sketch by which texts are compared; case, numbers and punctuation make no difference."""
    words = _WORD.findall(_DIGITS.sub("0", text.lower()))
    if len(words) < LEAST_WORDS:
        return None
    phrases = {" ".join(words[at : at + PHRASE]) for at in range(len(words) - PHRASE + 1)}
    return frozenset(sorted(zlib.crc32(phrase.encode()) for phrase in phrases)[:SKETCH])


def repeats(records: Sequence[Watched]) -> Repeats | None:
    known = [record for record in records if record.sketch is not None]
    if len(known) < LEAST:
        return None
    alike: dict[frozenset[int], list[Watched]] = defaultdict(list)
    for one in known:
        alike[one.sketch or frozenset()].append(one)
    within, across, apart = list[float](), list[float](), list[float]()
    for sketch, near in _nearly_the_same(list(alike)):
        others = [one for other in near for one in alike[other]]
        of_groups = Counter(one.group for one in others)
        several_tasks = len({one.task for one in others}) > 1
        within += [one.score for one in alike[sketch] if of_groups[one.group] > 1]
        (across if several_tasks else apart).extend(one.score for one in alike[sketch])
    gain = fmean(across) - fmean(apart) if across and apart else 0.0
    within_score = fmean(within) if within else 0.0
    return Repeats(len(within) / len(known), within_score, len(across) / len(known), gain, len(known))


def _nearly_the_same(sketches: Sequence[frozenset[int]]) -> Iterator[tuple[frozenset[int], list[frozenset[int]]]]:
    """Each text with all texts that share most of its phrases, including itself. Only texts that share one of their
    smallest phrases are compared; texts with most phrases in common nearly always do."""
    with_phrase: dict[int, list[int]] = defaultdict(list)
    near: list[set[int]] = [{place} for place in range(len(sketches))]
    for place, sketch in enumerate(sketches):
        smallest = sorted(sketch)[:COMPARED_BY]
        for other in {other for phrase in smallest for other in with_phrase[phrase]}:
            if _share(sketch, sketches[other]) >= SAME:
                near[place].add(other)
                near[other].add(place)
        for phrase in smallest:
            with_phrase[phrase].append(place)
    for place, sketch in enumerate(sketches):
        yield sketch, [sketches[other] for other in near[place]]


def _share(one: frozenset[int], other: frozenset[int]) -> float:
    """The estimated share of common phrases: among the smallest of both together."""
    smallest = sorted(one | other)[:SKETCH]
    return sum(phrase in one and phrase in other for phrase in smallest) / len(smallest)


# ---- votes of judges ----


@dataclass(frozen=True, slots=True)
class Votes:
    split: float
    """The share of records on which fewer than three of four votes agree."""
    judge: str
    """The part of the score with the most such records; empty if the judge is the only scorer."""
    records: int


def votes(records: Sequence[Watched]) -> Votes | None:
    """The votes of the judge that contradicts itself most."""
    agreements: dict[str, list[float]] = defaultdict(list)
    for one in records:
        for name, value in one.parts.items():
            judge, _, last = name.rpartition("/")
            if last == AGREEMENT:
                agreements[judge].append(value)
    found = [
        Votes(sum(share < AGREE for share in shares) / len(shares), judge, len(shares))
        for judge, shares in agreements.items()
        if len(shares) >= LEAST
    ]
    return max(found, key=lambda one: one.split, default=None)


# ---- a scorer that watches ----


@dataclass(frozen=True, slots=True)
class Divergence:
    """Compares the score with the one of a watcher (a scorer that does not train) on the same records: the older half
    and the newer half."""

    watcher: str
    score: tuple[float, float]
    watched: tuple[float, float]
    errors: float
    """The standard errors by which the score rose or the watcher fell, whichever is less; 0 unless both did."""
    records: int


def divergence(records: Sequence[Watched], watcher: str) -> Divergence | None:
    both = [(record.score, record.parts[watcher]) for record in records if watcher in record.parts]
    if len(both) < LEAST:
        return None
    old_scores, new_scores = _halves([score for score, _ in both])
    old_watched, new_watched = _halves([value for _, value in both])
    return Divergence(
        watcher,
        (fmean(old_scores), fmean(new_scores)),
        (fmean(old_watched), fmean(new_watched)),
        max(0.0, min(_rise(old_scores, new_scores), -_rise(old_watched, new_watched))),
        len(both),
    )


def _rise(older: Sequence[float], newer: Sequence[float]) -> float:
    """The difference of the means in standard errors."""
    error = math.sqrt(pvariance(older) / len(older) + pvariance(newer) / len(newer))
    difference = fmean(newer) - fmean(older)
    return difference / error if error > 0 else math.copysign(math.inf, difference) if difference else 0.0


# ---- helpers ----


def _halves(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    middle = len(values) // 2
    return values[:middle], values[middle:]


def _grouped(records: Iterable[Watched]) -> list[list[Watched]]:
    groups: dict[str, list[Watched]] = defaultdict(list)
    for record in records:
        groups[record.group].append(record)
    return list(groups.values())

"""The version of each token, as runs of (version, count): in documents, in batches and in engine answers.

Invariants: counts are positive and add up to the number of tokens; neighbors differ in their version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agentrl.tokens.spans import Span

Runs = Sequence[Sequence[int]]
"""[[version, count], ...] as stored."""


def joined(*parts: Runs) -> list[tuple[int, int]]:
    """Concatenates runs; neighbors of one version become one."""
    whole: list[tuple[int, int]] = []
    for version, count in (run for part in parts for run in part):
        if count < 0:
            raise ValueError(f"version {version} generated {count} tokens")
        if count == 0:
            continue
        if whole and whole[-1][0] == version:
            count += whole.pop()[1]
        whole.append((version, count))
    return whole


def total(runs: Runs) -> int:
    return sum([count for _, count in runs])


def cut(runs: Runs, start: int, length: int) -> list[tuple[int, int]]:
    """The runs of `length` tokens from `start`."""
    whole = total(runs)
    if start < 0 or length < 0 or start + length > whole:
        raise ValueError(f"tokens {start} to {start + length} are not all among the {whole} that have versions")
    if length == whole:
        return joined(runs)
    part: list[tuple[int, int]] = []
    at = 0
    for version, count in runs:
        here = min(at + count, start + length) - max(at, start)
        if here > 0:
            part.append((version, here))
        at += count
    return joined(part)


def trained(spans: Sequence[Span], indices: Iterable[int], runs_of_call: Mapping[int, Runs]) -> dict[int, int]:
    """How many tokens of these (model) spans each version generated."""
    counts: dict[int, int] = {}
    for index in indices:
        span = spans[index]
        for version, count in cut(runs_of_call[span.call], span.start, span.length):
            counts[version] = counts.get(version, 0) + count
    return counts

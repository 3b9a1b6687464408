"""Chooses the engine for a call. Pure: no clock, no network; randomness comes from a generator that is passed in.

Invariants:
- only an engine that serves a version, has reported recently and was not found dead is chosen;
- an engine is excluded as soon as a call finds it dead, and comes back only with a newer report;
- calls of a conversation stay on one engine unless it is clearly fuller than the others;
- ties are broken at random, so that callers do not all choose the same engine.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Collection, Iterable

import msgspec

SILENT_AFTER_S = 10.0
"""Engines report every two seconds."""
MAX_CONVERSATIONS = 20_000
STAY_WITHIN = 0.5
"""A conversation leaves its engine if the engine is fuller than the emptiest one by this share of its slots."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as the store describes it."""

    name: str
    """Its incarnation: a restarted engine is another candidate with an empty cache."""
    url: str
    serving: bool
    version: int | None
    slots: int = 1
    running: int = 0
    """The running calls of all callers, by its last report."""
    seen_at: float
    """Time of the last report, on the clock of `now`."""
    versions_loaded: tuple[int, ...] = ()


class Router:
    """The view of one caller: its calls under way and the engines that it found dead."""

    def __init__(
        self, chance: random.Random, *, silent_after_s: float = SILENT_AFTER_S, stay_within: float = STAY_WITHIN
    ) -> None:
        self._chance = chance
        self._silent_after_s = silent_after_s
        self._stay_within = stay_within
        self._mine: dict[str, int] = {}
        self._dead: dict[str, float] = {}
        self._homes: OrderedDict[str, str] = OrderedDict()

    def choose(
        self,
        engines: Iterable[Candidate],
        affinity: str,
        now: float,
        *,
        version: int | None = None,
        oldest: int | None = None,
        avoid: Collection[str] = (),
    ) -> Candidate | None:
        """The engine for a call of the conversation `affinity`; None if there is no engine now.

        `version` requires exactly these weights, `oldest` requires these or newer ones. Engines to `avoid` are chosen
        only if there is no other.
        """
        able = [one for one in engines if self._is_able(one, now, version, oldest)]
        if not able:
            return None
        able = [one for one in able if one.name not in avoid] or able
        least = min(self._fullness(one) for one in able)
        home = next((one for one in able if affinity and one.name == self._homes.get(affinity)), None)
        if home is None or self._fullness(home) > least + self._stay_within:
            home = self._chance.choice([one for one in able if self._fullness(one) == least])
        if affinity:
            self._remember(affinity, home.name)
        return home

    def sent(self, name: str) -> None:
        """Counts a call that was sent to this engine."""
        self._mine[name] = self._mine.get(name, 0) + 1

    def answered(self, name: str) -> None:
        """Counts a call to this engine that ended in any way."""
        left = self._mine.get(name, 0) - 1
        if left > 0:
            self._mine[name] = left
        else:
            self._mine.pop(name, None)

    def found_dead(self, name: str, now: float) -> None:
        """Excludes the engine until it reports after `now`."""
        self._dead[name] = now
        for old in [old for old, at in self._dead.items() if now - at > 3600.0]:
            del self._dead[old]

    def forget(self, affinity: str) -> None:
        """Forgets a conversation that is over."""
        self._homes.pop(affinity, None)

    def _is_able(self, one: Candidate, now: float, version: int | None, oldest: int | None) -> bool:
        if not one.serving or now - one.seen_at > self._silent_after_s:
            return False
        if one.seen_at <= self._dead.get(one.name, float("-inf")):
            return False
        if version is not None:
            return version == one.version or version in one.versions_loaded
        # An engine that only evaluates serves only the versions that it holds.
        return one.version is not None and (oldest is None or one.version >= oldest)

    def _fullness(self, one: Candidate) -> float:
        """Share of its slots that are taken; calls that this caller sent since the last report count immediately."""
        return max(one.running, self._mine.get(one.name, 0)) / max(1, one.slots)

    def _remember(self, affinity: str, name: str) -> None:
        self._homes[affinity] = name
        self._homes.move_to_end(affinity)
        while len(self._homes) > MAX_CONVERSATIONS:
            self._homes.popitem(last=False)

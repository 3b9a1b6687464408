"""The age of a token: the length of the path in the tree of versions from its version to the version that a step starts
from.

Invariants: a number is never used twice and is greater than that of its parent; an age is 0 only for tokens of the
version that the step starts from; the age of an unpublished version is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentrl.errors import UnknownNameError


class UnknownVersionError(UnknownNameError):
    """A version is not in the tree, or two have no common ancestor."""


class VersionTree:
    """Publications and their parents. After a resume the parent may be much older than the version before."""

    def __init__(self, parents: Mapping[int, int | None] | None = None) -> None:
        self._parent: dict[int, int | None] = {}
        for version in sorted(parents or {}):
            self.add(version, (parents or {})[version])

    def add(self, version: int, parent: int | None) -> None:
        """Adds a publication; adding it again changes nothing."""
        if version in self._parent:
            if self._parent[version] != parent:
                raise ValueError(f"version {version} has parent {self._parent[version]}, not {parent}")
            return
        if parent is not None and parent >= version:
            raise ValueError(f"version {version} cannot come from {parent}: numbers only grow")
        if parent is not None and parent not in self._parent:
            raise UnknownVersionError(f"version {version} comes from {parent}, which is not a publication of this run.")
        self._parent[version] = parent

    def __contains__(self, version: int) -> bool:
        return version in self._parent

    def age(self, version: int, base: int) -> int:
        """Publications from `version` up to the common ancestor plus from there down to `base`."""
        for known in (version, base):
            if known not in self._parent:
                raise UnknownVersionError(f"version {known} is not a publication of this run.")
        steps, left, right = 0, version, base
        while left != right:
            # Numbers grow from parent to child, so the greater one cannot be an ancestor of the other.
            parent = self._parent[max(left, right)]
            if parent is None:
                raise UnknownVersionError(f"versions {version} and {base} have no common ancestor.")
            left, right = min(left, right), parent
            steps += 1
        return steps

    def staleness(self, trained: Iterable[int], base: int) -> int:
        """The age of the oldest token that a record trains; 0 if it trains none. All versions count, because on an
        abandoned branch a greater number may be further away than a smaller one."""
        return max((self.age(version, base) for version in set(trained)), default=0)

"""How dangerous an effect is. Danger belongs to effects, not to verbs: scaling up is nothing, scaling down may be.

Invariant: a tier is a pure function of the previewed effect; it is computed when a person is asked and once more when
the command is executed, so that a consent given for one effect is never used for a worse one.
"""

from __future__ import annotations

import enum

import msgspec


class Tier(enum.IntEnum):
    NONE = 0
    """Changes nothing that runs."""
    REVERSIBLE = 1
    """Can be taken back exactly."""
    DISRUPTIVE = 2
    """Ends living units, if only after they finished what is under way: less is done meanwhile."""
    DESTRUCTIVE = 3
    """Loses something for good."""


class Effect(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a command would do now; the answer to a dry run."""

    starts: tuple[str, ...] = ()
    drains: tuple[str, ...] = ()
    """Units that are stopped after finishing what is under way."""
    kills: tuple[str, ...] = ()
    """Units that are stopped without draining."""
    changes: tuple[str, ...] = ()
    """Sentences: what else happens, such as settings that change, with old and new value."""
    loses: tuple[str, ...] = ()
    """Sentences: what cannot be taken back."""
    notes: tuple[str, ...] = ()
    """Sentences: what stays as it is, though one might expect otherwise."""
    scientific: bool = False
    """Starts a new segment on all curves and wants a note."""

    @property
    def empty(self) -> bool:
        return not (self.starts or self.drains or self.kills or self.changes or self.loses)

    @property
    def restarts(self) -> tuple[str, ...]:
        """Units that end and are started again, in a new life."""
        ending = {*self.drains, *self.kills}
        return tuple(name for name in self.starts if name in ending)

    @property
    def stops(self) -> tuple[str, ...]:
        """Units that end and are not started again."""
        return tuple(name for name in (*self.drains, *self.kills) if name not in self.starts)

    def sentence(self) -> str:
        again = self.restarts
        parts = [
            f"{verb} {_few(chosen)}"
            for verb, names, returning in (
                ("starts", self.starts, False),
                ("restarts", self.drains, True),
                ("kills and restarts", self.kills, True),
                ("drains and stops", self.drains, False),
                ("kills", self.kills, False),
            )
            if (chosen := tuple(name for name in names if (name in again) is returning))
        ]
        parts += [*self.changes, *self.loses]
        return "; ".join([*(parts or ["changes nothing"]), *self.notes])


def tier_of(effect: Effect) -> Tier:
    """The tier function of nearly every command."""
    if effect.loses:
        return Tier.DESTRUCTIVE
    if effect.kills or effect.drains:
        return Tier.DISRUPTIVE
    return Tier.NONE if effect.empty else Tier.REVERSIBLE


def harmless(effect: Effect) -> Tier:
    """The tier function of queries."""
    return Tier.NONE


def _few(names: tuple[str, ...], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"

"""What a command would change, how dangerous that is, and the consent to it.

Effects are dangerous, not verbs: scaling up is harmless, scaling down may not be. An effect that loses something for
good is destructive. An effect is disruptive if work ends or waits but its results stay readable, such as an attempt
whose seat a fork takes.

Invariants: a tier is a pure function of the effect; a consent is used only for an effect of the same or a lower tier,
computed from the same revisions, and only until it expires.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from agentrl.errors import ConflictError


class Tier(enum.IntEnum):
    NONE = 0
    """Changes nothing that runs."""
    REVERSIBLE = 1
    """Can be taken back exactly."""
    DISRUPTIVE = 2
    """Ends units (even if they first finish their work) or other work, so less is done for a while."""
    DESTRUCTIVE = 3
    """Loses something for good."""


class Effect(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a command would change if it were executed now."""

    starts: tuple[str, ...] = ()
    drains: tuple[str, ...] = ()
    """Units that are stopped after finishing what is under way."""
    kills: tuple[str, ...] = ()
    """Units that are stopped without draining."""
    changes: tuple[str, ...] = ()
    """Sentences: what else happens, such as settings that change, with old and new value."""
    displaces: tuple[str, ...] = ()
    """Sentences: which work ends or waits because other work takes its place. All that it did stays readable."""
    loses: tuple[str, ...] = ()
    """Sentences: what cannot be taken back."""
    notes: tuple[str, ...] = ()
    """Sentences: what stays as it is, though one might expect otherwise; on which hosts units will run."""
    scientific: bool = False
    """Starts a new segment on all curves and needs a note."""

    @property
    def empty(self) -> bool:
        return not (self.starts or self.drains or self.kills or self.changes or self.displaces or self.loses)

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
        return "; ".join([*(self._parts() or ["changes nothing"]), *self.notes])

    def headline(self, most: int = 2) -> str:
        """The first of its sentences, and how many more there are."""
        parts = self._parts() or ["changes nothing"]
        left = len(parts) - most
        return "; ".join([*parts[:most], *([f"and {left} more effects"] if left > 0 else [])])

    def _parts(self) -> list[str]:
        again = self.restarts
        parts = [
            f"{verb} {few_names(chosen)}"
            for verb, names, returning in (
                ("starts", self.starts, False),
                ("restarts", self.drains, True),
                ("kills and restarts", self.kills, True),
                ("drains and stops", self.drains, False),
                ("kills", self.kills, False),
            )
            if (chosen := tuple(name for name in names if (name in again) is returning))
        ]
        return [*parts, *self.changes, *self.displaces, *self.loses]


class Consent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a preview. A caller who accepts the effect sends the consent back with the command."""

    effect: Effect
    tier: Tier
    expires_ct: float
    """The coordinator refuses the consent after this time on its clock."""
    revisions: dict[str, str] = {}
    """What the effect was computed from: for each row of the feed (`run`, `group/web`, `unit/web-3`, `knob/bound`) the
    operation or revision that last changed it."""

    def to_tier(self) -> Consent:
        """A consent to any effect up to this tier, for callers that do not show the effect to a person."""
        return msgspec.structs.replace(self, revisions={})


class EffectChangedError(ConflictError):
    """The command would not do what the caller consented to; nothing was done. `consent` has the new effect."""

    def __init__(self, message: str, *, hint: str = "", consent: Consent) -> None:
        super().__init__(message, hint=hint)
        self.consent = consent


def tier_of(effect: Effect) -> Tier:
    """The tier function of nearly every command."""
    if effect.loses:
        return Tier.DESTRUCTIVE
    if effect.kills or effect.drains or effect.displaces:
        return Tier.DISRUPTIVE
    return Tier.NONE if effect.empty else Tier.REVERSIBLE


def harmless(effect: Effect) -> Tier:
    """The tier function of queries."""
    return Tier.NONE


def disruptive(effect: Effect) -> Tier:
    """The tier function of commands with an effect that cannot be computed, such as to run a program."""
    return Tier.NONE if effect.empty else max(Tier.DISRUPTIVE, tier_of(effect))


def few_names(names: Sequence[str], most: int = 6) -> str:
    """The first of many names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"

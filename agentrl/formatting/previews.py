"""What a preview says to a person, and what consent the command then needs. Pure.

The command line, the console and assistants ask in their own ways, but what they say and when they ask is decided here.

Invariant: an effect of the tiers none and reversible needs no consent; one that loses something for good needs
certainty.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from agentrl.formatting.sentences import ended
from agentrl.protocol.effects import Effect, Tier


class Need(enum.Enum):
    """What has to be known before the command is sent."""

    NOTHING = enum.auto()
    AGREEMENT = enum.auto()
    """A person who is asked agrees. A script goes on without a question."""
    CERTAINTY = enum.auto()
    """The loss is meant: `--yes`, the run's name, or the answer yes where no is the default."""


@dataclass(frozen=True, slots=True)
class Preview:
    effect: Effect
    tier: Tier
    reverse: str = ""
    """The command that takes it back, if there is one."""

    @property
    def need(self) -> Need:
        if self.tier >= Tier.DESTRUCTIVE:
            return Need.CERTAINTY
        return Need.AGREEMENT if self.tier is Tier.DISRUPTIVE else Need.NOTHING

    @property
    def tier_name(self) -> str:
        return self.tier.name.lower()

    @property
    def sentence(self) -> str:
        """The effect, with a full stop."""
        return ended(self.effect.sentence())

    @property
    def warning(self) -> str:
        """What cannot be taken back; empty if nothing is lost."""
        if self.need is not Need.CERTAINTY:
            return ""
        return "What is lost stays lost; the rest can be taken back." if self.reverse else "It cannot be taken back."

    @property
    def dry_run(self) -> str:
        """`Would do (disruptive): ...`, for a person who wants no more than the preview."""
        scientific = " It begins a new scientific segment and needs a note." if self.effect.scientific else ""
        return f"Would do ({self.tier_name}): {self.sentence}{scientific}"

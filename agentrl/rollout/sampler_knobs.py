"""What may be changed while a sampler runs.

Invariants: an episode goes by the values that were in force when it was claimed; only the number of episodes changes at
once. How tasks are sampled is frozen at their admission, so those knobs are the steward's.
"""

from __future__ import annotations

from collections.abc import Callable

from agentrl.config.data_plane import Rollout
from agentrl.rollout.attempt import EpisodeSettings
from agentrl.rollout.sampler import Sampler
from agentrl.unit import Preview, Unit


class SamplerKnobs:
    """Declared once, before the sampler is made."""

    def __init__(self, unit: Unit, rollout: Rollout) -> None:
        self._sampler: Sampler | None = None
        self.concurrency = unit.knob(
            "concurrency",
            rollout.concurrency,
            help="Episodes that each sampler runs at once.",
            minimum=0,
            maximum=100_000,
            preview=self._preview_concurrency,
            on_change=self._change_concurrency,
        )
        self._max_turns = unit.knob(
            "max_turns",
            0,
            boundary="next claim",
            help="Model calls of an episode; 0 leaves it to its environment.",
            minimum=0,
            scientific=True,
            preview=self._for_new_ones("max_turns"),
        )
        self._call_s = unit.knob(
            "call_s",
            float(rollout.call_s),
            boundary="next claim",
            help="How long one model call may take.",
            unit="s",
            minimum=0.1,
            preview=self._for_new_ones("call_s"),
        )
        self._tool_s = unit.knob(
            "tool_s",
            0.0,
            boundary="next claim",
            help="How long one tool call may take, each time if it is tried again; 0 leaves it to the tool's server, "
            "whose limit always holds.",
            unit="s",
            minimum=0.0,
            preview=self._for_new_ones("tool_s"),
        )
        self._episode_s = unit.knob(
            "episode_s",
            float(rollout.episode_s),
            boundary="next claim",
            help="How long an episode may take before it is given up as infrastructure.",
            unit="s",
            minimum=1.0,
            preview=self._for_new_ones("episode_s"),
        )

    def of(self, sampler: Sampler) -> None:
        """Changes go there from now on."""
        self._sampler = sampler
        sampler.concurrency = self.concurrency.value

    def take(self) -> EpisodeSettings:
        """At a claim: what was set comes into force."""
        return EpisodeSettings(
            max_turns=self._max_turns.take(),
            call_s=self._call_s.take(),
            tool_s=self._tool_s.take(),
            episode_s=self._episode_s.take(),
        )

    def _change_concurrency(self, value: int) -> None:
        if self._sampler is not None:
            self._sampler.concurrency = value

    def _preview_concurrency(self, value: int) -> Preview:
        running = self._sampler.running if self._sampler is not None else 0
        if value < running:
            return Preview(
                f"{running} episodes run here; no more are claimed until {running - value} of them have ended"
            )
        return Preview(f"{running} episodes run here; up to {value - running} more are claimed at once")

    def _for_new_ones(self, name: str) -> Callable[[float], Preview]:
        def told(value: float) -> Preview:
            running = self._sampler.running if self._sampler is not None else 0
            return Preview(f"{name} is {value:g} for episodes claimed from now on; {running} under way keep their own")

        return told

"""The knobs of a sampler.

Invariants: an episode keeps the values that were in force when it was claimed; only the number of episodes changes at
once. Sampling is frozen in each task at its admission, so its knobs belong to the steward.
"""

from __future__ import annotations

from collections.abc import Callable

from agentrl.config.data_plane import Rollout
from agentrl.config.knobs import unit_knobs, with_values
from agentrl.config.run import RunConfig
from agentrl.protocol.specs import Role
from agentrl.rollout.sampler import Sampler
from agentrl.unit import LiveKnob, Unit


class SamplerKnobs:
    """Declared once, before the sampler is made."""

    def __init__(self, unit: Unit, config: RunConfig) -> None:
        self._sampler: Sampler | None = None
        self._rollout = config.rollout
        knobs = unit_knobs(config, Role.SAMPLER)
        self.concurrency: LiveKnob[int] = unit.declare(
            knobs.pop("concurrency"), preview=self._preview_concurrency, on_change=self._change_concurrency
        )
        self._of_episodes: dict[str, LiveKnob[float | str]] = {
            name: unit.declare(knob, preview=self._for_new_ones(name)) for name, knob in knobs.items()
        }

    def of(self, sampler: Sampler) -> None:
        """Apply the knobs to this sampler."""
        self._sampler = sampler
        sampler.concurrency = self.concurrency.value

    def take(self) -> Rollout:
        """At a claim: pending values come into force."""
        values = {name: knob.take() for name, knob in self._of_episodes.items()}
        return with_values(self._rollout, Role.SAMPLER, values)

    def _change_concurrency(self, value: int) -> None:
        if self._sampler is not None:
            self._sampler.concurrency = value

    @property
    def _running(self) -> int:
        return self._sampler.running if self._sampler is not None else 0

    def _preview_concurrency(self, value: int) -> str:
        running = self._running
        if value < running:
            return f"{running} episodes run here; no more are claimed until {running - value} of them have ended"
        return f"{running} episodes run here; up to {value - running} more are claimed at once"

    def _for_new_ones(self, name: str) -> Callable[[float | str], str]:
        def preview(value: float | str) -> str:
            shown = value if isinstance(value, str) else f"{value:g}"
            return f"{name} is {shown} for episodes claimed from now on; {self._running} under way keep their own"

        return preview

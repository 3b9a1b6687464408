"""Defines the supervision times and counts of the control plane.

Invariants:
- All parts of the control plane use the supervision times of this module.
- Every SupervisionTimes is consistent (a unit is suspect before it counts as dead, and not before it could have missed
  a beat).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from agentrl.config.field_types import Section, Tunable
from agentrl.errors import ConfigError

_Time = Annotated[float, Field(strict=True, ge=0.01, le=86_400)]
_Limit = Annotated[int, Field(strict=True, ge=1, le=1_000)]


class SupervisionTimes(Section):
    """Supervision. The defaults suit a cluster; tests use a tenth of them (`scaled`)."""

    heartbeat_s: Annotated[_Time, Tunable("restart")] = 2.0
    """How often units and host agents send a heartbeat."""
    suspect_after_s: _Time = 6.0
    """Silence after which a unit is shown as suspect; nothing is done to it yet."""
    dead_after_s: _Time = 20.0
    """Silence after which a unit outside any announced phase counts as hung and is replaced."""
    host_silent_after_s: _Time = 20.0
    """Silence after which a host and everything on it are lost."""
    forget_host_after_s: _Time = 600.0
    """Silence after which a host that holds no unit is forgotten; its name is then free."""
    restart_window_s: _Time = 300.0
    """The window in which deaths are counted. A unit without a death for this long starts with a count of 0."""
    max_deaths: _Limit = 5
    """How many deaths a ready unit may have in the window; with one more it is fatal."""
    max_failed_starts: _Limit = 5
    """How many starts in a row may fail; with one more the unit is fatal."""
    max_oom_deaths: _Limit = 3
    """How many kills for memory in the window make a unit fatal, because a restart rarely helps."""
    backoff_first_s: _Time = 0.5
    """The first delay before a restart; it doubles with each death. The first death in the window has none."""
    backoff_max_s: _Time = 60.0
    """The longest delay before a restart."""
    backoff_jitter: Annotated[float, Field(strict=True, ge=0, le=0.9)] = 0.25
    """The random share of a delay, up or down, so that units do not restart all at once."""
    operation_deadline_s: _Time = 600.0
    """How long an accepted command may take before it counts as failed."""
    no_progress_s: _Time = 300.0
    """How long the run may make no progress before an alert shows the wait chain."""
    stats_every_s: _Time = 2.0
    """How often a host agent measures its units."""
    drain_patience_s: _Time = 3600.0
    """How long `drain` waits for a unit to finish before it stops the unit; no wait is unbounded."""
    kill_again_s: _Time = 1.0
    """How often a kill is repeated until nothing is left of a unit."""
    stacks_grace_s: _Time = 2.0
    """How long a hung unit has to write its stacks before it is killed."""
    agent_restart_s: _Time = 1.0
    """Delay before a dead host agent is started again; it doubles up to `backoff_max_s`."""
    coordinator_silent_s: _Time = 60.0
    """Silence after which a coordinator and the host agent beside it replace each other; the units do not notice."""
    late_after_s: _Time = 1.0
    """A pause of the coordinator's own loop of at least this length extends all leases by that pause."""

    @model_validator(mode="after")
    def _consistent(self) -> SupervisionTimes:
        for lower, upper, factor in (
            ("heartbeat_s", "suspect_after_s", 2.0),
            ("heartbeat_s", "host_silent_after_s", 2.0),
            ("heartbeat_s", "coordinator_silent_s", 2.0),
            ("suspect_after_s", "dead_after_s", 1.0),
            ("backoff_first_s", "backoff_max_s", 1.0),
        ):
            least = factor * getattr(self, lower)
            if getattr(self, upper) < least:
                times = "twice " if factor == 2.0 else ""
                raise ValueError(
                    f"{upper} must be at least {times}{lower}, {least:g} s, not {getattr(self, upper):g} s"
                )
        return self

    def scaled(self, factor: float) -> SupervisionTimes:
        """All times multiplied by the factor; counts and shares unchanged."""
        plain = self.model_dump()
        return SupervisionTimes.model_validate(
            {name: value * factor if name.endswith("_s") else value for name, value in plain.items()}
        )

    def changed(self, name: str, value: float) -> SupervisionTimes:
        """A copy with one value changed. Raises ConfigError if the times would contradict each other."""
        if name not in SupervisionTimes.model_fields:
            raise ConfigError(f"There is no supervision time {name!r}.")
        try:
            return SupervisionTimes.model_validate(self.model_dump() | {name: value})
        except ValidationError as broken:
            first = broken.errors()[0]["msg"].removeprefix("Value error, ")
            raise ConfigError(f"supervision.{name} cannot be {value!r}: {first}.") from None

"""What may be changed while a run lives about admission, and about what is kept.

Invariants: a group keeps what it was admitted with; values that contradict each other (a group larger than what may be
under way) are refused by their preview, and at a start all values come into force together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from agentrl.formatting.amounts import counted
from agentrl.policies.admission import Counts
from agentrl.protocol.rows import plain_value
from agentrl.steward.settings import StewardSettings
from agentrl.unit import Unit
from agentrl.unit.unit_knobs import Knob

N = TypeVar("N", int, float)
KEPT = ("details_s", "data_max_bytes", "disk_reserve_bytes")


class StewardKnobs:
    """`settings` are those of the moment, `counts` what was last counted."""

    def __init__(
        self,
        unit: Unit,
        settings: Callable[[], StewardSettings],
        *,
        counts: Callable[[], Counts],
        on_change: Callable[[StewardSettings], None],
    ) -> None:
        self._unit = unit
        self._settings = settings
        self._counts = counts
        self._on_change = on_change
        now = settings()
        most = self._own("max_in_flight", now.max_in_flight, "Episodes that may be open at once.", 1, 1_000_000)
        size = self._own("n", now.n, "Episodes of one task.", 2, 1024, scientific=True)
        heat = self._own("temperature", now.temperature, "Sampling temperature.", 0.01, 10.0, scientific=True)
        longest = self._own("max_tokens", now.max_tokens, "Tokens of one model call.", 1, 1_000_000, scientific=True)
        details = self._kept(
            "details_s", now.details_s, "Seconds for which calls of consumed tasks are kept; 0: for ever."
        )
        largest = self._kept("data_max_bytes", now.data_max_bytes, "Database size above which the oldest of them go.")
        reserve = self._kept(
            "disk_reserve_bytes", now.disk_reserve_bytes, "Free bytes below which nothing is admitted."
        )
        knobs = (most, size, heat, longest, details, largest, reserve)
        self._take(**{knob.name: knob.value for knob in knobs})

    def _kept(self, name: str, default: N, help: str) -> Knob[N]:
        return self._own(name, default, help, 0, None)

    def _own(
        self, name: str, default: N, help: str, minimum: float, maximum: float | None, *, scientific: bool = False
    ) -> Knob[N]:
        return self._unit.knob(
            name,
            default,
            help=help,
            minimum=minimum,
            maximum=maximum,
            scientific=scientific,
            on_change=lambda value: self._take(**{name: value}),
            preview=lambda value: self._preview(name, value),
        )

    def _take(self, **values: int | float) -> None:
        self._on_change(self._settings().changed(**values))

    def _preview(self, name: str, value: int | float) -> str:
        after = self._settings().changed(**{name: value})
        if name in KEPT:
            return f"{name} becomes {value:,} with the next look at the disks; what was removed does not come back"
        flying = self._counts().in_flight
        under_way = f"{counted(flying, 'records')} {'is' if flying == 1 else 'are'}"
        if name == "max_in_flight":
            room = after.max_in_flight - flying
            if room < 0:
                return f"{under_way} under way; none are admitted until {-room} of them have ended"
            return f"{under_way} under way; up to {room} more may be"
        kept = (
            f"{counted(flying, 'records')} under way {'keeps' if flying == 1 else 'keep'} what was set at the admission"
        )
        if name == "n":
            batch = counted(after.plan({}).batch, "records")
            return (
                f"groups admitted from now on have {counted(int(value), 'members')}, and a step up to {batch}; {kept}"
            )
        return f"{name} becomes {plain_value(value)} for what is admitted from now on; {kept}"

"""Holds the knobs that a unit owns: the value in force, the pending value, and the boundary between them.

Invariants:
- A new value comes into force only at the boundary of its knob: `now` when it arrives, `next claim` and `next version`
  when the work loop takes it, `restart` in the next incarnation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar, cast

from agentrl.errors import ConfigError, UnknownNameError, UsageError
from agentrl.protocol.knob import Knob, KnobValue

T = TypeVar("T", bound=float | int | str | bool)


class Preview(NamedTuple):
    """Describes what a new value would do, before it is set."""

    sentence: str
    exact_undo: bool = True
    loses: int = 0
    """The number of things that would be lost permanently."""


class LiveKnob(Generic[T]):
    """One knob of this unit; made by `unit.knob(...)` and `unit.declare(...)`."""

    def __init__(
        self,
        declaration: Knob,
        value: T,
        preview: Callable[[T], Preview | str] | None,
        on_change: Callable[[T], None] | None,
        in_force_changed: Callable[[], None],
    ) -> None:
        self.name = declaration.name
        self.declaration = declaration
        self.boundary = declaration.boundary
        self._preview = preview
        self._on_change = on_change
        self._in_force_changed = in_force_changed
        self._lock = threading.Lock()
        self._value = value
        self._pending = value

    @property
    def value(self) -> T:
        """The value in force."""
        return self._value

    @property
    def pending(self) -> T:
        """The value that was last set. It equals `value` after the boundary."""
        return self._pending

    def take(self) -> T:
        """Pass the boundary: the pending value comes into force. Call it where the claim or the version begins."""
        if self.boundary != "restart":
            self._bring_into_force()
        return self._value

    def offer(self, value: KnobValue) -> None:
        """Take a value from the coordinator. Raises UsageError if the knob does not allow it."""
        self._pending = self._fitting(value)
        if self.boundary == "now":
            self._bring_into_force()

    def start_with(self, value: KnobValue) -> None:
        """Replace the default, before the knob is in use."""
        self._value = self._pending = self._fitting(value)

    def preview(self, value: KnobValue) -> Preview:
        fitting = self._fitting(value)
        if self._preview is None:
            return Preview(f"{self.name}: {self._value} -> {fitting}, in force {_when(self.boundary)}")
        effect = self._preview(fitting)
        return Preview(effect) if isinstance(effect, str) else effect

    def _bring_into_force(self) -> None:
        with self._lock:
            changed, self._value = self._pending != self._value, self._pending
        if changed:
            self._in_force_changed()
            if self._on_change is not None:
                self._on_change(self._value)

    def _fitting(self, value: KnobValue) -> T:
        kind = type(self._value)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise UsageError(f"{self.name} must be of type {kind.__name__}, got {value!r}.")
        return cast(T, value)


class KnobSet:
    """Holds all knobs of the unit. It calls `on_change` when a value in force or the set itself changed."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._knobs: dict[str, LiveKnob[int]] = {}
        self._known: dict[str, KnobValue] = {}
        """Values from the coordinator. They may arrive before the work loop declares the knob."""

    @property
    def declarations(self) -> tuple[Knob, ...]:
        return tuple(knob.declaration for knob in self._knobs.values())

    def declare(
        self,
        declaration: Knob,
        *,
        preview: Callable[[T], Preview | str] | None = None,
        on_change: Callable[[T], None] | None = None,
    ) -> LiveKnob[T]:
        """Raises ConfigError if the unit has a knob of this name, or if the declaration contradicts itself."""
        name = declaration.verified().name
        if name in self._knobs:
            raise ConfigError(f"The knob {name} is declared twice in this unit.")
        default = cast(T, declaration.default)
        knob = LiveKnob(declaration, default, preview, on_change, self._on_change)
        if name in self._known:
            # The declaration is the restart boundary: this incarnation begins with the tuned value.
            knob.start_with(self._known[name])
        self._knobs = {**self._knobs, name: cast("LiveKnob[int]", knob)}
        self._on_change()
        return knob

    def offer(self, name: str, value: KnobValue) -> None:
        self._known[name] = value
        knob = self._knobs.get(name)
        if knob is not None:
            knob.offer(value)

    def preview(self, name: str, value: KnobValue) -> Preview:
        knob = self._knobs.get(name)
        if knob is None:
            raise UnknownNameError(f"This unit has no knob {name}.")
        return knob.preview(value)

    def in_force(self) -> dict[str, KnobValue]:
        return {name: knob.value for name, knob in self._knobs.items()}


def _when(boundary: str) -> str:
    return "at once" if boundary == "now" else f"with the {boundary}" if boundary != "restart" else "after a restart"

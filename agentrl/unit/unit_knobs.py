"""The knobs that a unit owns: the value in force, the value that waits, and the boundary between them.

Invariant: a new value comes into force at the knob's own boundary and at no other moment: `now` when it arrives,
`next claim` and `next version` when the work loop takes it, `restart` in the next incarnation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Literal, NamedTuple, TypeVar, cast, get_args

from agentrl.errors import ConfigError, UnknownNameError, UsageError
from agentrl.protocol.messages import KnobDeclaration
from agentrl.protocol.rows import KnobValue

Boundary = Literal["now", "next claim", "next version", "restart"]
T = TypeVar("T", bound=float | int | str | bool)


class Preview(NamedTuple):
    """What a new value would do, before it is set."""

    sentence: str
    exact_undo: bool = True
    loses: int = 0
    """How many things would be lost for good."""


class KnobFacts(NamedTuple):
    """What people and checks need to know of a knob besides its value."""

    help: str = ""
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    scientific: bool = False
    """Results before and after a change are not comparable."""


class Knob(Generic[T]):
    """One knob; made by `unit.knob(...)`."""

    def __init__(
        self,
        declaration: KnobDeclaration,
        value: T,
        boundary: Boundary,
        preview: Callable[[T], Preview | str] | None,
        on_change: Callable[[T], None] | None,
        in_force_changed: Callable[[], None],
    ) -> None:
        self.name = declaration.name
        self.declaration = declaration
        self.boundary = boundary
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
        """The value that was last set; equal to `value` once the boundary was passed."""
        return self._pending

    def take(self) -> T:
        """Pass the boundary: what was set comes into force. Call it where the claim or the version begins."""
        if self.boundary != "restart":
            self._bring_into_force()
        return self._value

    def offer(self, value: KnobValue) -> None:
        """A value that the coordinator set. Raises UsageError if it cannot be one of this knob."""
        self._pending = self._fitting(value)
        if self.boundary == "now":
            self._bring_into_force()

    def preview(self, value: KnobValue) -> Preview:
        fitting = self._fitting(value)
        if self._preview is None:
            return Preview(f"{self.name}: {self._value} -> {fitting}, in force {_when(self.boundary)}")
        told = self._preview(fitting)
        return Preview(told) if isinstance(told, str) else told

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
            raise UsageError(f"{self.name} is of type {kind.__name__}; {value!r} is none.")
        return cast(T, value)


class KnobSet:
    """All knobs of the unit. `on_change` is called when a value in force, or the set itself, changed."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._knobs: dict[str, Knob[float] | Knob[int] | Knob[str] | Knob[bool]] = {}
        self._known: dict[str, KnobValue] = {}
        """Values that the coordinator told; they may arrive before the work loop declares the knob."""

    @property
    def declarations(self) -> tuple[KnobDeclaration, ...]:
        return tuple(knob.declaration for knob in self._knobs.values())

    def declare(
        self,
        name: str,
        default: T,
        *,
        boundary: Boundary = "now",
        facts: KnobFacts | None = None,
        preview: Callable[[T], Preview | str] | None = None,
        on_change: Callable[[T], None] | None = None,
    ) -> Knob[T]:
        if name in self._knobs:
            raise ConfigError(f"The knob {name} is declared twice in this unit.")
        if boundary not in get_args(Boundary):
            allowed = ", ".join(repr(each) for each in get_args(Boundary))
            raise ConfigError(f"The boundary of the knob {name} must be one of {allowed}, not {boundary!r}.")
        declaration = _declaration(name, default, boundary, facts or KnobFacts())
        knob = Knob(declaration, default, boundary, preview, on_change, self._on_change)
        if name in self._known:
            # Declaring is the restart boundary: this incarnation begins with what was set before it.
            knob._value = knob._pending = knob._fitting(self._known[name])
        self._knobs = {**self._knobs, name: cast("Knob[int]", knob)}
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


def _declaration(name: str, default: float | int | str | bool, boundary: Boundary, facts: KnobFacts) -> KnobDeclaration:
    kind = "choice" if facts.choices else type(default).__name__
    return KnobDeclaration(name=name, kind=kind, default=default, boundary=boundary, **facts._asdict())


def _when(boundary: Boundary) -> str:
    return "at once" if boundary == "now" else f"with the {boundary}" if boundary != "restart" else "after a restart"

"""Holds the knobs of a live run: values, history and undo.

Invariants:
- The declaration of a knob allows its value.
- A change records its author, raises the revision of the knob and is refused if the caller saw an older revision.
- A change of a scientific knob has a note and begins a new segment.
- Only a changed value in the run file replaces a tuned value.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from agentrl.errors import ConfigError, ConflictError, ProtocolError, RefusedError, UnknownNameError
from agentrl.formatting.amounts import utc
from agentrl.formatting.sentences import ended
from agentrl.protocol import wire
from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import Knob, KnobValue, plain_value
from agentrl.protocol.messages import KnobPreviewed
from agentrl.protocol.rows import KnobRow

HISTORY_KEPT = 50
TAKES_BACK = "takes back revision"

Preview = Callable[[KnobValue], Effect]
"""Computes the effect of a value; pure. Raises ConfigError for a value that contradicts others."""


class KnobChange(msgspec.Struct, frozen=True):
    """One change of one knob."""

    name: str
    revision: int
    at: float
    who: str
    old: KnobValue
    new: KnobValue
    how: str
    """tune, undo, file."""
    note: str = ""
    segment: int = 0
    """The segment that begins with the change of a scientific knob."""

    def sentence(self) -> str:
        return f"{self.name}: {plain_value(self.old)} -> {plain_value(self.new)}"


class StoredKnob(msgspec.Struct, frozen=True):
    """The part of a knob that is in the journal."""

    value: KnobValue
    revision: int
    file_known: bool = False
    file_value: KnobValue = None
    """The value in the run file at the last `up`."""
    history: tuple[KnobChange, ...] = ()
    """The last changes, oldest first."""
    declared: Knob | None = None
    """The declaration of a knob that units own, so that it is known before their next hello."""


@dataclass(slots=True)
class _Entry:
    knob: Knob
    preview: Preview | None
    stored: StoredKnob
    in_force: KnobValue = None


class KnobRegistry:
    """All knobs of a run."""

    def __init__(self) -> None:
        self.segment = 0
        """The number of the present scientific segment."""
        self._entries: dict[str, _Entry] = {}
        self._unclaimed: dict[str, StoredKnob] = {}

    # ---- declarations ----

    def declare(self, knob: Knob, preview: Preview | None = None) -> str:
        """Add a knob, with its restored value. Returns a sentence if that value is no longer allowed."""
        known = self._entries.get(knob.name)
        if known is not None and known.knob.owner != knob.owner:
            return f"The knob {knob.name} of {knob.owner} is left out: {known.knob.owner or 'the coordinator'} has it."
        entry = _Entry(knob, preview, StoredKnob(knob.default, 0), known.in_force if known is not None else None)
        stored = known.stored if known is not None else self._unclaimed.pop(knob.name, None)
        self._entries[knob.name] = entry
        complaint = self._adopt(entry, stored)
        if knob.owner:
            entry.stored = msgspec.structs.replace(entry.stored, declared=knob)
        return complaint

    def names(self) -> list[str]:
        return sorted(self._entries)

    def value(self, name: str) -> KnobValue:
        return self._find(name).stored.value

    def revision(self, name: str) -> int:
        """How often the knob was changed."""
        return self._find(name).stored.revision

    def declaration(self, name: str) -> Knob:
        return self._find(name).knob

    def history(self, name: str) -> tuple[KnobChange, ...]:
        """The last changes of a knob, oldest first."""
        return self._find(name).stored.history

    def scientific_then(self, at: float) -> dict[str, KnobValue]:
        """The values of the scientific knobs at a time, as far back as the history goes."""
        found = {}
        for name, entry in self._entries.items():
            if entry.knob.scientific:
                later = (change.old for change in entry.stored.history if change.at > at)
                found[name] = next(later, entry.stored.value)
        return found

    def scientific_changes(self) -> list[KnobChange]:
        """The last changes that began a new segment, oldest first."""
        changes = [change for entry in self._entries.values() for change in entry.stored.history if change.segment]
        return sorted(changes, key=lambda change: change.at)

    def row(self, name: str) -> KnobRow:
        entry = self._find(name)
        knob, stored = entry.knob, entry.stored
        last = stored.history[-1] if stored.history else None
        return KnobRow(
            value=stored.value,
            revision=stored.revision,
            in_force=entry.in_force if knob.owner else stored.value,
            changed_at=last.at if last else 0.0,
            changed_by=last.who if last else "",
            note=last.note if last else "",
            before=last.old if last else None,
            **msgspec.structs.asdict(knob),
        )

    def rows(self) -> list[KnobRow]:
        return [self.row(name) for name in self.names()]

    # ---- previews ----

    def preview(
        self, name: str, value: KnobValue, asked: KnobPreviewed | None = None, *, owner_done: bool = False
    ) -> Effect:
        """The effect of a value. `asked` is the effect that the owning unit returned. `owner_done`: the owner is a
        finished job, which never reaches a boundary again.
        """
        entry = self._find(name)
        new = _checked(entry, value)
        if new == entry.stored.value:
            return Effect()
        if asked is not None and asked.error:
            raise RefusedError(f"The owner of {name} refuses {plain_value(new)}: {ended(asked.error)}")
        when = "" if entry.knob.boundary == "now" else f", from the {entry.knob.boundary} on"
        when = f", if {entry.knob.owner} is run again: it is done" if owner_done else when
        own = _previewed(entry, new)
        changes = [f"{name}: {plain_value(entry.stored.value)} -> {plain_value(new)}{when}", *own.changes]
        loses = list(own.loses)
        if asked is not None and asked.sentence:
            (loses if asked.loses or not asked.exact_undo else changes).append(asked.sentence)
        return msgspec.structs.replace(
            own, changes=tuple(changes), loses=tuple(loses), scientific=entry.knob.scientific or own.scientific
        )

    def undo_value(self, name: str) -> KnobValue:
        """The value before the last change. Raises RefusedError if there was no change."""
        stored = self._find(name).stored
        if not stored.history:
            raise RefusedError(f"The knob {name} was never changed.", hint="There is nothing to undo.")
        return stored.history[-1].old

    # ---- changes ----

    def compare(self, name: str, seen: int | None) -> None:
        """Raise ConflictError, which names the other change, if the knob was changed since the caller saw it."""
        stored = self._find(name).stored
        if seen is None or seen == stored.revision:
            return
        by = f"by {stored.history[-1].who} at {utc(stored.history[-1].at)}" if stored.history else "meanwhile"
        raise ConflictError(
            f"{name} was changed {by} to {plain_value(stored.value)} "
            f"(revision {stored.revision}, you saw {seen}); nothing was overwritten.",
            hint=f"Look at it with `agentrl tune {name}` and try again.",
        )

    def check(self, name: str, value: KnobValue, *, seen_revision: int | None, note: str | None = "") -> None:
        """Raise the errors that `tune` would raise, and change nothing. With None as note, a missing note is
        allowed.
        """
        self._admit(self._find(name), value, seen_revision, note)

    def tune(
        self, name: str, value: KnobValue, *, seen_revision: int | None, who: str, at: float, note: str = ""
    ) -> KnobChange | None:
        """Change a knob. Returns None if it has that value already. Raises RefusedError or ConflictError."""
        return self._set(name, value, seen_revision, who, at, note, "tune")

    def undo(self, name: str, *, seen_revision: int | None, who: str, at: float) -> KnobChange | None:
        """Restore the value before the last change. An undo is a change as well."""
        self.compare(name, seen_revision)
        value = self.undo_value(name)
        last = self._find(name).stored.history[-1]
        # The note of an undo is not repeated, or notes would grow with every undo.
        why = f" ({last.note})" if last.note and not last.note.startswith(TAKES_BACK) else ""
        note = f"{TAKES_BACK} {last.revision}{why}"
        return self._set(name, value, seen_revision, who, at, note, "undo")

    def apply_file_value(self, name: str, value: KnobValue, *, who: str, at: float) -> KnobChange | None:
        """The value in the run file, at each `up`: a tuned value stays unless the value in the file changed."""
        entry = self._find(name)
        new = _checked(entry, value)
        known, before = entry.stored.file_known, entry.stored.file_value
        entry.stored = msgspec.structs.replace(entry.stored, file_known=True, file_value=new)
        if new == entry.stored.value or (known and new == before):
            return None
        if not known and not entry.stored.revision:
            # At the first `up` of a run, the value in the file is the start of the knob and no change.
            entry.stored = msgspec.structs.replace(entry.stored, value=new)
            return None
        return self._write(entry, new, who, at, "the run file changed", "file", scientific=entry.knob.scientific)

    def report(self, name: str, value: KnobValue, owner: str = "") -> bool:
        """Take in the value in force in the owner. Returns True if it is new. Reports about knobs of other units are
        ignored.
        """
        entry = self._entries.get(name)
        if entry is None or entry.knob.owner != owner or entry.in_force == value:
            return False
        entry.in_force = value
        return True

    # ---- persistence ----

    def persisted(self, name: str) -> bytes:
        return wire.encode(self._find(name).stored)

    def restore(self, bodies: Mapping[str, bytes]) -> list[str]:
        """Take over the stored knobs, also for later declarations. Returns sentences about unusable ones."""
        complaints = []
        for name, body in bodies.items():
            try:
                stored = wire.decode_as(StoredKnob, body)
            except ProtocolError as broken:
                complaints.append(f"What the journal kept of the knob {name} cannot be read: {broken.message}")
                continue
            self.segment = max([self.segment, *(change.segment for change in stored.history)])
            if name in self._entries:
                complaints.append(self._adopt(self._entries[name], stored))
                continue
            self._unclaimed[name] = stored
            if stored.declared is not None:
                complaints.append(self.declare(stored.declared))
        return [complaint for complaint in complaints if complaint]

    def _adopt(self, entry: _Entry, stored: StoredKnob | None) -> str:
        if stored is None or not (stored.revision or stored.file_known):
            return ""  # An untuned value follows a new default.
        try:
            value = entry.knob.check(stored.value)
        except ConfigError as refused:
            # The revision rises, so that no command matches the old one by chance.
            entry.stored = msgspec.structs.replace(stored, value=entry.knob.default, revision=stored.revision + 1)
            default = plain_value(entry.knob.default)
            return f"The knob {entry.knob.name} is back at its default {default}: {refused.message}"
        entry.stored = msgspec.structs.replace(stored, value=value)
        return ""

    # ---- inner ----

    def _set(
        self, name: str, value: KnobValue, seen: int | None, who: str, at: float, note: str, how: str
    ) -> KnobChange | None:
        entry = self._find(name)
        new, scientific = self._admit(entry, value, seen, note)
        if new == entry.stored.value:
            return None
        return self._write(entry, new, who, at, note, how, scientific=scientific)

    def _admit(self, entry: _Entry, value: KnobValue, seen: int | None, note: str | None) -> tuple[KnobValue, bool]:
        """The value in the knob's own type, and whether its change begins a new segment."""
        new = _checked(entry, value)
        self.compare(entry.knob.name, seen)
        if new == entry.stored.value:
            return new, False
        scientific = entry.knob.scientific or _previewed(entry, new).scientific
        if scientific and note is not None and not note.strip():
            raise RefusedError(
                f"{entry.knob.name} changes what the results mean, so its change needs a note.",
                hint="Say why: `agentrl tune ... --note TEXT`.",
            )
        return new, scientific

    def _write(
        self, entry: _Entry, new: KnobValue, who: str, at: float, note: str, how: str, *, scientific: bool
    ) -> KnobChange:
        stored = entry.stored
        if scientific:
            self.segment += 1
            segment = self.segment
        else:
            segment = 0
        change = KnobChange(entry.knob.name, stored.revision + 1, at, who, stored.value, new, how, note, segment)
        history = (*stored.history, change)[-HISTORY_KEPT:]
        entry.stored = msgspec.structs.replace(stored, value=new, revision=change.revision, history=history)
        return change

    def _find(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            near = difflib.get_close_matches(name, self._entries, 1)
            raise UnknownNameError(
                f"There is no knob {name!r}{f'; did you mean {near[0]!r}?' if near else '.'}",
                hint="`agentrl tune` lists them.",
            )
        return entry


def _checked(entry: _Entry, value: KnobValue) -> KnobValue:
    try:
        return entry.knob.check(value)
    except ConfigError as wrong:
        # The fault is in the command, not in the configuration.
        raise RefusedError(wrong.message, hint=wrong.hint) from wrong


def _previewed(entry: _Entry, value: KnobValue) -> Effect:
    if entry.preview is None:
        return Effect()
    try:
        return entry.preview(value)
    except ConfigError as wrong:
        raise RefusedError(wrong.message, hint=wrong.hint) from wrong

"""Knob changes are checked, recorded and can be undone."""

from __future__ import annotations

import pytest

from agentrl.config.knobs import supervision_knobs
from agentrl.control.state.knob_registry import KnobRegistry
from agentrl.errors import ConfigError, ConflictError, RefusedError, UnknownNameError
from agentrl.protocol.effects import Effect, Tier, tier_of
from agentrl.protocol.knob import Knob, KnobValue
from agentrl.protocol.messages import KnobPreviewed

BOUND = Knob(
    name="bound", kind="int", default=4, help="Staleness.", minimum=0, maximum=64, boundary="next version", owner="fake"
)
RATE = Knob(name="rate", kind="float", default=0.1, help="Learning rate.", minimum=0.0, maximum=1.0, scientific=True)


def voids(value: KnobValue) -> Effect:
    if value == 13:
        raise ConfigError("13 contradicts the other times.")
    return Effect(loses=("voids 14 ready records",)) if isinstance(value, int) and value < 4 else Effect()


@pytest.fixture
def knobs() -> KnobRegistry:
    registry = KnobRegistry()
    registry.declare(BOUND, preview=voids)
    registry.declare(RATE)
    return registry


# type: ignore[no-untyped-def]
def tune(knobs: KnobRegistry, name: str, value: KnobValue, seen: int | None = None, **more: str):
    return knobs.tune(name, value, seen_revision=seen, who=more.get("who", "ann"), at=60.0, note=more.get("note", ""))


def test_change_records_who_when_and_what(knobs: KnobRegistry) -> None:
    change = tune(knobs, "bound", 8, 0, note="slow judge")
    assert change.sentence() == "bound: 4 -> 8"
    row = knobs.row("bound")
    assert (row.value, row.default, row.revision) == (8, 4, 1)
    assert (row.before, row.changed_by, row.changed_at, row.note) == (4, "ann", 60.0, "slow judge")
    assert knobs.row("rate").before is None, "nobody changed it"
    assert (row.minimum, row.maximum, row.boundary, row.owner) == (0, 64, "next version", "fake")
    assert [change.new for change in knobs.history("bound")] == [8]


def test_change_from_an_old_revision_is_refused(knobs: KnobRegistry) -> None:
    tune(knobs, "bound", 8, 0, who="bob")
    with pytest.raises(ConflictError, match=r"by bob at 1970-01-01 00:01:00 UTC to 8 \(revision 1, you saw 0\)"):
        tune(knobs, "bound", 9, 0)
    assert knobs.value("bound") == 8
    tune(knobs, "bound", 9, 1)
    assert knobs.value("bound") == 9


def test_same_value_is_no_change(knobs: KnobRegistry) -> None:
    assert tune(knobs, "bound", 4) is None
    assert knobs.row("bound").revision == 0


@pytest.mark.parametrize("value", [-1, 65, "many", True, 2.5, None])
def test_invalid_value_is_refused_with_the_allowed_ones(knobs: KnobRegistry, value: KnobValue) -> None:
    with pytest.raises(RefusedError, match="whole number from 0 to 64"):
        tune(knobs, "bound", value)
    assert knobs.value("bound") == 4


def test_an_unknown_knob_names_the_nearest(knobs: KnobRegistry) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'bound'"):
        knobs.value("bond")


def test_preview_names_losses_and_changes_nothing(knobs: KnobRegistry) -> None:
    effect = knobs.preview("bound", 2)
    assert effect.sentence() == "bound: 4 -> 2, from the next version on; voids 14 ready records"
    assert tier_of(effect) is Tier.DESTRUCTIVE
    assert tier_of(knobs.preview("bound", 8)) is Tier.REVERSIBLE
    assert knobs.preview("bound", 4).empty
    assert knobs.preview("rate", 0.2).scientific
    assert knobs.value("bound") == 4


def test_preview_names_no_boundary_of_an_owner_that_is_done(knobs: KnobRegistry) -> None:
    (coming,) = knobs.preview("bound", 6).changes
    (too_late,) = knobs.preview("bound", 6, owner_done=True).changes
    assert coming == "bound: 4 -> 6, from the next version on"
    assert too_late == "bound: 4 -> 6, if fake is run again: it is done"


def test_contradicting_value_is_refused_without_a_preview(knobs: KnobRegistry) -> None:
    for act in (lambda: knobs.preview("bound", 13), lambda: tune(knobs, "bound", 13)):
        with pytest.raises(RefusedError, match="contradicts"):
            act()


def test_preview_has_the_answer_of_the_owner(knobs: KnobRegistry) -> None:
    assert knobs.preview("bound", 9, KnobPreviewed("1", "admits 3 more")).changes[-1] == "admits 3 more"
    assert knobs.preview("bound", 9, KnobPreviewed("1", "voids 3", exact_undo=False)).loses == ("voids 3",)
    with pytest.raises(RefusedError, match="not while saving"):
        knobs.preview("bound", 9, KnobPreviewed("1", "", error="not while saving"))
    with pytest.raises(RefusedError, match=r"or lower n\.$"):
        knobs.preview("bound", 9, KnobPreviewed("1", "", error="Too large. Raise max_in_flight, or lower n."))


def test_undo_reverts_one_change_and_is_a_change(knobs: KnobRegistry) -> None:
    with pytest.raises(RefusedError, match="never changed"):
        knobs.undo("bound", seen_revision=None, who="ann", at=1.0)
    tune(knobs, "bound", 8)
    tune(knobs, "bound", 9)
    with pytest.raises(ConflictError):
        knobs.undo("bound", seen_revision=1, who="bob", at=1.0)
    change = knobs.undo("bound", seen_revision=2, who="bob", at=1.0)
    assert change is not None
    assert (change.old, change.new, change.revision, change.how) == (9, 8, 3, "undo")
    again = knobs.undo("bound", seen_revision=3, who="bob", at=1.0)
    assert knobs.value("bound") == 9
    assert again is not None
    assert (change.note, again.note) == ("takes back revision 2", "takes back revision 3"), (
        "the note of an undo is not nested"
    )


def test_scientific_change_needs_a_note_and_begins_a_segment(knobs: KnobRegistry) -> None:
    with pytest.raises(RefusedError, match="needs a note"):
        tune(knobs, "rate", 0.2, note=" ")
    assert knobs.segment == 0
    assert tune(knobs, "rate", 0.2, note="plateau").segment == 1
    assert tune(knobs, "bound", 8).segment == 0
    undone = knobs.undo("rate", seen_revision=1, who="ann", at=1.0)
    assert undone is not None
    assert (undone.segment, undone.note) == (2, "takes back revision 1 (plateau)")
    assert knobs.segment == 2


def test_tuned_value_survives_up_unless_the_file_changed(knobs: KnobRegistry) -> None:
    def up(value: KnobValue) -> KnobValue:
        knobs.apply_file_value("bound", value, who="up", at=1.0)
        return knobs.value("bound")

    assert up(6) == 6, "the first `up` sets the initial value"
    assert knobs.row("bound").revision == 0
    assert up(6) == 6
    tune(knobs, "bound", 8)
    assert up(6) == 8
    assert up(7) == 7, "the changed value of the file is newer than the tuned one"
    assert knobs.history("bound")[-1].how == "file"
    tune(knobs, "bound", 9)
    assert up(7) == 9


def restarted(knobs: KnobRegistry, *, declared_first: bool, bound: Knob = BOUND) -> tuple[KnobRegistry, list[str]]:
    bodies = {name: knobs.persisted(name) for name in knobs.names()}
    again = KnobRegistry()
    reply: list[str] = []
    if not declared_first:
        reply += again.restore(bodies)
    reply += [sentence for knob in (bound, RATE) if (sentence := again.declare(knob))]
    if declared_first:
        reply += again.restore(bodies)
    return again, reply


@pytest.mark.parametrize("declared_first", [True, False])
def test_values_and_history_survive_a_restart(knobs: KnobRegistry, declared_first: bool) -> None:
    knobs.apply_file_value("bound", 6, who="up", at=1.0)
    tune(knobs, "bound", 8)
    tune(knobs, "rate", 0.5, note="why not")
    again, reply = restarted(knobs, declared_first=declared_first)
    assert reply == []
    assert again.rows() == knobs.rows()
    assert again.history("bound") == knobs.history("bound")
    assert again.segment == 1
    again.apply_file_value("bound", 6, who="up", at=1.0)
    assert again.value("bound") == 8
    with pytest.raises(ConflictError):
        tune(again, "bound", 3, 0)


def test_stored_value_that_is_no_longer_allowed_is_reported(knobs: KnobRegistry) -> None:
    tune(knobs, "bound", 60)
    narrower = Knob(name="bound", kind="int", default=4, help="", minimum=0, maximum=16, owner="fake")
    again, reply = restarted(knobs, declared_first=False, bound=narrower)
    assert again.value("bound") == 4
    assert again.row("bound").revision == 2
    assert len(reply) == 1
    assert "back at its default 4" in reply[0]


def test_unreadable_stored_knob_is_reported_and_the_others_are_kept(knobs: KnobRegistry) -> None:
    tune(knobs, "bound", 8)
    again = KnobRegistry()
    again.declare(BOUND)
    reply = again.restore({"rate": b"\xff\xff", "bound": knobs.persisted("bound")})
    assert "rate" in reply[0]
    assert again.value("bound") == 8


def test_value_in_force_comes_from_the_owner(knobs: KnobRegistry) -> None:
    tune(knobs, "bound", 8)
    assert knobs.row("bound").in_force is None
    assert knobs.report("bound", 4, "fake")
    assert not knobs.report("bound", 4, "fake")
    assert not knobs.report("unheard-of", 4, "fake")
    assert not knobs.report("bound", 5, "somebody-else")
    assert knobs.row("bound").in_force == 4
    tune(knobs, "rate", 0.5, note="x")
    assert knobs.row("rate").in_force == 0.5, "knobs of the coordinator are in force at once"


def test_history_is_bounded(knobs: KnobRegistry) -> None:
    for step in range(200):
        tune(knobs, "bound", 20 + step % 40)
    assert len(knobs.history("bound")) == 50
    assert knobs.row("bound").revision == 200
    assert len(knobs.persisted("bound")) < 10_000


def test_supervision_knobs_can_be_declared() -> None:
    registry = KnobRegistry()
    for knob in supervision_knobs():
        assert registry.declare(knob) == ""
    assert len(registry.rows()) == len(supervision_knobs())
    row = registry.row("supervision.suspect_after_s")
    tune(registry, row.name, 12.0)
    assert registry.value(row.name) == 12.0


def test_knob_of_a_unit_is_known_before_its_hello(knobs: KnobRegistry) -> None:
    tune(knobs, "bound", 8)
    again = KnobRegistry()
    assert again.restore({"bound": knobs.persisted("bound")}) == []
    assert again.value("bound") == 8
    assert again.declaration("bound") == BOUND


def test_new_declaration_keeps_the_tuned_value_and_the_value_in_force(knobs: KnobRegistry) -> None:
    tune(knobs, "bound", 8)
    knobs.report("bound", 4, "fake")
    wider = Knob(name="bound", kind="int", default=6, help="", minimum=0, maximum=99, owner="fake")
    assert knobs.declare(wider) == ""
    row = knobs.row("bound")
    assert (row.value, row.in_force, row.default, row.maximum, row.revision) == (8, 4, 6, 99, 1)


def test_untuned_value_follows_a_new_default(knobs: KnobRegistry) -> None:
    later = Knob(name="bound", kind="int", default=6, help="", minimum=0, maximum=64, owner="fake")
    again, reply = restarted(knobs, declared_first=False, bound=later)
    assert reply == []
    assert again.row("bound").value == 6


def test_group_cannot_declare_the_knob_of_another(knobs: KnobRegistry) -> None:
    for knob in supervision_knobs():
        knobs.declare(knob)
    thief = Knob(name="supervision.heartbeat_s", kind="float", default=0.1, help="", owner="fake")
    assert "the coordinator has it" in knobs.declare(thief)
    assert knobs.row("supervision.heartbeat_s").owner == ""


def test_check_raises_the_errors_of_the_change(knobs: KnobRegistry) -> None:
    with pytest.raises(RefusedError, match="needs a note"):
        knobs.check("rate", 0.5, seen_revision=0)
    tune(knobs, "bound", 8, 0)
    with pytest.raises(ConflictError, match="by ann"):
        knobs.check("bound", 9, seen_revision=0)
    knobs.check("bound", 9, seen_revision=1)
    assert knobs.value("bound") == 8

"""What a preview says, and what consent it needs."""

from __future__ import annotations

import pytest

from agentrl.formatting.previews import Need, Preview
from agentrl.protocol.effects import Effect, Tier, tier_of


@pytest.mark.parametrize(
    ("effect", "reverse", "need", "warning"),
    [
        (Effect(), "", Need.NOTHING, ""),
        (Effect(starts=("web-0",)), "scale", Need.NOTHING, ""),
        (Effect(drains=("web-0",)), "", Need.AGREEMENT, ""),
        (Effect(loses=("14 records are lost",)), "", Need.CERTAINTY, "It cannot be taken back."),
        (
            Effect(drains=("web-0",), loses=("14 records are lost",)),
            "scale",
            Need.CERTAINTY,
            "What is lost stays lost; the rest can be taken back.",
        ),
    ],
)
def test_effect_decides_the_consent_and_its_warning(effect: Effect, reverse: str, need: Need, warning: str) -> None:
    preview = Preview(effect, tier_of(effect), reverse)
    assert (preview.need, preview.warning) == (need, warning)


def test_dry_run_names_tier_effect_and_the_note_of_a_scientific_change() -> None:
    changed = Preview(Effect(changes=("bound 4 → 2",), scientific=True), Tier.REVERSIBLE)
    assert changed.dry_run == (
        "Would do (reversible): bound 4 → 2. It begins a new scientific segment and needs a note."
    )
    assert Preview(Effect(), Tier.NONE).dry_run == "Would do (none): changes nothing."

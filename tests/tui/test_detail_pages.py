"""Detail pages fold their texts with the code of the command line, so the words are the same."""

from __future__ import annotations

from agentrl.protocol.control_commands import WaitChain, WaitLink, WhyReport
from agentrl.protocol.rows import IncidentRow, KnobRow, UnitRow, UnitState
from agentrl.protocol.specs import Rank
from tui.model import detail_lines
from tui.model.mirror import Mirror
from tui.model.styled_text import Line, Tone, width_of


def text(lines: list[Line]) -> list[str]:
    return [shown for line in lines if (shown := "".join(part.text for part in line).strip())]


def test_equal_last_lines_of_an_incident_are_shown_once() -> None:
    row = IncidentRow("i", "web-0", 1, 1.0, "web-0 died", tail=(*(f"call {n} failed" for n in range(13)), "no room"))
    assert text(detail_lines.of_incident(row, 2.0, 80))[-3:] == ["its last lines", "×13 call 12 failed", "no room"]


def test_many_waits_are_folded_and_a_working_unit_is_not_the_cause() -> None:
    links = tuple(WaitLink("a-0", "b-0", f"record {n}", 20.0 - n) for n in range(20))
    chain = WaitChain((*links, WaitLink("c-0", "b-0", "", 0.2)), "b-0", "is at work", "a-0 ← b-0, 20 s", amiss=False)
    lines = detail_lines.of_waits(WhyReport((chain,)), 80)
    assert text(lines) == [
        "✓ No unit waits longer than it should: what it waits for is in progress.",
        "a-0 ← b-0, 20 s",
        "a-0 waits for b-0 (record 0), 20 s",
        "a-0 waits for b-0 (record 1), 19 s",
        "a-0 has 18 more such waits",
        "ends at: b-0: is at work",
    ]
    assert not any(part.tone is Tone.WARN for line in lines for part in line)
    amiss = WaitChain(links[:1], "b-0", "hangs", "a-0 ← b-0, 20 s: b-0 hangs")
    assert text(detail_lines.of_waits(WhyReport((amiss,)), 80))[-1] == "culprit: b-0: hangs"


def test_wait_chain_is_complete_on_a_narrow_screen() -> None:
    why = "is no unit of the run, so nothing more is known of it, and this is longer than a narrow line is wide"
    links = (WaitLink("a-0", "something-with-a-long-name-0", f"a thing {'very ' * 12}far away", 20.0, overdue=True),)
    lines = detail_lines.of_waits(WhyReport((WaitChain(links, "b-0", why, "a-0 ← b-0"),)), 60)
    shown = " ".join(text(lines))
    assert "far away), 20 s" in shown
    assert "overdue" in shown
    assert f"culprit: b-0: {why}" in shown
    assert all(width_of(line) <= 60 for line in lines)


def test_knob_change_shows_who_when_why_and_both_values() -> None:
    row = KnobRow(
        "pool.work_s", "float", 1.0, unit="s", owner="web", value=2.0, revision=4, in_force=1.5,
        changed_at=100.0, changed_by="ann@far", note="too slow", before=1.5,
    )  # fmt: skip
    what, who, when, note, _, in_force, *_ = text(detail_lines.of_row(row, Mirror(), 130.0, 80))
    assert what.split(maxsplit=1) == ["what", "pool.work_s 1.5 -> 2 s"]
    assert who.split(maxsplit=1) == ["who", "ann@far"]
    assert when.endswith("30 s ago")
    assert note.split(maxsplit=1) == ["note", "too slow"]
    assert in_force.endswith("still 1.5")


def test_page_of_a_rank_shows_its_place_in_its_gang() -> None:
    rank = Rank(epoch=3, rank=1, ranks=4, port=29500, local_rank=1, local_ranks=2, nodes=2, address="10.0.0.1")
    row = UnitRow("train-1", "train", "sidecar", UnitState.READY, pid=7, rank=rank)
    (line,) = (line for line in text(detail_lines.of_unit(row, Mirror(), 2.0, 120)) if line.startswith("gang"))
    assert line.split(maxsplit=1)[1] == ("rank 1 of 4, epoch 3, 1 of 2 on its host; they meet at 10.0.0.1, port 29500")

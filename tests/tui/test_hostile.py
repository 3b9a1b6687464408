"""Text of models, tools, units and people appears on every screen at every size and breaks none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.protocol import rows
from agentrl.protocol.control_commands import WaitChain, WaitLink, WhyReport
from agentrl.protocol.messages import Wait
from tests.cli.scripted import Scripted
from tests.tui import all_screens, fixed_console
from tests.tui.all_screens import PAGES, VIEWS
from tests.tui.conftest import populate
from tests.tui.steward_answers import answers, story
from tests.waiting import aeventually
from tui.console_interface import Settings

SIZES = ((80, 24), (120, 40), (200, 60))
MARK = "here"
"""Precedes every hostile text, so that a screen that hides the text is detected."""
TEXTS = {
    "markup": f"{MARK} [red]x[/red] [/INST] [@click=app.exit]end[/] [bold on blue] \\[ [[ ]] {{}} %s",
    "escapes": f"{MARK} \x1b[2J\x1b[31mred\x1b[0m\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x1b\\ \x9b5m\x90q\x9c"
    "\x07\x08\x7f\x00\x85 end",
    "lines": f"{MARK} one\r\ntwo\rthree\n\n\tfour\u2028five\u2029six\x0bseven\x0ceight end",
    "directions": f"{MARK} \u202eevil\u202c \u2066x\u2069 \u200f\u061cמלל עברי نص عربي end",
    "wide": f"{MARK} " + "界😀👩🏽‍🚀🇩🇪한é" * 40 + " end",
    "combining": f"{MARK} " + "e" + "\u0301" * 3000 + " a\u200db\u200dc \ufeff\u00ad z\ufe0f \U000e0041\U000e007f end",
    "endless": f"{MARK} " + "x" * 20_000,
}
LINES = 60_000
"""Length of a result that fills one message. Longer results come in ranges."""
_ESCAPE_REMAINS = re.compile(r"\[2J|\[31m|\]0;|\]52;|owned|b3duZWQ")


def fill(script: Scripted, text: str) -> None:
    """Put this text into every untrusted field of every screen."""
    fixed_console.narrate(script, "normal")
    populate(script, units=30, long=f" {text}", now=fixed_console.NOW)
    answers(script, text)
    now = fixed_console.NOW
    for n in range(3):
        script.rows[f"unit/odd-{n}"] = rows.UnitRow(
            f"odd-{n}", "odd", text, rows.UnitState.BACKOFF, reason=text, since_at=now, incarnation=2, host=text, pid=7,
            next_at=now + 9, next_what=text, status=text, phase=text, phase_since_at=now, serving=text,
            waits=(Wait(text, what=text, who=text),), metrics={text: 1.0},
        )  # fmt: skip
    script.rows["group/odd"] = rows.GroupRow("odd", text, 3, other={text: 3})
    script.rows["host/odd"] = rows.HostRow(text, text, units=1, disk_full=text)
    script.rows["run"] = rows.RunRow("demo", "u" * 8, "degraded", reason=text, started_at=now, not_recording=text)
    script.rows["pulse"] = rows.BottleneckRow(text, text, now - 60, tools=(rows.ToolLoad(text, 2.0, 1.0, 0.2),))
    script.rows["alert/odd"] = rows.AlertRow(
        "odd", text, text, rows.Severity.PAGE, rows.AlertState.ACKNOWLEDGED, text, now - 900, (text,) * 3, text, text,
        silenced_until_at=now + 60, silenced_by=text, silence_why=text,
    )  # fmt: skip
    script.rows["op/odd"] = rows.OperationRow(
        "odd",
        text,
        text,
        text,
        rows.OperationState.RUNNING,
        now - 9,
        reason=text,
        waiting_for=(text,) * 5,
        lines=(text,),
    )
    script.rows["incident/odd"] = rows.IncidentRow(
        "odd", "odd-0", 1, now, text, tail=(text,) * 50, stacks=text, done=text
    )
    script.rows["knob/a.odd"] = rows.KnobRow(
        "a.odd", "str", text, text, text, owner=text, value=text, revision=1, changed_at=now, changed_by=text, note=text
    )
    script.answers["read_logs"] = fixed_console.log([text] * 90)
    link = WaitLink(text, text, text, 1.0, True)
    script.answers["why"] = lambda _: WhyReport((WaitChain((link,) * 3, text, text, text),))


@pytest.mark.parametrize("kind", TEXTS)
async def test_hostile_text_breaks_no_screen(
    coordinator: Scripted, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(fixed_console.a_home(tmp_path / "runs")))
    fill(coordinator, TEXTS[kind])
    seen = set[str]()
    async with fixed_console.standing(coordinator, SIZES[0]) as screen:
        await aeventually(lambda: screen.app.mirror.run is not None)
        for size in SIZES:
            await screen.resize(*size)
            for stop in (*VIEWS, *PAGES):
                await all_screens.walk_to(screen, stop)
                text = await all_screens.comes_to_be_sound(screen, *size)
                assert kind != "escapes" or not _ESCAPE_REMAINS.search(text), text
                seen |= {stop.name} if MARK in text else set()
                if kind == "markup" and stop.name in ("unit page", "record page"):
                    assert "[red]x[/red]" in text, f"it was parsed as markup:\n{text}"
    hidden = {stop.name for stop in (*VIEWS, *PAGES)} - seen
    own = {"training", "step page", "help", "palette", "tasks again", "tasks of a file", "new key"}
    assert hidden <= own, f"the text is not shown on {hidden}"


async def test_result_of_millions_of_characters_can_be_unfolded(coordinator: Scripted) -> None:
    fixed_console.narrate(coordinator, "normal")
    body = "\n".join(f"{n} [red]\x1b[31m界\u202e and so on, and so on, and so on" for n in range(LINES))
    given: Any = story()
    given.turns[0]["tool_calls"][0]["result"] = body
    coordinator.answers["show_record"] = lambda _: given
    async with fixed_console.standing(coordinator, (80, 24), settings=Settings(ascii_only=True)) as screen:
        await aeventually(lambda: screen.app.mirror.run is not None)
        await all_screens.walk_to(screen, all_screens.Stop("record", ("7", "end", "enter")))
        await screen.shows("shop.lookup")
        for key, text in (("f", "and so on"), ("end", "more signs;"), ("f", "more lines, f unfolds")):
            await screen.press(key)
            await screen.shows(text)
            await all_screens.comes_to_be_sound(screen, 80, 24)

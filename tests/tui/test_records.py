"""Trajectories and steps in the console: asked for while they are looked at, turn by turn."""

from __future__ import annotations

from typing import Any

from agentrl.errors import RefusedError
from agentrl.protocol import data
from tests.cli.scripted import Scripted
from tests.tui.conftest import HOSTILE, opened, populate
from tests.tui.test_screens import whole
from tests.waiting import aeventually

RECORD = "shop/train/0/000012#r1.s3.a1"


def row(id: str, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "status": "finished",
        "outcome": "answered",
        "turns": 2,
        "generated_tokens": 40,
        "score": 1.0,
    } | more


def story(text: str = "") -> data.RecordStory:
    call = {"versions": [[3, 30], [4, 10]], "engine": "engine-0", "seconds": 0.25, "new_prompt_tokens": 12}
    tool = {
        "server": "shop", "tool": "lookup", "arguments": {"item": text or "flour"}, "status": "timeout",
        "error_class": "infrastructure", "latency_s": 5.0, "result": text,
    }  # fmt: skip
    said = "\n".join(f"line {n} {text}" for n in range(9))
    return data.RecordStory(
        record=row(RECORD, oldest_version=3, newest_version=4),
        task={"query": f"what does it cost {text}"},
        ending={"sentence": "answered (policy)"},
        turns=(
            {
                "index": 0,
                "text": said,
                "reason": "",
                "call": call,
                "parsed": [{"error": "no bracket"}],
                "tool_calls": [tool],
            },
        ),
        attempts=(row(RECORD), row("shop/train/0/000012#r1.s3.a0", outcome="engine died")),
        training={"advantage": 0.5, "trained_in": ["trainer-0.1@1/000007"]},
    )


def answers(coordinator: Scripted, text: str = "") -> list[data.ListRows]:
    """The steward's answers, and what it was asked."""
    asked: list[data.ListRows] = []

    def records(args: Any) -> data.Page:
        asked.append(args)
        if "nonsense" in args.filter:
            raise RefusedError("There is no field named nonsense.", hint="Did you mean score?")
        running = row(
            "shop/train/0/000013#r0.s0.a0", status="running", doing={"what": "tool call shop.lookup", "age_s": 42}
        )
        return data.Page((running, row(RECORD, error=text)))

    coordinator.answers["list_records"] = records
    coordinator.answers["show_record"] = lambda _: story(text)
    metrics = {"reward_mean": 0.75, "loss": -0.01, "gradient_norm": 1.5}
    step = {"id": "trainer-0.1@1/000007", "status": "committed", "metrics": metrics, "counts": {"records": 64}}
    coordinator.answers["list_steps"] = lambda _: data.Page((step,))
    coordinator.answers["show_step"] = lambda _: data.Story(step, (row(RECORD),), 63)
    sample = data.ToolErrorSample(RECORD, f"{RECORD}/t0.0", text)
    group = data.ToolErrorGroup("shop", "lookup", "malformed", "policy", f"no bracket {text}", 192, samples=(sample,))
    coordinator.answers["tool_errors"] = lambda _: [group]
    return asked


async def test_a_trajectory_is_seen_turn_by_turn(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        await screen.press("7")
        await screen.shows(RECORD, "running", "tool call shop.lookup, 42s", "answered")
        await screen.press("end", "enter")
        await screen.shows("answered (policy)", "v3×30 v4×10 at engine-0", "shop.lookup(item='flour') timeout")
        await screen.shows("cannot be read as a call: no bracket", "engine died", "trained in trainer-0.1@1/000007")
        assert "line 8" not in screen.text
        await screen.press("f")
        await screen.shows("line 8")
        await screen.press("escape")
        await screen.shows("RECORD")


async def test_a_filter_goes_to_the_steward_when_it_is_whole(coordinator: Scripted) -> None:
    populate(coordinator)
    asked = answers(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("slash")
        await screen.type("score>0.5")
        assert {args.filter for args in asked} == {""}
        await screen.press("enter")
        await aeventually(lambda: asked[-1].filter == "score>0.5")
        await screen.press("slash")
        await screen.type("nonsense")
        await screen.press("enter")
        await screen.shows("There is no field named nonsense. Did you mean score?")


async def test_errors_of_tools_lead_to_a_trajectory_and_steps_to_their_records(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("e")
        await screen.shows("192", "shop.lookup", "malformed", "no bracket")
        await screen.press("enter")
        await screen.shows("answered (policy)")
        await screen.press("8")
        await screen.shows("trainer-0.1@1/000007", "0.75", "64")
        await screen.press("enter")
        await screen.shows("gradient_norm 1.5", "its records (1 of 64)", RECORD)


async def test_what_models_and_tools_said_breaks_no_screen(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator, HOSTILE * 200)
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        for keys in (["7"], ["end", "enter"], ["f"], ["end"], ["escape"], ["e"], ["8"]):
            await screen.press(*keys)
            await screen.shows("data")
            whole(screen, 80, 24)


async def test_without_anybody_who_knows_that_is_said(coordinator: Scripted) -> None:
    populate(coordinator)

    def nobody(_: Any) -> data.Page:
        raise RefusedError("The run has no steward.")

    coordinator.answers["list_records"] = nobody
    async with opened(coordinator.state_dir) as screen:
        await screen.press("7")
        await screen.shows("The run has no steward.", "no records")

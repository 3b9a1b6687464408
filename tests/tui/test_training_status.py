"""The blocks about learning in the overview show every known number of the steps and no unknown one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrl.errors import UnavailableError, UsageError
from agentrl.protocol import rows
from agentrl.protocol.data_commands import ListRows, Page
from agentrl.telemetry import learning_metrics
from tests.cli.scripted import Scripted
from tests.tui import all_screens, fixed_console
from tests.tui.all_screens import Stop
from tests.tui.conftest import opened, populate
from tests.tui.test_curves import trained
from tests.tui.test_screens import whole
from tests.waiting import aeventually
from tui.action_registry import ACTIONS
from tui.model import overview_blocks, training_status
from tui.model.curves import Point
from tui.model.mirror import Mirror
from tui.model.styled_text import Line, width_of
from tui.model.training_status import TrainingFacts

NOW = 1e9
MINUTE = 60.0


def text(lines: list[Line]) -> str:
    return "\n".join("".join(part.text for part in line) for line in lines)


def steps(count: int, **metrics: Any) -> list[Point]:
    """One step a minute, the newest ten seconds ago."""
    made = []
    for number in range(count):
        values = {name: of(number) if callable(of) else of for name, of in metrics.items()}
        made.append(Point(f"s{number}", number, NOW - 10 - MINUTE * (count - 1 - number), values))
    return made


def reported(**metrics: float) -> rows.UnitRow:
    return rows.UnitRow("trainer-0", "trainer", "trainer", rows.UnitState.READY, metrics=metrics)


def test_learning_block_shows_intervals_hourly_change_and_time_left() -> None:
    points = steps(120, reward_mean=lambda n: 0.5 + (n % 2) * 0.2 if n >= 60 else 0.1)
    seen = TrainingFacts(points)
    trainer = reported(step=120, steps_wanted=240, evaluation=0.4, evaluation_margin=0.05)
    found = training_status.report([trainer], seen)
    told = text(training_status.learned(found, seen, NOW))
    assert "evaluation 0.4 ± 0.05" in told
    assert "reward 0.6 ± 0.065 (+0.5 in 60m)" in told
    assert "step 120 of 240  one in 60s  time left 2h00" in told


def test_change_of_an_evaluation_refers_to_the_shown_value() -> None:
    """Every step repeats the newest evaluation, so equal values in a row must not be averaged."""
    seen = TrainingFacts(steps(30, evaluation=lambda n: 0.0 if n < 5 else 0.98 if n < 25 else 0.96))
    found = training_status.report([reported(evaluation=0.95)], seen)
    assert text(training_status.learned(found, seen, NOW)).startswith("evaluation 0.95 (+0.95 in 29m)")


def test_run_that_trained_nothing_does_not_look_complete() -> None:
    def told(**metrics: float) -> str:
        return text(
            training_status.learned(
                training_status.report([reported(**metrics)], TrainingFacts()), TrainingFacts(), NOW
            )
        )

    assert told(step=2, steps_wanted=2, steps_without_training=2).endswith("step 2 of 2  complete  nothing was trained")
    assert told(step=2, steps_wanted=9, steps_without_training=2).endswith("step 2 of 9  nothing was trained")
    assert told(step=2, steps_wanted=2, steps_without_training=0).endswith("step 2 of 2  complete")


def test_few_steps_give_no_trend_and_unknown_numbers_are_left_out() -> None:
    seen = TrainingFacts(steps(3, reward_mean=0.5))
    told = text(training_status.learned(training_status.report([], seen), seen, NOW))
    assert "(" not in told
    assert "evaluation" not in told
    assert "time left" not in told
    assert training_status.data(training_status.report([], TrainingFacts()), TrainingFacts(), 2.0) == []
    assert training_status.policy(training_status.report([reported(entropy=float("nan"))], TrainingFacts())) == []


def ended(reason: str = "done: complete: all 30 steps are done; version 31", **metrics: float) -> rows.UnitRow:
    """A trainer that has ended. A coordinator that starts after that has no metrics of it."""
    return rows.UnitRow(
        "trainer-0", "trainer", "trainer", rows.UnitState.STOPPED, reason=reason, done=True, metrics=metrics
    )


def test_last_evaluation_and_step_are_known_without_a_trainer_row() -> None:
    evaluated = {"evaluation": 0.9, "evaluation_margin": 0.02}
    seen = TrainingFacts(steps(30, evaluation=0.5, evaluation_margin=0.1), evaluated=evaluated)
    found = training_status.report([ended()], seen)
    told = text(training_status.learned(found, seen, NOW))
    assert "evaluation 0.9 ± 0.02" in told
    assert "step 29" in told
    assert told.endswith("step 29  complete"), "a complete run has no pace"
    assert training_status.report([reported(evaluation=0.95)], seen).get("evaluation") == 0.95, (
        "the row of a living trainer takes precedence"
    )


def test_complete_run_shows_its_last_evaluation_and_the_next_actions() -> None:
    def complete(row: rows.UnitRow, seen: TrainingFacts) -> str:
        return text(
            training_status.completion(training_status.report([row], seen), overview_blocks.what_next(ACTIONS, up=True))
        )

    seen = TrainingFacts(steps(30), evaluated={"evaluation": 0.9, "evaluation_margin": 0.02})
    assert complete(ended(), seen) == (
        "all 30 steps are done; version 31; last evaluation 0.9 ± 0.02\n"
        "8 C checkpoints · 7 X export whole · agentrl down ends the run"
    )
    assert complete(reported(step=29, steps_wanted=30), seen) == "", (
        "a run is not complete before its trainer has ended"
    )
    mirror = Mirror()
    mirror.put("unit/trainer-0", ended(evaluation=0.9))
    lines = overview_blocks.blocks(
        mirror, None, NOW, 78, 20, TrainingFacts(), overview_blocks.what_next(ACTIONS, up=True)
    )
    assert [line[0].text.strip() for line in lines][:3] == ["Needs you", "Complete", ""]
    assert all("…" not in part.text for line in lines[:3] for part in line), "at 80 columns"


def test_forbidden_next_actions_are_not_suggested() -> None:
    watched = [action for action in ACTIONS if action.id != "records.export"]
    assert text([overview_blocks.what_next(watched, up=False)]) == "8 C checkpoints"


def test_data_block_shows_age_bound_and_drop_reasons() -> None:
    seen = TrainingFacts(
        steps(20, age_mean=1.5, stale_records=1.0, broken_records=lambda n: n == 19, groups_without_signal=2)
    )
    told = text(training_status.data(training_status.report([reported(valid_share=0.4)], seen), seen, 1.0))
    assert "valid 40% ! ≥0.5" in told
    assert "age 1.5 of 1 " in told
    assert "dropped in 10 steps 10 too old, 1 broken, 20 groups without signal" in told


def test_policy_block_shows_every_number_with_its_healthy_band() -> None:
    trainer = reported(
        entropy=0.3, entropy_kept=0.4, mismatch_over_limit=0.2, weight_mean=1.0, ess=0.9, accepted_share=0.7,
        gradient_norm=3.0, gradient_over_median=1.0, tokens_per_record=120.0, length_jump=1.1,
    )  # fmt: skip
    told = text(training_status.policy(training_status.report([trainer], TrainingFacts())))
    assert "entropy 0.3 ×0.4 ! ≥0.5" in told
    assert "mismatch 0.2 ≤1" in told
    assert "drift 1 0.5–2" in told
    assert "accepted 0.7 ! ≥0.8" in told
    assert "gradient 3 ×1 ≤10" in told
    assert "length 120 ×1.1 0.5–2" in told
    assert all(
        width_of(line) <= 66 for line in training_status.policy(training_status.report([trainer], TrainingFacts()))
    )


def test_band_of_a_ratio_is_hidden_without_the_ratio() -> None:
    told = text(
        training_status.policy(training_status.report([reported(entropy=0.05, weight_mean=1.0)], TrainingFacts()))
    )
    assert told.split() == ["entropy", "0.05", "drift", "1", "0.5–2"]


def test_step_without_training_data_keeps_the_numbers_before_it() -> None:
    points = steps(5, entropy=lambda n: 0.5 + n)
    empty = Point("e", 6, NOW, {"reward_mean": 1.0})
    assert training_status.report([], TrainingFacts([*points, empty])).get("entropy") == 4.5


@settings(max_examples=40)
@example(0, 0, {"reward_mean": 2e289, "stale_records": 1e308, "groups_without_signal": 1e308}, 24, 100)
@given(
    st.integers(0, 6),
    st.integers(0, 6),
    st.dictionaries(st.sampled_from(sorted(learning_metrics.LEARNING)), st.floats(allow_nan=True), max_size=40),
    st.integers(1, 24),
    st.integers(60, 300),
)
def test_all_blocks_fit_the_screen(
    alerts: int, operations: int, metrics: dict[str, float], height: int, width: int
) -> None:
    mirror = Mirror()
    for n in range(alerts):
        alert = rows.AlertRow(f"a{n}", "a", "x", rows.Severity.PAGE, rows.AlertState.FIRING, "bad " * 40, NOW)
        mirror.put(f"alert/a{n}", alert)
    for n in range(operations):
        state = rows.OperationState.RUNNING
        mirror.put(f"op/{n}", rows.OperationRow(f"{n}", "scale", "scale " * 40, "ann", state, NOW - 5))
    mirror.put("unit/trainer-0", reported(**metrics))
    mirror.put("pulse", rows.BottleneckRow("trainer waits " * 30, tools=(rows.ToolLoad("shop.lookup" * 9, 1.0, 1.0),)))
    mirror.put("host/far", rows.HostRow("far", "up", disk_full_in_s=60.0))
    lines = overview_blocks.blocks(
        mirror, None, NOW, width, height, TrainingFacts(steps(30, **metrics), NOW, NOW, 3, NOW)
    )
    assert len(lines) <= max(height, min(3, max(1, alerts)))
    assert {width_of(line) for line in lines} <= {width}
    assert lines[0][0].text.startswith("Needs you"), "alerts are never cut"


async def test_overview_queries_data_that_the_feed_does_not_carry(coordinator: Scripted) -> None:
    trained(coordinator)
    populate(coordinator)
    coordinator.rows["unit/trainer-0"] = reported(step=39, steps_wanted=50, evaluation=0.4)
    at = coordinator.answers["list_steps"](ListRows(limit=1)).rows[0]["committed_at"]
    coordinator.answers["list_checkpoints"] = lambda _: Page(({"id": "c", "step": 36, "at": at},))
    coordinator.answers["list_versions"] = lambda _: Page(({"id": 3, "announced_at": at},))
    coordinator.answers["list_records"] = lambda _: Page(({"id": "r", "finished_at": at},))
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.shows(
            "step 39 of 50", "last publication", "last record", "3 steps since checkpoint 36", "reward 0.8"
        )
        whole(screen, 80, 24)


async def test_end_of_a_run_is_read_from_its_versions_after_a_coordinator_restart(
    coordinator: Scripted,
) -> None:
    trained(coordinator)
    coordinator.rows["unit/trainer-0"] = ended()
    version: dict[str, Any] = {"id": 31, "announced_at": datetime(2001, 9, 9, tzinfo=UTC)}

    def versions(sent: ListRows) -> Page:
        return Page(({**version, "evaluated": {"evaluation": 0.9}} if sent.filter == "evaluation=done" else version,))

    coordinator.answers["list_versions"] = versions
    coordinator.answers["list_checkpoints"] = coordinator.answers["list_records"] = lambda _: Page()
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.shows("all 30 steps are done; version 31; last evaluation 0.9", "C checkpoints", "agentrl down")
        whole(screen, 80, 24)


async def test_old_steward_without_evaluations_answers_all_other_queries(
    coordinator: Scripted,
) -> None:
    trained(coordinator)
    populate(coordinator)
    coordinator.rows["unit/trainer-0"] = reported(step=39, steps_wanted=50, evaluation=0.4)

    def versions(sent: ListRows) -> Page:
        if sent.filter:
            raise UsageError("The query 'evaluation=done' cannot be understood.")
        return Page()

    coordinator.answers["list_versions"] = versions
    coordinator.answers["list_checkpoints"] = lambda _: Page(({"id": "c", "step": 36},))
    coordinator.answers["list_records"] = lambda _: Page()
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.shows("step 39 of 50", "3 steps since checkpoint 36")


async def test_earlier_answer_is_shown_with_its_age_after_another_view(coordinator: Scripted) -> None:
    trained(coordinator)
    for name in ("list_checkpoints", "list_versions", "list_records"):
        coordinator.answers[name] = lambda _: Page()
    told = coordinator.answers["list_steps"]

    def nobody(_: Any) -> None:
        raise UnavailableError("The steward is busy.")

    async with fixed_console.standing(coordinator, (80, 24)) as screen:
        await all_screens.walk_to(screen, Stop("overview", ("1",)))
        await aeventually(lambda: "last step" in screen.text, what="a first answer")
        assert "answered" not in screen.text
        await all_screens.walk_to(screen, Stop("tuning", ("5",)))
        coordinator.answers["list_steps"] = nobody
        fixed_console.let_pass(screen.app, 780.0)
        await all_screens.walk_to(screen, Stop("overview", ("1",)))
        await aeventually(lambda: "last step" in screen.text, what="the first screen")
        assert "answered 13 min ago: last step" in screen.text
        coordinator.answers["list_steps"] = told

        def asked_again() -> bool:
            screen.app.view._ask()  # type: ignore[attr-defined]
            screen.app._paint_new_data()
            return "last step" in screen.text and "answered" not in screen.text

        await aeventually(asked_again, what="the next answer")


async def test_help_of_the_overview_explains_its_terms(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir, (80, 48)) as screen:
        await screen.press("1", "question_mark")
        await screen.shows("what is shown")
        for _ in range(6):
            await screen.press("pagedown")
        await screen.shows("longest without any", "as a share of the limit")


def test_age_of_an_old_answer_is_counted_from_its_arrival() -> None:
    points = steps(30, reward_mean=0.9, stale_records=1.0)
    seen, trainer = (
        TrainingFacts(points, NOW - 5, NOW, 20, NOW - 60),
        reported(step=29, steps_wanted=59, reward_mean=0.5),
    )
    later, old = NOW + 800, replace(seen, old_s=800.0)
    found = training_status.report([trainer], old)
    assert "one in 60s  time left 30m" in text(training_status.learned(found, old, later)), (
        "the pace at the time of the answer"
    )
    assert "reward 0.5 " in text(training_status.learned(found, old, later)), "the trainer row is newer"
    assert text([training_status.moved(old, later)]).startswith(
        "answered 13 min ago: last step 10s before  last publication 5s before"
    )
    assert (
        training_status.at_risk(found, old, later).text == "9 steps since checkpoint 20 (14m ago, answered 13 min ago)"
    )
    assert text(training_status.data(found, old, None)) == "dropped in 10 steps 10 too old, answered 13 min ago"
    assert "answered" not in text(overview_blocks.blocks(Mirror(), None, NOW, 78, 20, seen))


def test_valid_and_infrastructure_are_shares_of_the_same_attempts() -> None:
    both = reported(valid_share=0.44, infrastructure_share=0.09)
    assert text(training_status.data(training_status.report([both], TrainingFacts()), TrainingFacts(), None)).split(
        "  "
    )[:2] == [
        "valid 44% ! ≥0.5",
        "infrastructure 56%",
    ]
    one = reported(infrastructure_share=0.09)
    assert "infrastructure 9%" in text(
        training_status.data(training_status.report([one], TrainingFacts()), TrainingFacts(), None)
    )


def test_shortened_bottleneck_still_names_its_cause() -> None:
    slow, waits = "shop.lookup p95 0.87 → 3.2 s since 12:04", "trainer waits 98% for batches; engines 1% busy"
    tools, model = f"episodes 93% in tools: {slow}", "episodes 81% in model calls"
    called = "shop.lookup 2.0/s p95 3.2 s"

    def shown(why: str, kind: str, width: int) -> list[str]:
        mirror = Mirror()
        lookup = rows.ToolLoad("shop.lookup", calls_per_s=2.0, p95_s=3.2)
        mirror.put("pulse", rows.BottleneckRow(f"{waits}; {why}", kind, since_at=NOW - 60, tools=(lookup,)))
        lines = ["".join(part.text for part in line) for line in overview_blocks.blocks(mirror, None, NOW, width, 3)]
        at = next(place for place, line in enumerate(lines) if line.startswith("Bottleneck"))
        return [line[12:].strip() for line in lines[at : at + 2]]

    assert shown(tools, "tools", 80) == [waits, f"{tools}, fo…"]
    assert shown(tools, "tools", 200) == [f"{waits}; {tools}, for 60 s", called]
    assert shown(model, "engines", 80) == [f"{model}; {waits}"[:67] + "…", called]
    assert shown(model, "engines", 200) == [f"{waits}; {model}, for 60 s", called]


def test_long_line_uses_free_rows_and_is_cut_without_them() -> None:
    mirror = Mirror()
    mirror.put("run", rows.RunRow("demo", "u" * 8, "running", started_at=NOW - 90))
    long = " ".join(f"word{n}" for n in range(30))
    for n in range(2):
        firing = rows.AlertState.FIRING
        mirror.put(f"alert/a{n}", rows.AlertRow(f"a{n}", "a", "s", rows.Severity.PAGE, firing, f"{n} {long}", NOW - 9))

    def seen(height: int) -> list[str]:
        found = overview_blocks.blocks(mirror, None, NOW, 78, height)
        assert {width_of(line) for line in found} == {78}
        return ["".join(part.text for part in line).rstrip() for line in found]

    assert [line.endswith("…") for line in seen(2)] == [True, True], "no row is free"
    three = seen(3)
    assert [line.endswith("…") for line in three] == [False, True, True]
    assert "[a]" in three[0]
    assert "[b]" in three[2], "the upper line is wrapped first"
    whole = seen(20)
    for n in range(2):
        of_one = whole[3 * n : 3 * n + 3]
        assert of_one[1].startswith(" " * 14)
        assert of_one[2].endswith("…"), "a line takes at most three rows"
        shown = " ".join(line[12:].strip() for line in of_one)
        assert f"{n} {' '.join(long.split()[:22])}" in shown


def test_overview_shows_a_cause_and_folds_its_consequences_into_one_line() -> None:
    mirror = Mirror()
    for age_s, id, cause in (
        (90, "no-signal", ""),
        (60, "no-step", "left-alone"),
        (70, "fails", "left-alone"),
        (30, "left-alone", ""),
    ):
        firing, since = rows.AlertState.FIRING, NOW - age_s
        row = rows.AlertRow(id, id, "s", rows.Severity.WARNING, firing, f"{id} fires", since, cause=cause)
        mirror.put(f"alert/{id}", row)
    lines = overview_blocks.blocks(mirror, None, NOW, 100, 20, TrainingFacts())
    shown = ["".join(span.text for span in line).rstrip() for line in lines]
    assert shown[0].endswith("left-alone fires (causes fails, no-step)")
    assert "[b]" in shown[1]
    assert shown[1].endswith("no-signal fires")
    assert "[c]" not in "".join(shown)

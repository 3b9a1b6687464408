"""A run that an operator changes with commands: scaling, lost engines and trainers, and knobs that are set and undone.

Invariants:
- all tests share one run, because its start takes a minute;
- the tests run in their order: the second and the third use the engine that the first adds, the fourth removes it, and
  each later test starts from the state that the one before left, so only tests at the end of the file can be skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ExitCode
from tests.e2e import onscreen
from tests.e2e.running import Run, running
from tests.e2e.test_data_plane import UP_WITHIN_S, up
from tests.small_run import data_plane, write_data
from tests.waiting import eventually

WITHIN_S = 180.0
BOUND, CHECKPOINT_EVERY = 2, 2
LOAD_S = 40.0
"""Long enough for the commands and consoles that show a hanging engine, on a busy machine. Shorter than the 45 s after
which the kernel breaks a file lease and opens the file.
"""
WEIGHTS = "model.safetensors"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run whose trainer makes steps. The tests below run in their order."""
    folder = tmp_path_factory.mktemp("operated")
    for made in running(folder, f"t-{uuid.uuid4().hex[:8]}", factor=1.0):
        write_data(folder)
        made.config |= data_plane()
        made.config["engines"] |= {"load_s": LOAD_S}
        made.config["training"] |= {"steps": 0, "bound": BOUND, "checkpoint_every": CHECKPOINT_EVERY}
        made.config["evaluation"] = {"every": 0}
        up(made)
        goes_on(made)
        yield made


# ---- state for the operator ----


def newest_step(run: Run) -> int:
    rows = run.cli("steps", "list", "--filter", "status = committed", "--sort", "-step", "--limit", "1")["rows"]
    return int(rows[0]["step"]) if rows else 0


def goes_on(run: Run, steps: int = 2) -> None:
    before = newest_step(run)
    eventually(lambda: newest_step(run) >= before + steps or None, within_s=WITHIN_S, what="steps")


def versions(run: Run) -> list[Any]:
    """All publications, the oldest first."""
    page = run.cli("versions", "list", "--sort", "id", "--limit", "1000")
    assert not page.get("after")
    return list(page["rows"])


def unit(run: Run, name: str) -> Any:
    return next((row for row in run.cli("status")["units"] if row["unit"] == name), None)


def serves_newest(run: Run, name: str, life: int) -> Any:
    """Returns the newest version when that incarnation serves it."""

    def served() -> Any:
        newest = versions(run)[-1]
        engines = newest.get("engines", {})
        assert engines.get(f"{name}.{life}") == "serving", newest
        return newest["id"]

    return eventually(served, within_s=WITHIN_S, what=f"{name}.{life} to serve the newest version")


def parked(run: Run, group: str) -> None:
    """Pause the group and wait until it has no work in progress."""
    run.cli("pause", group)

    def stands() -> bool:
        row = run.unit_row(f"{group}-0")
        return row.paused and (row.phase == "parked" or row.status.startswith("0 of "))

    eventually(lambda: stands() or None, within_s=WITHIN_S, what=f"{group} to stand")


def knob(run: Run, name: str) -> Any:
    return run.cli("tune", name)["knob"]


def in_force(run: Run, name: str, value: float | str) -> None:
    eventually(lambda: knob(run, name)["in_force"] == value or None, within_s=WITHIN_S, what=f"{name} = {value}")


def engines_called_by(run: Run, owner: str) -> set[str]:
    """The engines that its newest ended records called."""
    mine = ("--filter", f"owner = {owner} and finished_at != null", "--sort", "-finished_at", "--limit", "4")
    records = run.cli("records", "list", *mine)["rows"]
    turns = [turn for row in records for turn in run.cli("records", "show", row["id"])["turns"]]
    return {turn["call"]["engine"] for turn in turns}


# ---- scale up ----


def test_added_engine_and_sampler_share_the_work(run: Run) -> None:
    run.cli("scale", "sampler", "2", within_s=UP_WITHIN_S)
    run.cli("scale", "engine", "2", within_s=UP_WITHIN_S)
    serves_newest(run, "engine-1", 1)
    eventually(
        lambda: "engine-1.1" in engines_called_by(run, "sampler-1.1") or None,
        within_s=WITHIN_S,
        what="episodes of the new sampler at the new engine",
    )
    onscreen.recorded(run, (), "engine 2/2", "sampler 2/2")
    goes_on(run)
    assert {row["unit"]: row.get("restarts", 0) for row in run.cli("status")["units"] if row.get("restarts")} == {}


# ---- an engine that never finishes loading ----


def test_engine_that_hangs_in_loading_is_named_gets_no_calls_and_is_replaced(run: Run) -> None:
    parked(run, "trainer")
    stuck = serves_newest(run, "engine-0", 1)
    with never_opened(run.dir / versions(run)[-1]["path"] / WEIGHTS):
        run.cli("restart", "engine-1", within_s=UP_WITHIN_S)
        hangs_and_is_named(run, stuck)
        # The other engine continues, and the hanging one delays no publication.
        run.cli("resume", "trainer")
        goes_on(run)
        assert serves_newest(run, "engine-0", 1) > stuck
        row = run.wait_incarnation("engine-1", above=2, within_s=WITHIN_S)
    assert row.incarnation == 3
    (incident,) = [one for one in run.cli("events", "--kind", "incident") if one["unit"] == "engine-1"]
    assert f"Version {stuck} was not loaded within {LOAD_S:g} s" in str(incident)
    onscreen.recorded(run, ("2", "down", "i", "end"), "incident engine-1.2", f"Version {stuck} was not loaded")
    assert serves_newest(run, "engine-1", 3) > stuck


@contextlib.contextmanager
def never_opened(file: Path) -> Iterator[None]:
    """Opening the file hangs, as on a dead file server: the kernel asks this process to give up its lease, and it
    ignores that.
    """
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    held = os.open(file, os.O_RDWR)
    try:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(held)
        signal.signal(signal.SIGIO, before)


def hangs_and_is_named(run: Run, stuck: int) -> None:
    def loads() -> Any:
        row = unit(run, "engine-1")
        assert (row["state"], row.get("serving")) == ("ready", f"loading(v{stuck})"), row
        assert row["status"] == f"loading version {stuck}"
        return row

    def waits() -> Any:
        """The chain of the engine, which a short wait does not have yet."""
        return next((one for one in run.cli("why")["chains"] if one["links"][0]["who"] == "engine-1"), None)

    assert eventually(loads, within_s=WITHIN_S, what="an engine that loads").get("weights") is None
    assert eventually(waits, what="its wait")["culprit"] == f"version {stuck}"
    assert versions(run)[-1]["engines"] == {"engine-0.1": "serving"}
    onscreen.recorded(run, ("2", "down", "enter"), "engine-1.2", f"loading(v{stuck})")
    onscreen.live(run, ("w",), f"engine-1 ← version {stuck}", f"ends at: version {stuck}")


def test_run_with_one_dead_engine_of_two_is_degraded_and_continues(run: Run) -> None:
    before = run.unit_row("engine-1")
    run.kill(before.pid)

    def degraded() -> Any:
        row = run.run_row()
        assert row.state == "degraded"
        return row.reason

    assert "engine-1" in eventually(degraded, within_s=WITHIN_S, what="a run that shows it")
    dead = f"engine-1.{before.incarnation}"
    shown = ("events", "--kind", "incident")
    eventually(lambda: dead in str(run.cli(*shown)) or None, within_s=WITHIN_S, what="its incident")
    onscreen.recorded(run, ("2", "down", "i"), dead, "signal 9", after=time.time())
    goes_on(run)
    life = run.wait_incarnation("engine-1", above=before.incarnation).incarnation
    serves_newest(run, "engine-1", life)
    eventually(lambda: run.cli("status")["run"]["state"] == "running" or None, within_s=WITHIN_S, what="a complete run")


# ---- scale down ----


def test_removed_engine_and_sampler_are_drained_without_losing_records(run: Run) -> None:
    run.cli("scale", "engine", "1", within_s=WITHIN_S)
    run.cli("scale", "sampler", "1", within_s=WITHIN_S)
    assert not {row["unit"] for row in run.cli("status")["units"] if row.get("desired", True)} & {
        "sampler-1",
        "engine-1",
    }
    assert all(not name.startswith("engine-1.") for name in versions(run)[-1]["engines"])
    of_the_removed = ("records", "list", "--filter")
    assert run.cli(*of_the_removed, "owner = sampler-1.1 and status = running")["rows"] == []
    goes_on(run)
    assert run.cli(*of_the_removed, "outcome_class = infrastructure")["rows"] == [], (
        "the other units took over every call"
    )
    assert [one["unit"] for one in run.cli("events", "--kind", "incident") if "sampler" in one["unit"]] == []
    never_made = "finished_at != null and generated_tokens = 0 and score != null"
    assert run.cli("records", "list", "--filter", never_made)["rows"] == [], "a record without an answer has no score"
    run.cli("accounting")
    onscreen.recorded(run, (), "engine 1/1", "sampler 1/1")
    onscreen.recorded(run, ("3", "t", "enter"), "drains and stops sampler-1", "✓ succeeded", once="scale: drains")


# ---- death of the trainer ----


def test_new_lineage_reuses_no_version_and_staleness_spans_both_lineages(run: Run) -> None:
    run.cli("tune", "learning_rate", "5e-5", "--note", "calmer")
    in_force(run, "learning_rate", 5e-5)
    parked(run, "trainer")
    eventually(lambda: run.cli("staleness").get("ready") or None, within_s=WITHIN_S, what="records that are ready")
    parked(run, "sampler")
    before, trainer = versions(run), run.unit_row("trainer-0")
    run.kill(trainer.pid)
    run.wait_incarnation("trainer-0", above=trainer.incarnation, within_s=UP_WITHIN_S)
    after = versions(run)
    assert [(one["id"], one["parent"]) for one in after[:-1]] == [(one["id"], one["parent"]) for one in before]
    newest = after[-1]
    assert newest["id"] > before[-1]["id"]
    assert newest["lineage"] != before[-1]["lineage"]
    (stands_at,) = run.cli("checkpoints", "list", "--sort", "-step", "--limit", "1")["rows"]
    assert newest["parent"] == stands_at["version"]
    assert knob(run, "learning_rate")["in_force"] == 5e-5, "from the first step on"

    shown = run.cli("staleness")
    parents = {one["id"]: one["parent"] for one in after}
    assert shown["version"] == newest["id"]
    assert shown["ready"] == {str(age): count for age, count in ages_of_ready(run, parents, newest["id"]).items()}
    assert all(int(age) > 0 for age in shown["ready"]), (
        "records sampled before are older than the version that the trainer starts from"
    )
    onscreen.live(run, ("5", "b"), "│", "← → try another bound", *(f" {count}" for count in shown["ready"].values()))


def ages_of_ready(run: Run, parents: dict[int, int | None], newest: int) -> Counter[int]:
    """The ages of ready records, computed from lists alone: the distance in the tree of versions from the farthest
    version of a record to the newest one."""
    return Counter(max(distance(parents, version, newest) for version in one["versions"]) for one in ready(run))


def ready(run: Run) -> list[Any]:
    """The records with signal of groups that wait to be trained."""
    tasks = run.cli("tasks", "list", "--filter", "status = ready and signal = true", "--limit", "1000")["rows"]
    ids = {task["id"] for task in tasks}
    scored = run.cli("records", "list", "--filter", "status = scored", "--sort", "-finished_at", "--limit", "1000")
    return [record for record in scored["rows"] if record["task"] in ids]


def distance(parents: dict[int, int | None], one: int, other: int) -> int:
    ways = []
    for version in (one, other):
        way: list[int] = []
        at: int | None = version
        while at is not None:
            way.append(at)
            at = parents[at]
        ways.append(way)
    common = next(version for version in ways[0] if version in ways[1])
    return ways[0].index(common) + ways[1].index(common)


# ---- knobs ----


def test_change_of_the_bound_has_the_effect_of_its_preview(run: Run) -> None:
    old = {record["id"] for record in ready(run)}
    lineage, stands = versions(run)[-1]["lineage"], newest_step(run)
    report = run.cli("staleness")
    voids = {one["bound"]: one.get("voids_ready", 0) for one in report["previews"]}
    assert voids[0] == len(old) > 0
    preview = run.cli("tune", "bound", "0", "--preview")
    total = sum(report["ready"].values())
    (lost,) = preview["effect"]["loses"]
    assert lost.startswith(f"{voids[0]} of {total} ready records would be outside")
    assert "dropped" in lost
    *_, past = run.cli("tune", "min_range", "1000", "--dry-run")["effect"]["changes"]
    assert past.startswith("over the last "), past
    assert "would have had no signal" in past
    would = f"{voids[BOUND - 1] or 'none'} of {total} ready"
    onscreen.live(run, ("5", "b", "left"), f"at {BOUND - 1}: ", would, once="try another bound")
    assert knob(run, "bound")["value"] == BOUND, "a preview changes nothing"
    code, _ = run.cli("tune", "bound", "0", check=False)
    assert code == ExitCode.REFUSED, "a change that loses records needs consent"

    run.cli("tune", "bound", "0", "--yes")
    run.cli("resume", "trainer")
    run.cli("resume", "sampler")
    in_force(run, "bound", 0)
    mine = f"status = committed and lineage = {lineage} and step > {stands}"

    def trained_since() -> set[str]:
        """A step whose groups had no signal trains nothing."""
        steps = run.cli("steps", "list", "--filter", mine)["rows"]
        assert max((step["metrics"].get("age_max", 0.0) for step in steps), default=0.0) == 0
        return {record["id"] for step in steps for record in run.cli("steps", "show", step["id"])["records"]}

    trained = eventually(trained_since, within_s=WITHIN_S, what="records that trained since")
    assert not trained & old, "no record beyond the bound was trained"

    the_strategy_can_be_changed(run, at_least=len(old))
    run.cli("tune", "bound", "--undo")
    in_force(run, "bound", BOUND)
    goes_on(run)
    run.cli("accounting")


def the_strategy_can_be_changed(run: Run, *, at_least: int) -> None:
    """Dropped records are counted by duration. If the bound drops the long ones, the strategy `wait` waits for them."""
    hit = run.cli("staleness")["dropped"]
    assert [part["from_s"] for part in hit] == sorted(part["from_s"] for part in hit)
    assert sum(part["dropped"] for part in hit) >= at_least > 0
    assert all(part["dropped"] <= part["records"] for part in hit)
    onscreen.live(run, ("5", "b"), "too old to train, by how long they took: ≤")
    run.cli("tune", "strategy", "wait", "--note", "long tasks are starved")
    in_force(run, "strategy", "wait")
    onscreen.recorded(run, (), "strategy drop -> wait by ")
    goes_on(run)
    run.cli("tune", "strategy", "--undo")
    in_force(run, "strategy", "drop")


def test_tuned_values_survive_steward_and_coordinator_and_can_be_undone(run: Run) -> None:
    tuned = {"max_in_flight": (32, 24), "concurrency": (16, 12), "checkpoint_every": (2, 3)}
    for name, (_, new) in tuned.items():
        run.cli("tune", name, str(new))
    coordinator, steward = run.coordinator_pid(), run.unit_row("steward-0")
    run.kill(coordinator)
    run.kill(steward.pid)
    eventually(lambda: run.run_row().coordinator_pid not in (0, coordinator), within_s=WITHIN_S, what="a coordinator")
    run.wait_incarnation("steward-0", above=steward.incarnation, within_s=WITHIN_S)
    for name, (_, new) in tuned.items():
        in_force(run, name, new)
    for name, (old, _) in tuned.items():
        run.cli("tune", name, "--undo")
        in_force(run, name, old)
    assert knob(run, "learning_rate")["in_force"] == 5e-5, "undo changes only its own knob"


def test_nearly_full_disk_stops_only_new_work(run: Run) -> None:
    run.cli("tune", "disk_reserve_bytes", str(1 << 50))
    eventually(
        lambda: "is nearly full" in unit(run, "steward-0")["status"] or None,
        within_s=WITHIN_S,
        what="the steward's report",
    )
    eventually(lambda: not under_way(run) or None, within_s=WITHIN_S, what="running records to end")
    ended = newest_record(run)
    assert unit(run, "sampler-0")["state"] == "ready"
    run.cli("accounting")
    assert newest_record(run) == ended, "nothing was admitted"

    run.cli("tune", "disk_reserve_bytes", "--undo")
    eventually(
        lambda: "is nearly full" not in unit(run, "steward-0")["status"] or None,
        within_s=WITHIN_S,
        what="free space",
    )
    goes_on(run)


def under_way(run: Run) -> list[Any]:
    return list(run.cli("records", "list", "--filter", "status = open or status = running")["rows"])


def newest_record(run: Run) -> Any:
    return run.cli("records", "list", "--sort", "-created_at", "--limit", "1")["rows"][0]["id"]

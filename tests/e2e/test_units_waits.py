"""Wait chains of a real run: who waits for whom, why a unit is not started, and the cause."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import onscreen
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import eventually

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Three sidecars, units that wait in chains and in a circle, a trainer with a consumer, and an unplaceable unit."""
    for run in running(tmp_path_factory.mktemp("waits"), f"t-{uuid.uuid4().hex[:8]}"):
        # Supervision must not replace a hanging unit here.
        run.config["supervision"] |= {"suspect_after_s": 1.0, "dead_after_s": 60.0}
        run.sidecar("db", ["sleep", "1000"])
        run.sidecar("cache", ["sleep", "1000"], after=["db"])
        well = {"exec": ["test", "!", "-e", "{run_dir}/sick-{unit}"], "interval_s": 0.2, "failures": 1}
        run.sidecar("search", ["sleep", "1000"], after=["db"], live=well)
        run.unit("learner", "many_waits", "--waits", "2", "--on", "gatherer-0")
        run.unit("gatherer", "many_waits", "--waits", "1", "--on", "search-0")
        run.sidecar("judge", [PYTHON, str(PROGRAMS / "blocked_loop.py")], speaks=True)
        run.unit("asker", "many_waits", "--waits", "1", "--on", "judge")
        run.unit("left", "many_waits", "--waits", "1", "--on", "right-0")
        run.unit("right", "many_waits", "--waits", "1", "--on", "left-0")
        run.unit("weights", "fake_trainer", "--every", "0.4", "--waits-for", "cache-0")
        run.unit("consumer", "many_waits", "--waits", "1", "--on", "weights-0")
        run.unit("nameless", "many_waits", "--waits", "20")
        run.sidecar("big", ["sleep", "1000"], resources={"gpus": 512})
        run.sidecar("far", ["sleep", "1000"], hosts=["elsewhere"])
        run.sidecar("later", ["sleep", "1000"], after=["big"])
        run.up("--no-wait")
        for name in run.config["sidecars"]:
            if name not in ("big", "far", "later"):
                run.wait_state(f"{name}-0", "ready")
        yield run


def chain_of(run: Run, who: str, because: str) -> dict[str, Any]:
    """The wait chain of a unit in `agentrl why --json`, once it ends with that cause."""

    def found() -> bool:
        chain = next((c for c in run.client.why().chains if any(link.who == who for link in c.links)), None)
        assert chain is not None, f"{who} waits for nobody"
        assert because in chain.because, chain.because
        return True

    eventually(found, what=f"{who} to wait: {because}")
    return next(c for c in run.cli("why")["chains"] if any(link["who"] == who for link in c["links"]))


def links_of(chain: dict[str, Any]) -> list[tuple[str, str]]:
    return [(link["who"], link["on"]) for link in chain["links"]]


@pytest.mark.parametrize(
    ("who", "culprit", "order", "because", "links"),
    [
        (
            "learner-0",
            "search-0",
            "sick-search-0",
            "liveness probe: exit 1",
            [("learner-0", "gatherer-0"), ("learner-0", "gatherer-0"), ("gatherer-0", "search-0")],
        ),
        ("asker-0", "judge-0", "block-judge-0", "its event loop has not turned for", [("asker-0", "judge-0")]),
    ],
    ids=["a sidecar", "a unit"],
)
def test_hanging_unit_is_the_named_cause(
    run: Run, who: str, culprit: str, order: str, because: str, links: list[tuple[str, str]]
) -> None:
    def is_at_work() -> bool:
        chain = chain_of(run, who, "is at work")
        assert (chain["culprit"], links_of(chain)) == (culprit, links)
        return True

    # A unit that has not reported its wait yet ends a shorter chain.
    eventually(is_at_work, what=f"{culprit} at work")
    life = run.unit_row(culprit).incarnation
    file = Path(run.dir) / order
    file.touch()
    path = " ← ".join(dict.fromkeys(name for link in links for name in link))

    def is_named() -> bool:
        chain = chain_of(run, who, because)
        output = run.raw("why").stdout
        assert (chain["culprit"], links_of(chain)) == (culprit, links)
        ages = [link["age_s"] for link in chain["links"]]
        assert min(ages) > 0
        assert f"{path}, {max(ages):.0f} s: {culprit} is suspect" in chain["sentence"]
        assert f"{path}, " in output
        assert f"culprit: {culprit}: is suspect for " in output
        assert because in output
        return True

    try:
        eventually(is_named, what=f"{culprit} to be named")
        onscreen.live(run, ("w",), f"culprit: {culprit}", because[:40])
    finally:
        file.unlink()
    eventually(is_at_work, what=f"{culprit} at work again")
    assert run.unit_row(culprit).incarnation == life


def test_two_units_that_wait_for_each_other_are_a_circle(run: Run) -> None:
    chain = chain_of(run, "left-0", "a circle of waits: left-0 ← right-0 ← left-0")
    assert set(links_of(chain)) == {("left-0", "right-0"), ("right-0", "left-0")}
    assert "a circle of waits: left-0 ← right-0 ← left-0" in run.raw("why").stdout


def test_resources_without_a_unit_are_one_chain(run: Run) -> None:
    chain = chain_of(run, "nameless-0", "no unit of the run")
    assert chain["because"] == "is, like 19 others, no unit of the run, so nothing more is known of it"
    assert sorted(on for _, on in links_of(chain)) == sorted(f"record {number}" for number in range(20))

    def is_reported() -> bool:
        """A wait of less than a second is not reported."""
        about = [line for line in run.raw("why").stdout.splitlines() if "nameless-0" in line]
        assert len(about) == 4, about
        assert "nameless-0 has 18 more such waits" in about[-1]
        return True

    eventually(is_reported, what="the waits of nameless-0")


def test_wait_for_a_trainer_shows_its_versions(run: Run) -> None:
    def version() -> int:
        return run.unit_row("weights-0").weights or 0

    first = version()
    eventually(lambda: version() >= first + 3, what="three versions more")
    # Between two versions the trainer waits too, so the chain of its consumer continues to the cause of the trainer.
    seen: set[str] = set()

    def both() -> bool:
        chains = run.client.why().chains
        seen.update(c.culprit for c in chains if any(link.who == "consumer-0" for link in c.links))
        return seen == {"weights-0", "cache-0"}

    eventually(both, what="the trainer at work, and the trainer waiting")
    run.cli("pause", "weights")
    chain = chain_of(run, "consumer-0", "is paused")
    assert chain["culprit"] == "weights-0"
    stands = eventually(lambda: run.unit_row("weights-0").phase == "parked" and (version() or 0))
    run.cli("resume", "weights")
    eventually(lambda: version() > stands, what="versions after the pause")
    row = run.unit_row("weights-0")
    assert (row.incarnation, row.restarts) == (1, 0)


@pytest.mark.parametrize(
    ("unit", "reason"),
    [
        ("big-0", lambda host: f"no host can take it ({host}: needs 512 GPU, 0 of 0 free)"),
        ("far-0", lambda host: f"no host can take it ({host}: not among its hosts; elsewhere: has not registered)"),
        ("later-0", lambda host: "waits for big to be ready"),
    ],
)
def test_unplaceable_unit_is_pending_with_its_reason(run: Run, unit: str, reason: Callable[[str], str]) -> None:
    host = run.host()
    expected = reason(host.host).replace("0 of 0", f"{host.facts.gpus} of {host.facts.gpus}")
    row = next(row for row in run.cli("status")["units"] if row["unit"] == unit)
    assert row["state"] == "pending"
    assert row["reason"] == expected
    assert row.get("incarnation", 0) == 0

    def is_about_to_fire() -> bool:
        """The alert may have been pending before any host was connected."""
        alert = run.rows()[f"alert/unit-pending:{unit}"]
        assert alert.sentence == f"{unit} should run but is not started: {expected}."
        assert alert.suggest == "agentrl why"
        return True

    eventually(is_about_to_fire, what="the alert that is about to fire")
    # On a busy machine another unit may be suspect for a moment.
    eventually(lambda: run.cli("status")["run"]["state"] == "starting", what="a run that is not complete yet")


def test_dependents_of_an_unplaceable_unit_show_the_reason(run: Run) -> None:
    chain = chain_of(run, "later-0", "needs 512 GPU")
    assert chain["culprit"] == "big-0"
    assert chain["sentence"].startswith("later-0 ← big-0, ")


def test_suspect_unit_recovers_after_a_coordinator_restart(run: Run) -> None:
    """The new coordinator never saw the silence, so it has to clear the state explicitly."""
    life = run.wait_state("judge-0", "ready").incarnation
    former = run.coordinator_pid()
    file = Path(run.dir) / "block-judge-0"
    file.touch()
    try:
        run.wait_state("judge-0", "suspect")
        run.kill(former)
    finally:
        file.unlink()
    eventually(lambda: run.coordinator_pid() != former, what="another coordinator")
    assert run.wait_state("judge-0", "ready").incarnation == life
    eventually(lambda: "has not registered" in run.unit_row("far-0").reason, what="the pending alert to be sent again")

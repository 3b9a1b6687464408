"""A chaos test: `up`, faults, the end of the job, verification, `down`.

Invariant: no process of the run is left on this machine; its directory stays, with the log of the faults.
"""

from __future__ import annotations

import random
import time
import traceback
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from agentrl.errors import AgentrlError
from tests.chaos.fault_injection import FaultInjector
from tests.chaos.fault_schedule import ScheduledFault, ranks_of, schedule, steps_of
from tests.chaos.faults import required
from tests.chaos.run_under_test import LEADS, RunUnderTest
from tests.chaos.store_reader import ChangeRecorder
from tests.chaos.verification import Finding, Verification, describe

STEP_WITHIN_S = 400.0
"""The most time from a fault to the step at which the next fault is due."""
END_WITHIN_S = 900.0
SOON = 12
"""More steps than a trainer makes until a changed number of steps drains and replaces it."""


@dataclass(slots=True)
class Result:
    seed: int
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)

    def report(self) -> str:
        head = f"seed {self.seed}: {self.seconds:.0f} s, {len(self.problems)} problems"
        return "\n".join([head, *self.figures, *(f"PROBLEM: {problem}" for problem in self.problems)])


def run_chaos(folder: Path, *, seed: int, minutes: float, only: str = "") -> Result:
    due = schedule(seed, minutes, only)
    result = Result(seed)
    began = time.monotonic()
    run = RunUnderTest(folder, f"c-{uuid.uuid4().hex[:8]}", steps=steps_of(due), chance=seed, ranks=ranks_of(seed))
    injector = FaultInjector(run, random.Random(f"victims {seed}"), folder / "faults.log")
    try:
        run.begin()
        with ChangeRecorder(run.store) as recorder:
            _inject_all(injector, due, minutes)
            injector.wait_for_recovery()
        proof = Verification(run)
        result.problems = _problems(run, list(proof.findings(recorder)))
        result.figures = [*_figures(injector, proof), *injector.figures(), _account(run)]
        result.problems += _down(run)
    except Exception as failed:  # noqa: BLE001 - reported with its traceback
        # The boundary of the test: an error is a result, and the run is still taken down.
        injector.log("".join(traceback.format_exception(failed)))
        result.problems.append(f"{type(failed).__name__}: {failed}")
        result.figures = [*injector.figures(), _account(run)]
    finally:
        try:
            run.close()
        except AssertionError as left:
            result.problems.append(str(left))
    result.seconds = time.monotonic() - began
    return result


def _inject_all(injector: FaultInjector, due: list[ScheduledFault], minutes: float) -> None:
    for place, one in enumerate(due):
        injector.steps(one.at_step, within_s=STEP_WITHIN_S)
        if place >= len(required(injector.run.ranks)) and time.monotonic() - injector.began > 60 * minutes:
            injector.log(f"{minutes:g} minutes are over: {len(due) - place} faults are left out")
            break
        injector.log(f"step {injector.run.store.committed()}: {one.name}")
        one.fault(injector)
        injector.count(one.name)
    injector.wait_for_recovery()
    goal = min(injector.run.steps, injector.run.store.committed() + SOON)
    injector.log(f"{goal} steps are enough")
    injector.run.change_steps(goal)
    injector.steps(injector.run.steps, within_s=END_WITHIN_S)
    injector.until(lambda: injector.run.unit_row(LEADS).state == "stopped", "the end of the job", within_s=END_WITHIN_S)
    injector.log("the job is done")
    # Verification reads the store first and then the ledger of the tools, so nothing may change between these reads.
    # An admitted task may still get another attempt.
    under_way = {"Record": {"status": {"$in": ["open", "running"]}}, "Task": {"status": "admitted"}}
    injector.until(
        lambda: not any(injector.run.store.count(name, filter) for name, filter in under_way.items()),
        "the last episodes to end",
        within_s=END_WITHIN_S,
    )


def _problems(run: RunUnderTest, findings: list[Finding]) -> list[str]:
    problems = []
    for finding in findings:
        problems.append(str(finding))
        problems += describe(run, [name.partition(" ")[0].rstrip(":") for name in finding.documents])
    account = run.account()
    for problem in account.problems:
        problems.append(f"the account: {problem.sentence()}")
        problems += describe(run, problem.examples)
    return problems


def _account(run: RunUnderTest) -> str:
    """All sums, if the store can be read."""
    try:
        return f"account: {msgspec.json.encode(run.account()).decode()}"
    except (AgentrlError, OSError) as away:
        return f"the account cannot be read: {away}"


def _figures(injector: FaultInjector, proof: Verification) -> list[str]:
    ended: dict[str, int] = {}
    for record in proof.records.values():
        kind = record["outcome_class"] or record["status"]
        ended[kind] = ended.get(kind, 0) + 1
    rolled_back = sum(step["status"] == "rolled_back" for step in proof.steps)
    released = sum(step["status"] == "released" for step in proof.steps)
    trained = sum(len(step["records"]) for step in proof.committed_steps)
    faults = sum(injector.faults.values())
    return [
        f"{faults} faults: " + ", ".join(f"{name} {times}" for name, times in sorted(injector.faults.items())),
        f"{len(proof.committed_steps)} steps stand, {rolled_back} were rolled back, {released} released; "
        f"{len(proof.lineages)} lineages, {len(proof.publications)} versions",
        f"{len(proof.records)} records: " + ", ".join(f"{kind} {count}" for kind, count in sorted(ended.items())),
        f"{trained} trained; {len(proof.tool_calls)} tool calls, {len(proof.ledger)} executed",
    ]


def _down(run: RunUnderTest) -> list[str]:
    code, proof = run.cli("down", "--yes", check=False, within_s=180)
    if code != 0 or proof["left"] or not proof["proven"]:
        return [f"down ended with {code} and left {proof.get('left')}: {proof.get('lines')}"]
    return []

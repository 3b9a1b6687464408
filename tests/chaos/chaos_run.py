"""A run under a storm, from `up` to the proof of its books.

Invariant: whatever happens, nothing of the run is left on this machine; its directory is left, with the log of the
storm in it.
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
from tests.chaos.fault_injection import Storm
from tests.chaos.fault_schedule import Due, schedule, steps_of
from tests.chaos.faults import REQUIRED
from tests.chaos.run_under_test import Arena
from tests.chaos.store_reader import Witness
from tests.chaos.verification import Finding, Proof, story

STEP_WITHIN_S = 400.0
"""From any blow to the step after which the next one is due."""
END_WITHIN_S = 900.0
SOON = 12
"""Steps, more than are taken before a trainer that is replaced begins to drain."""


@dataclass(slots=True)
class Result:
    seed: int
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)

    def report(self) -> str:
        head = f"seed {self.seed}: {self.seconds:.0f} s, {len(self.problems)} problems"
        return "\n".join([head, *self.figures, *(f"PROBLEM: {problem}" for problem in self.problems)])


def survive(folder: Path, *, seed: int, minutes: float, only: str = "") -> Result:
    due = schedule(seed, minutes, only)
    result = Result(seed)
    began = time.monotonic()
    arena = Arena(folder, f"c-{uuid.uuid4().hex[:8]}", steps=steps_of(due), chance=seed)
    storm = Storm(arena, random.Random(f"victims {seed}"), folder / "storm.log")
    try:
        arena.begin()
        with Witness(arena.books) as witness:
            _strike(storm, due, minutes)
            storm.calm()
        proof = Proof(arena)
        result.problems = _problems(arena, list(proof.findings(witness)))
        result.figures = [*_figures(storm, proof), *storm.figures(), _account(arena)]
        result.problems += _down(arena)
    except Exception as failed:  # noqa: BLE001 - told with its traceback
        # The boundary: a storm that cannot be ended well is a result too.
        storm.say("".join(traceback.format_exception(failed)))
        result.problems.append(f"{type(failed).__name__}: {failed}")
        result.figures = [*storm.figures(), _account(arena)]
    finally:
        try:
            arena.close()
        except AssertionError as left:
            result.problems.append(str(left))
    result.seconds = time.monotonic() - began
    return result


def _strike(storm: Storm, due: list[Due], minutes: float) -> None:
    for place, one in enumerate(due):
        storm.steps(one.at_step, within_s=STEP_WITHIN_S)
        if place >= len(REQUIRED) and time.monotonic() - storm.began > 60 * minutes:
            storm.say(f"{minutes:g} minutes are over: {len(due) - place} blows are left out")
            break
        storm.say(f"step {storm.arena.books.committed()}: {one.name}")
        one.blow(storm)
        storm.struck(one.name)
    storm.calm()
    goal = min(storm.arena.steps, storm.arena.books.committed() + SOON)
    storm.say(f"{goal} steps are enough")
    storm.arena.aim_at(goal)
    storm.steps(storm.arena.steps, within_s=END_WITHIN_S)
    storm.until(
        lambda: storm.arena.unit_row("trainer-0").state == "stopped", "the end of the job", within_s=END_WITHIN_S
    )
    storm.say("the job is done")
    # The proof reads the store and what the tools wrote one after the other: nothing may move between the two.
    under_way = {"status": {"$in": ["open", "running"]}}
    storm.until(
        lambda: storm.arena.books.count("Record", under_way) == 0, "the end of the last episodes", within_s=END_WITHIN_S
    )


def _problems(arena: Arena, findings: list[Finding]) -> list[str]:
    told = []
    for finding in findings:
        told.append(str(finding))
        told += story(arena, [name.partition(" ")[0].rstrip(":") for name in finding.documents])
    account = arena.account()
    for problem in account.problems:
        told.append(f"the account: {problem.sentence()}")
        told += story(arena, problem.examples)
    return told


def _account(arena: Arena) -> str:
    """All sums, where they can be had."""
    try:
        return f"account: {msgspec.json.encode(arena.account()).decode()}"
    except (AgentrlError, OSError) as away:
        return f"the account cannot be read: {away}"


def _figures(storm: Storm, proof: Proof) -> list[str]:
    ended: dict[str, int] = {}
    for record in proof.records.values():
        kind = record["outcome_class"] or record["status"]
        ended[kind] = ended.get(kind, 0) + 1
    rolled_back = sum(step["status"] == "rolled_back" for step in proof.steps)
    released = sum(step["status"] == "released" for step in proof.steps)
    trained = sum(len(step["records"]) for step in proof.standing)
    blows = sum(storm.blows.values())
    return [
        f"{blows} blows: " + ", ".join(f"{name} {times}" for name, times in sorted(storm.blows.items())),
        f"{len(proof.standing)} steps stand, {rolled_back} were rolled back, {released} released; "
        f"{len(proof.lineages)} lineages, {len(proof.publications)} versions",
        f"{len(proof.records)} records: " + ", ".join(f"{kind} {count}" for kind, count in sorted(ended.items())),
        f"{trained} trained; {len(proof.tool_calls)} tool calls, {len(proof.ledger)} carried out",
    ]


def _down(arena: Arena) -> list[str]:
    code, proof = arena.cli("down", "--yes", check=False, within_s=180)
    if code != 0 or proof["left"] or not proof["proven"]:
        return [f"down ended with {code} and left {proof.get('left')}: {proof.get('lines')}"]
    return []

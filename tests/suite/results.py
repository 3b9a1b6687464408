"""What the lanes have reported so far: counts, failures, skipped tests, costs.

Invariants:
- A process that ends in the middle of a test is a failure of this test; the files behind it run in another process.
- One that ends out of order between tests is a failure of its first file; if it ended before its tests were collected,
  each of its files runs in a process of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.suite.lanes import Lane
from tests.suite.schedule import Cost

OUTPUT_LINES = 25


@dataclass(frozen=True)
class Failure:
    test: str
    when: str
    reason: str
    logs: dict[str, list[str]]

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


@dataclass
class Results:
    passed: int = 0
    skipped: int = 0
    failures: list[Failure] = field(default_factory=list)
    skip_reasons: Counter[str] = field(default_factory=Counter)
    costs: dict[str, Cost] = field(default_factory=dict)
    slowest: list[tuple[str, float, float]] = field(default_factory=list)
    """Test, seconds, processor seconds of its process and of reaped children."""
    lane_s: float = 0.0
    expected_lane_s: float = 0.0
    cpu_s: float = 0.0
    left_behind: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        return len({failure.test for failure in self.failures})

    @property
    def done(self) -> int:
        return self.passed + self.skipped + self.failed

    def receive(self, lane: Lane, message: dict[str, Any]) -> Failure | None:
        """Add one message of a lane. Returns the failure that it reports, if any."""
        kind, test = message.pop("kind"), message.get("test", "")
        if kind == "collected":
            lane.tests, lane.collected = message["tests"], True
        elif kind == "begun":
            lane.now = test
        elif kind == "failed":
            lane.results[test] = kind
            return self._fail(Failure(**message))
        elif kind in ("passed", "skipped"):
            lane.results.setdefault(test, kind)
            if kind == "skipped":
                self.skip_reasons[message["reason"]] += 1
        elif kind == "ended":
            lane.now = ""
            lane.spent.append((test, message["wall_s"], message["cpu_s"]))
            outcome = lane.results.get(test)
            self.passed += outcome == "passed"
            self.skipped += outcome == "skipped"
        elif kind == "lane":
            lane.code, lane.cpu_s, lane.left = message["code"], message["cpu_s"], message["left"]
        return None

    def end(self, lane: Lane, now: float) -> Failure | None:
        """Add the costs of a lane that has ended. Returns its failure if it ended out of order."""
        wall_s = now - lane.begun_at
        self.lane_s += wall_s
        self.expected_lane_s += lane.batch.wall_s
        self.cpu_s += lane.cpu_s
        self.slowest += lane.spent
        if lane.left:
            self.left_behind[lane.batch.name] += lane.left
        self._share(lane, wall_s)
        if lane.ended_in_order or self.to_run_again(lane) == [(file,) for file in lane.batch.files]:
            return None
        reason = f"The process of these tests ended with {lane.code} before its tests had ended."
        lines = lane.output.read_text(errors="replace").splitlines()[-OUTPUT_LINES:]
        return self._fail(Failure(lane.now or lane.batch.files[0], "run", reason, {"output": lines}))

    def to_run_again(self, lane: Lane) -> list[tuple[str, ...]]:
        """The files that a lane which ended out of order has not run, by the process that they are to run in."""
        files = lane.batch.files
        if lane.ended_in_order:
            return []
        if lane.now:
            rest = files[files.index(lane.now.partition("::")[0]) + 1 :]
            return [rest] if rest else []
        return [(file,) for file in files] if not lane.collected and len(files) > 1 else []

    def _fail(self, failure: Failure) -> Failure | None:
        """Add a failure; None if it was reported before, because a second process has collected its file again."""
        if any((failure.test, failure.when) == (other.test, other.when) for other in self.failures):
            return None
        self.failures.append(failure)
        return failure

    def _share(self, lane: Lane, wall_s: float) -> None:
        """The costs of a batch by its files. What no test spent, such as set-ups of a process, all share alike."""
        spent: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for test, test_wall_s, test_cpu_s in lane.spent:
            spent[test.partition("::")[0]].append((test_wall_s, test_cpu_s))
        tests_wall_s = sum(wall for _, wall, _ in lane.spent)
        tests_cpu_s = sum(cpu for *_, cpu in lane.spent)
        for file in lane.batch.files:
            own = spent[file]
            share = sum(wall for wall, _ in own) / tests_wall_s if tests_wall_s else 1 / len(lane.batch.files)
            more_wall_s, more_cpu_s = wall_s - tests_wall_s, max(0.0, lane.cpu_s - tests_cpu_s)
            self.costs[file] = Cost(
                len(own),
                sum(wall for wall, _ in own) + more_wall_s * share,
                sum(cpu for _, cpu in own) + more_cpu_s * share,
            )

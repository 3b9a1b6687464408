"""Verifies a run after the faults, from its documents, the ledger of the tool server and the recorded changes.

Invariants: it does not use the code under test; the account (`agentrl.store.accounting`) is checked in addition; each
problem names its documents.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.toolbox.fresh_session_retry import FRESH
from assets import shop_server
from tests.chaos.run_under_test import BOUND, RunUnderTest
from tests.chaos.store_reader import ChangeRecorder, Plain, by_id

ANSWERED = ("ok", "tool_error")
NOT_COUNTED = ("failed", "abandoned", "superseded")
TRIED_AGAIN = ("timeout", "lost", "cancelled")
"""Statuses of calls that may be tried again. `cancelled` is one, because closing the session during the second call
cancels the first answer."""
FINAL_STATUSES = {
    "scored": ("scored", "excluded", "superseded"),
    "finished": ("finished", "scored", "unscored", "unscorable", "excluded", "superseded"),
    "committed": ("committed", "rolled_back"),
    "trained": ("trained", "ready", "leased", "queued", "admitted", "filtered", "dead"),
}
"""The allowed final statuses of a document that was seen in a status."""


@dataclass(slots=True)
class Finding:
    what: str
    documents: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        shown = ", ".join(self.documents[:5])
        return f"{self.what} ({len(self.documents)}): {shown}" if self.documents else self.what


class Verification:
    """The documents at the end."""

    def __init__(self, run: RunUnderTest) -> None:
        store = run.store
        self.steps = store.find("Step")
        self.tasks = by_id(store.find("Task"))
        self.records = by_id(store.find("Record"))
        self.data = by_id(store.find("DBRecordData"))
        self.lineages = store.find("Lineage")
        self.publications = by_id(store.find("Publication", {}, "parent", "lineage", "step", "status", "announced_at"))
        self.tool_calls = by_id(store.tool_calls())
        self.calls = by_id(store.find("DispatchedSamplingTask"))
        self.calls_of: dict[str, list[Plain]] = defaultdict(list)
        for call in self.calls.values():
            if call["status"] in ("done", "partial"):
                self.calls_of[call["record"]].append(call)
        self.ledger = run.ledger()
        self.wanted_steps = run.steps

    @property
    def committed_steps(self) -> list[Plain]:
        return [step for step in self.steps if step["status"] == "committed"]

    def findings(self, recorder: ChangeRecorder) -> Iterator[Finding]:
        for what, documents in (
            ("committed steps differ from those of the run file", list(self._wrong_steps())),
            ("records trained more than once", list(self._trained_twice())),
            ("records trained beyond the bound", list(self._too_old())),
            ("baselines other than those of the valid members", list(self._wrong_baselines())),
            ("versions out of order", list(self._disordered_versions())),
            ("tool calls that were executed more than once", list(self._executed_twice())),
            ("executed tool calls that are unknown", list(self._unknown_calls())),
            ("answered tool calls that were never executed", list(self._never_executed())),
            ("results that contradict the state of the session", list(self._wrong_results())),
            ("trained records with inconsistent tokens", list(self._broken_tokens())),
            ("lost acknowledged writes", list(self._lost(recorder))),
        ):
            if documents:
                yield Finding(what, documents)
        if recorder.failure:
            yield Finding(recorder.failure)

    # ---- training ----

    def _wrong_steps(self) -> Iterator[str]:
        numbers = Counter(step["step"] for step in self.committed_steps)
        if len(self.committed_steps) != self.wanted_steps:
            yield f"{len(self.committed_steps)} of {self.wanted_steps}"
        yield from (f"step {number} was committed {times} times" for number, times in numbers.items() if times > 1)

    def _trained_twice(self) -> Iterator[str]:
        times = Counter(record for step in self.committed_steps for record in step["records"])
        yield from (record for record, often in times.items() if often > 1)

    def _too_old(self) -> Iterator[str]:
        for step in self.committed_steps:
            for record in step["records"]:
                versions = self._trained_versions(record)
                oldest = max((self._distance(version, step["base_version"]) for version in versions), default=0)
                if oldest > BOUND:
                    yield f"{record} in {step['_id']}: {oldest} publications"

    def _trained_versions(self, record: str) -> set[int]:
        """Versions of its generated tokens, from its calls and not from its summary."""
        mine = [
            call for call in self.calls.values() if call["record"] == record and call["status"] in ("done", "partial")
        ]
        found = {version for call in mine for version, count in call["versions"] if count}
        if noted := set(self.data[record]["versions"]) - found:
            raise AssertionError(f"{record} notes versions {noted} that none of its calls has")
        return found

    def _distance(self, one: int, other: int) -> int:
        """Publications between two versions, through their nearest common ancestor."""
        up, here = self._way_up(one), self._way_up(other)
        common = next(version for version in up if version in here)
        return up.index(common) + here.index(common)

    def _way_up(self, version: int) -> list[int]:
        way: list[int] = []
        at: int | None = version
        while at is not None:
            way.append(at)
            at = self.publications[at]["parent"]  # type: ignore[index]
        return way

    def _wrong_baselines(self) -> Iterator[str]:
        for task in self.tasks.values():
            if task["baseline"] is None:
                continue
            members = [self.records[share["record"]] for share in task["shares"]]
            scores = [one["score"] for one in members if one["outcome_class"] in ("policy", "limit")]
            if len(scores) != len(members) or any(score is None for score in scores):
                yield f"{task['_id']} has members that are not valid"
                continue
            mean = sum(scores) / len(scores)
            std = math.sqrt(sum((score - mean) ** 2 for score in scores) / len(scores))
            stored = task["baseline"]
            if stored["valid"] != len(scores) or abs(stored["mean"] - mean) + abs(stored["std"] - std) > 1e-9:
                yield f"{task['_id']}: {stored}, and the scores are {scores}"

    def _disordered_versions(self) -> Iterator[str]:
        began = {lineage["_id"]: lineage["opened_at"] for lineage in self.lineages}
        order = [publication for _, publication in sorted(self.publications.items())]
        for former, later in itertools.pairwise(order):
            if began[former["lineage"]] > began[later["lineage"]]:
                yield f"{later['_id']} of {later['lineage']} after {former['_id']} of {former['lineage']}"
        for publication in order:
            if publication["parent"] is not None and publication["parent"] >= publication["_id"]:
                yield f"{publication['_id']} comes from {publication['parent']}"

    # ---- tools ----

    def _executed_twice(self) -> Iterator[str]:
        times = Counter(entry["call"] for entry in self.ledger)
        yield from (call for call, often in times.items() if often > 1)

    def _unknown_calls(self) -> Iterator[str]:
        """Executed calls that the store does not know. They are allowed if a sampler died between a repeatable call and
        its write: then another sampler continues the record, or its attempt does not count."""
        handed_over = {call["record"] for call in self.calls.values() if call["turn"] < 0}
        for call in unknown_calls(self.ledger, self.tool_calls):
            wanted = call.removesuffix(FRESH)
            record = wanted.rpartition("/")[0]
            counts = record not in self.records or self.records[record]["status"] not in NOT_COUNTED
            if wanted in self.tool_calls or (counts and record not in handed_over):
                yield call

    def _never_executed(self) -> Iterator[str]:
        done = {entry["call"] for entry in self.ledger}
        for call in self.tool_calls.values():
            if call["status"] in ANSWERED and not call["error_class"] and call["_id"] not in done:
                yield call["_id"]

    def _wrong_results(self) -> Iterator[str]:
        """Repeats the calculations of each scored record, which depend on the session."""
        by_record: dict[str, list[Plain]] = defaultdict(list)
        for call in self.tool_calls.values():
            by_record[call["record"]].append(call)
        for name, calls in by_record.items():
            turns = Counter(call["turn"] for call in calls if call["tool"] == "calculator")
            if self.records[name]["status"] == "scored" and max(turns.values(), default=0) <= 1:
                yield from _recomputed(sorted(calls, key=lambda call: call["turn"]))

    # ---- tokens ----

    def _broken_tokens(self) -> Iterator[str]:
        trained = {record for step in self.committed_steps for record in step["records"]}
        generated: Counter[str] = Counter()
        for call in self.calls.values():
            if call["record"] not in trained or call["status"] not in ("done", "partial"):
                continue
            ids, log_probs = (_numbers(call[name]) for name in ("output", "log_probs"))
            generated[call["record"]] += ids
            if not ids == log_probs == sum(count for _, count in call["versions"]):
                yield f"{call['_id']}: {ids} tokens, {log_probs} log-probs, versions {call['versions']}"
        for record in trained:
            if self.records[record]["generated_tokens"] != generated[record]:
                reported = self.records[record]["generated_tokens"]
                yield f"{record} reports {reported} tokens and has {generated[record]}"
            if self.data[record]["trained_tokens"] > generated[record]:
                yield f"{record} trains more than it generated"

    # ---- the store ----

    def _lost(self, recorder: ChangeRecorder) -> Iterator[str]:
        now: dict[str, Mapping[str, Plain]] = {"Record": self.records, "Task": self.tasks, "Step": by_id(self.steps)}
        for (collection, name), statuses in recorder.seen.items():
            found = now[collection].get(name)
            for status in statuses:
                if found is None or found["status"] not in FINAL_STATUSES[status]:
                    yield f"{name} was {status} and is {found and found['status']}"


def unknown_calls(ledger: Sequence[Plain], tool_calls: Mapping[str, Plain]) -> Iterator[str]:
    """Executed calls with an unknown id. Only the second try of a failed call has an additional id."""
    for entry in ledger:
        call = entry["call"]
        wanted = tool_calls.get(call.removesuffix(FRESH))
        if wanted is None or (call.endswith(FRESH) and wanted["status"] not in TRIED_AGAIN):
            yield call


def _recomputed(calls: Sequence[Plain]) -> Iterator[str]:
    remembered = None
    for call in calls:
        if call["status"] not in ANSWERED or call["error_class"] == "infrastructure":
            continue
        try:
            if call["tool"] == "calculator":
                remembered = shop_server.value_of(str(call["arguments"].get("expr")), remembered)
                expected = shop_server.written(remembered)
            else:
                expected = str(shop_server.price_of(str(call["arguments"].get("item")).strip()))
        except shop_server.BadRequestError:
            continue
        if call["status"] == "ok" and call["result"] != expected:
            yield f"{call['_id']} of {call['arguments']} gave {call['result']}, not {expected}"


def _numbers(packed: bytes) -> int:
    """The count of four-byte numbers after the byte of the format."""
    whole, rest = divmod(max(0, len(packed) - 1), struct.calcsize("<I"))
    assert not rest, "a number is cut off"
    return whole


def describe(run: RunUnderTest, names: Sequence[str]) -> list[str]:
    """The documents of these names, shortened."""
    lines: list[str] = []
    for name in names[:5]:
        for collection in ("Task", "Record", "Step", "DispatchedSamplingTask"):
            found: dict[str, Any] | None = run.store.one(collection, {"_id": name})
            if found is not None:
                short = {key: value for key, value in found.items() if not isinstance(value, bytes)}
                lines.append(f"{collection}: {short}"[:1500])
    return lines

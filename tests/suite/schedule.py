"""Which test files run together, and in which order: the most expensive first, so that all lanes end at about the
same time.

Invariants:
- Every test file is in exactly one batch.
- Cheap files of one room share a batch, because each batch collects and sets up its fixtures again.
- Files that share an expensive fixture of a session are one batch.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("costs.json")
TOGETHER = ("tests/engines/contract",)
"""Folders whose files use one server of the session."""
LARGEST_BATCH_S = 30.0
"""Files join a batch until it is this long."""


class Cost(NamedTuple):
    """What one test file took when it was last recorded."""

    tests: int
    wall_s: float
    cpu_s: float


UNMEASURED_WALL_S = {
    "tests/chaos/": 240.0,
    "tests/e2e/test_data_": 150.0,
    "tests/upgrade/": 120.0,
    "tests/engines/contract/": 60.0,
    "tests/training/test_ranks": 60.0,
    "tests/e2e/": 50.0,
    "tests/": 8.0,
}
"""The assumption about a file without recorded costs, by the beginning of its name; the first that fits counts."""


def cost_of(file: str, costs: Mapping[str, Cost], root: Path = ROOT) -> Cost:
    if file in costs:
        return costs[file]
    wall_s = next((wall_s for start, wall_s in UNMEASURED_WALL_S.items() if file.startswith(start)), 8.0)
    return Cost((root / file).read_text().count("def test_"), wall_s, wall_s / 2)


@dataclass(frozen=True)
class Batch:
    """Test files that one process runs one after the other."""

    files: tuple[str, ...]
    wall_s: float
    """What they are expected to take."""
    tests: int

    @property
    def name(self) -> str:
        first = self.files[0].removeprefix("tests/").removesuffix(".py")
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"


def recorded() -> dict[str, Cost]:
    return {file: Cost(*cost) for file, cost in json.loads(RECORD.read_bytes()).items()}


def add_to_record(costs: Mapping[str, Cost]) -> None:
    """One file a line, so that a change is easy to read and to merge. Files that are gone leave the record."""
    lines = (
        f"{json.dumps(file)}: {json.dumps([cost.tests, round(cost.wall_s, 1), round(cost.cpu_s, 1)])}"
        for file, cost in sorted({**recorded(), **costs}.items())
        if (ROOT / file).exists()
    )
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def files_at(root: Path, paths: Sequence[str], *, without: Iterable[str]) -> list[str]:
    """The test files at these paths, relative to the root."""
    files: list[Path] = []
    for path in paths:
        place = root / path
        files += sorted(place.rglob("test_*.py")) if place.is_dir() else [place]
    names = (str(file.relative_to(root)) for file in files)
    return [name for name in dict.fromkeys(names) if not name.startswith(tuple(without))]


def batches(files: Sequence[str], recorded_costs: Mapping[str, Cost], root: Path = ROOT) -> list[Batch]:
    """All files in batches, the longest batch first."""
    costs = {file: cost_of(file, recorded_costs, root) for file in files}
    rooms: dict[str, list[str]] = defaultdict(list)
    for file in files:
        rooms[file.rpartition("/")[0]].append(file)
    whole: list[Batch] = []
    for room, members in rooms.items():
        whole += [_batch(group, costs) for group in _groups(room, members, costs)]
    return sorted(whole, key=lambda batch: -batch.wall_s)


def parts_of(batch: Batch, groups: Sequence[tuple[str, ...]]) -> list[Batch]:
    """Some files of a batch, with their share of its length."""
    shares = ((group, len(group) / len(batch.files)) for group in groups)
    return [Batch(group, batch.wall_s * share, round(batch.tests * share)) for group, share in shares]


def _groups(room: str, files: list[str], costs: Mapping[str, Cost]) -> list[list[str]]:
    if room in TOGETHER:
        return [files]
    groups: list[list[str]] = []
    length_s = LARGEST_BATCH_S
    for file in sorted(files, key=lambda name: costs[name].wall_s):
        cost_s = costs[file].wall_s
        if length_s + cost_s > LARGEST_BATCH_S:
            groups.append([])
            length_s = 0.0
        groups[-1].append(file)
        length_s += cost_s
    return groups


def _batch(files: list[str], costs: Mapping[str, Cost]) -> Batch:
    all_costs = [costs[file] for file in files]
    return Batch(tuple(files), sum(cost.wall_s for cost in all_costs), sum(cost.tests for cost in all_costs))

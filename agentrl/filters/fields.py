"""The fields by which lists can be filtered and sorted.

Invariants: every field has one kind, and a value in a query is parsed as that kind (`id=17` is a text, `turns=17` a
number); an unknown name is refused with the nearest known one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["text", "number", "time", "flag", "texts", "any"]
"""`any`: the form of the value decides; `5` and `true` are texts only if they are quoted."""


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    """The name in queries and rows; dots lead into nested documents."""
    kind: Kind
    path: str = ""
    """The name in MongoDB, if it is different."""
    choices: tuple[str, ...] = ()
    """All possible values, if they are known. A query for any other value is refused."""

    @property
    def stored(self) -> str:
        return self.path or self.name

    @property
    def in_rows(self) -> str:
        """Its name in rows. Only the id has a different name in MongoDB."""
        return self.name if self.path == "_id" else self.stored


ROW = "row"
"""`row.difficulty` is the column `difficulty` of the dataset row."""


def is_column(field: Field) -> bool:
    return field.name.startswith(f"{ROW}.")


class Fields:
    """The fields of one kind of document."""

    def __init__(
        self,
        fields: Iterable[Field],
        *,
        prefixes: Mapping[str, Kind] | None = None,
        columns: str = "",
        orders: Mapping[str, str] | None = None,
    ) -> None:
        """`columns`: where `row.NAME` finds the columns of a dataset row; empty if there are none."""
        self._fields = {field.name: field for field in fields}
        self._prefixes = dict(prefixes or {})
        self._columns = columns
        self._orders = dict(orders or {})

    def among(self, **choices: Iterable[str]) -> Fields:
        """The same fields, with the possible values of some of them."""
        known = [replace(field, choices=tuple(map(str, choices.get(name, ())))) for name, field in self._fields.items()]
        return Fields(known, prefixes=self._prefixes, columns=self._columns, orders=self._orders)

    @property
    def names(self) -> tuple[str, ...]:
        prefixes = [*self._prefixes, *([ROW] if self._columns else [])]
        return (*self._fields, *(f"{prefix}.*" for prefix in prefixes))

    def find(self, name: str) -> Field | None:
        """The field of that name. After `row.` and an open prefix (`metrics.`) every name is a field."""
        if name in self._fields:
            return self._fields[name]
        prefix, dot, rest = name.partition(".")
        if prefix == ROW and self._columns and all(part and not part.startswith("$") for part in rest.split(".")):
            # Ids of rows are stored as texts.
            return Field(name, "text" if rest == "id" else "any", f"{self._columns}.{rest}")
        if dot and rest and prefix in self._prefixes and all(part.isidentifier() for part in rest.split(".")):
            return Field(name, self._prefixes[prefix])
        return None

    def find_order(self, name: str) -> Field | None:
        """The field to sort by. Orders have additional names, such as `age`."""
        return self.find(self._orders.get(name, name))

    def nearest(self, name: str) -> str:
        """The most similar field name, or an empty text."""
        close = difflib.get_close_matches(name.lower(), self._fields, n=1, cutoff=0.6)
        return close[0] if close else ""


def fields(
    *,
    text: str = "",
    number: str = "",
    time: str = "",
    flag: str = "",
    texts: str = "",
    prefixes: Mapping[str, Kind] | None = None,
    columns: str = "",
    age: str = "",
    orders: Mapping[str, str] | None = None,
    identity: Kind = "text",
) -> Fields:
    """The id and fields by kind, each kind as a string of words; `name:path` if the name in MongoDB is different. The
    order `age` has the oldest first; `orders` has more such names."""
    by_kind: dict[Kind, str] = {"text": text, "number": number, "time": time, "flag": flag, "texts": texts}
    named = [
        Field(name, kind, path)
        for kind, words in by_kind.items()
        for name, _, path in (word.partition(":") for word in words.split())
    ]
    known = [Field("id", identity, "_id"), *named]
    return Fields(known, prefixes=prefixes, columns=columns, orders={**({"age": age} if age else {}), **(orders or {})})


TASKS = fields(
    text="environment split purpose status reason query answer scorer answer_schema agent_name lineage"
    " fork:fork.kind base:fork.base",
    number="epoch row round rounds_max n admitted_order step trained_count version"
    " baseline.mean baseline.std baseline.valid sampling.temperature sampling.top_p sampling.max_tokens_per_call",
    time="admitted_at deadline_at",
    flag="signal",
    texts="servers",
    columns="extra",
    age="admitted_at",
)
RECORDS = fields(
    text="task environment purpose status owner outcome outcome_class error reason fork:fork.kind base:fork.base"
    " review:review.verdict reviewed_by:review.who",
    number="round seat attempt score oldest_version newest_version generated_tokens turns duration_s",
    time="created_at started_at finished_at",
    texts="forks",
    prefixes={"context": "number", "score_parts": "number"},
    columns="extra",
    age="started_at",
)
CALLS = fields(
    text="record task status base finish_reason engine error",
    number="index turn base_length sampling.temperature sampling.top_p",
    time="sent_at done_at",
)
TOOL_CALLS = fields(
    text="record task owner server tool status error_class tried_again result session replay",
    number="turn latency_s",
    time="called_at requested_at done_at",
    flag="failed trained",
    age="called_at",
)
STEPS = fields(
    text="lineage status",
    number="step base_version duration_s",
    time="leased_at committed_at",
    flag="empty",
    texts="tasks records",
    prefixes={"metrics": "number"},
    age="leased_at",
)
CHECKPOINTS = fields(text="lineage status path", number="step version", time="at", flag="pinned", age="at")
PUBLICATIONS = fields(
    text="lineage status path evaluation",
    number="parent step canary_largest",
    time="announced_at",
    texts="reasons served_by",
    age="announced_at",
    identity="number",
)
REPLAYS = fields(
    text="operation who call record task server recorded_server server_version tool effect status verdict fault reason"
    " owner note",
    number="turn times attempt agreed duration_s",
    time="created_at started_at judged_at",
    flag="edited stopped",
    age="created_at",
)
SANDBOXES = fields(
    text="toolbox server kind state session purpose",
    number="age_s calls cpu_percent memory_bytes memory_share open_files pid processes sessions started_at",
    texts="doing",
    age="started_at",
    orders={"cpu": "cpu_percent", "memory": "memory_bytes"},
)
OWNERS = fields(text="unit role", time="expires_at", flag="expired")
SERVICES = fields(text="unit kind url state", number="version slots running", time="seen_at", texts="names")

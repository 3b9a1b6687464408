"""The calls and costs of judges and other helpers, and whether their services answer now.

Invariants:
- Answers and questions are not included; the text of a service's error is untrusted.
- The services are those of the configuration in force, including services that were never asked.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.config.other_models import OtherModel
from agentrl.config.paths import IN_FORCE
from agentrl.config.run import RunConfig
from agentrl.errors import AgentrlError
from agentrl.formatting.safe_text import sanitise
from agentrl.protocol.other_model_commands import OtherModels, OtherModelsReport, ServiceRow
from agentrl.store import other_model_calls, run_database
from agentrl.store.database import Database, Plain

_TEXTS = ("record", "purpose", "model", "service", "outcome", "error")
_NUMBERS = ("latency_s", "tries", "tokens_in", "tokens_out", "cost")
_MINUTE_S = 60


class OtherModelQueries:
    def __init__(self, database: Database, run_dir: Path) -> None:
        self._database = database
        self._run_dir = run_dir
        self._read: tuple[tuple[int, int], RunConfig] | None = None

    async def report(self, args: OtherModels) -> OtherModelsReport:
        usage = [] if args.record else await other_model_calls.usage(self._database)
        limit = min(max(args.limit, 1), 1_000)
        calls = await other_model_calls.newest(
            self._database, record=args.record, failed=args.failed, model=args.model, purpose=args.purpose, limit=limit
        )
        now, config = time.time(), self._configuration()
        resting = await other_model_calls.resting(self._database)
        minute = await other_model_calls.in_minute(self._database, int(now // _MINUTE_S))
        return OtherModelsReport(
            usage=tuple(map(_sum, usage)),
            calls=tuple(map(_call, calls)),
            services=() if config is None else services(config.models, resting, minute, now),
            used_by={} if config is None else _used_by(config),
            counted_at=now,
        )

    def _configuration(self) -> RunConfig | None:
        """The configuration in force; None on a host that does not have it."""
        try:
            found = os.stat(self._run_dir / IN_FORCE)
            stamp = (found.st_ino, found.st_mtime_ns)
            if self._read is None or self._read[0] != stamp:
                self._read = (stamp, run_database.configuration(self._run_dir))
        except (OSError, AgentrlError):
            return None
        return self._read[1]


def services(
    models: Mapping[str, Sequence[OtherModel]], resting: Sequence[Plain], minute: Mapping[str, int], now: float
) -> tuple[ServiceRow, ...]:
    """`resting`: the failures that samplers noted, the newest first; `minute`: calls in this minute by identity."""
    noted: dict[str, list[Plain]] = defaultdict(list)
    for row in resting:
        noted[row["service"]].append(row)
    return tuple(
        _service(name, place, service, noted[service.identity], minute.get(service.identity, 0), now)
        for name, those in models.items()
        for place, service in enumerate(those, 1)
    )


def _service(
    name: str, place: int, service: OtherModel, notes: Sequence[Plain], this_minute: int, now: float
) -> ServiceRow:
    until = min((note["until"].timestamp() for note in notes), default=0.0)
    return ServiceRow(
        model=name,
        place=place,
        service=sanitise(service.name),
        kind=service.kind,
        per_minute=service.per_minute,
        this_minute=this_minute,
        at_once=service.at_once,
        timeout_s=service.timeout_s,
        price_in=service.price_in,
        price_out=service.price_out,
        failing_at=tuple(sorted(sanitise(note["sampler"]) for note in notes)),
        failures=max((int(note["failures"]) for note in notes), default=0),
        rests_until=until if until > now else 0.0,
        error=sanitise(notes[0]["error"]) if notes else "",
        failed_at=notes[0]["at"].timestamp() if notes else 0.0,
    )


def _used_by(config: RunConfig) -> dict[str, tuple[str, ...]]:
    users: dict[str, list[str]] = defaultdict(list)
    for name, judge in config.judges.items():
        users[judge.model].append(f"judge {name}")
    if config.summaries.model:
        users[config.summaries.model].append("summaries" if config.summaries.on else "summaries (off)")
    return {model: tuple(names) for model, names in users.items()}


def _sum(found: Plain) -> dict[str, Any]:
    texts = {name: sanitise(value) for name, value in found.pop("_id").items()}
    return {**texts, **found, "last_at": found["last_at"].timestamp()}


def _call(found: Plain) -> dict[str, Any]:
    texts = {name: sanitise(found.get(name, "")) for name in _TEXTS}
    return {"at": found["at"].timestamp(), **texts, **{name: found.get(name, 0) for name in _NUMBERS}}

"""Defines the rows of other models: the calls and costs of judges, users and summaries, and their services.

Invariants:
- A model of the run file has a row even if it was not asked yet.
- The state of a model is the state of its first service that may be asked now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.formatting import service_text
from agentrl.formatting.amounts import counted, moment
from agentrl.protocol.other_model_commands import OtherModelsReport, ServiceRow
from tui.model import cell_text
from tui.model.styled_text import Line, Span, Tone, fitted, span, wrapped
from tui.model.table import Column, text_column

_TONES = {
    service_text.ASKED: ("●", Tone.GOOD),
    service_text.LIMIT: ("‖", Tone.WARN),
    service_text.RESTS: ("↻", Tone.BAD),
    service_text.FAILS: ("!", Tone.WARN),
}


@dataclass(frozen=True, slots=True)
class Use:
    """One model for one purpose."""

    model: str
    purpose: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    services: tuple[ServiceRow, ...] = ()
    used_by: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.model}/{self.purpose}"

    def number(self, name: str) -> float:
        value = self.figures.get(name)
        return float(value) if isinstance(value, int | float) else 0.0


def uses(report: OtherModelsReport) -> dict[str, Use]:
    by_model: dict[str, tuple[ServiceRow, ...]] = {}
    for row in report.services:
        by_model[row.model] = (*by_model.get(row.model, ()), row)
    found = [
        Use(model := str(each.get("model", "")), str(each.get("purpose", "")), each, by_model.get(model, ()),
            report.used_by.get(model, ()))
        for each in report.usage
    ]  # fmt: skip
    asked = {use.model for use in found}
    found += [
        Use(model, "", {}, those, report.used_by.get(model, ()))
        for model, those in by_model.items()
        if model not in asked
    ]
    return {use.key: use for use in found}


def columns() -> tuple[Column[Use], ...]:
    return (
        text_column("model", "MODEL", 12, lambda use: use.model, Tone.STRONG, least=6),
        text_column("purpose", "FOR", 16, _purpose, least=8),
        Column("state", "SERVICES", 12, state, lambda use: _in_order(use, 0.0)),
        Column("cost", "COST", 7, lambda use, now: Span(_cost(use)), lambda use: use.number("cost"), True),
        Column("calls", "CALLS", 6, lambda use, now: _count(use, "calls"), lambda use: use.number("calls"), True),
        Column("unanswered", "NO ANSWER", 9, lambda use, now: _count(use, "unanswered", Tone.BAD),
          lambda use: use.number("unanswered"), True, 1),
        Column("kept", "KEPT", 6, lambda use, now: _count(use, "kept"), lambda use: use.number("kept"), True, 5),
        Column("tries", "TRIES", 6, lambda use, now: _count(use, "tries"), lambda use: use.number("tries"), True, 4),
        Column("in", "TOKENS IN", 9, lambda use, now: _count(use, "tokens_in"),
          lambda use: use.number("tokens_in"), True, 2),
        Column("out", "OUT", 8, lambda use, now: _count(use, "tokens_out"),
          lambda use: use.number("tokens_out"), True, 3),
        Column("took", "TOOK", 5, lambda use, now: _took(use), lambda use: use.number("latency_s"), True, 3),
        Column("ago", "AGO", 5, lambda use, now: Span(cell_text.ago(use.number("last_at"), now), Tone.DIM),
          lambda use: use.number("last_at"), True, 6),
        text_column("trouble", "", 20, _trouble_without_time, Tone.DIM, stretches=True, rank=7),
    )  # fmt: skip


def _purpose(use: Use) -> str:
    return use.purpose or f"{', '.join(use.used_by)}, not asked yet".removeprefix(", ")


def _in_order(use: Use, now: float) -> int:
    kinds = [service_text.kind_of_state(row, now) for row in use.services]
    return min((list(_TONES).index(kind) for kind in kinds), default=len(_TONES))


def state(use: Use, now: float) -> Span:
    """The state of its services: how many may be asked, or why none may be."""
    if not use.services:
        return Span("not named", Tone.DIM)
    kinds = [service_text.kind_of_state(row, now) for row in use.services]
    asked = kinds.count(service_text.ASKED)
    if asked == len(kinds):
        return Span(f"● {asked} asked" if asked > 1 else "● asked", Tone.GOOD)
    if asked:
        return Span(f"! {asked} of {len(kinds)}", Tone.WARN)
    sign, tone = _TONES[kinds[0]]
    return span(f"{sign} {kinds[0]}", tone)


def _count(use: Use, name: str, tone: Tone = Tone.PLAIN) -> Span:
    value = use.number(name)
    return Span(f"{value:.0f}" if value else "", tone)


def _cost(use: Use) -> str:
    return f"{cost:.4g}" if (cost := use.number("cost")) else ""


def _took(use: Use) -> Span:
    return Span(cell_text.quick(seconds) if (seconds := use.number("latency_s")) else "")


def _trouble_without_time(use: Use) -> str:
    return next((row.error for row in use.services if row.error), "")


def searched_text(use: Use) -> str:
    return f"{use.model} {use.purpose} {' '.join(use.used_by)} {' '.join(row.service for row in use.services)}"


def total(found: Sequence[Use], waiting: float) -> str:
    """The total for the heading."""
    calls, cost = sum(use.number("calls") for use in found), sum(use.number("cost") for use in found)
    parts = [counted(int(calls), "calls")]
    if cost:
        parts.append(f"cost {cost:.4g}")
    if waiting:
        parts.append(f"{waiting:.0f} waiting now")
    return ", ".join(parts)


# ---- services and calls ----


def service_lines(use: Use, now: float, width: int, *, briefly: bool = False) -> list[Line]:
    """One line for each service, in the order in which they are asked, with its last error below it; `briefly`: all on
    one line."""
    lines = list[Line]()
    for row in use.services:
        sign, tone = _TONES[service_text.kind_of_state(row, now)]
        trouble, price = service_text.trouble(row, now), service_text.price(row)
        said = span(f"{sign} {service_text.state(row, now)}", tone)
        name = span(f"  {row.place}. {fitted(row.service, max(16, min(36, width // 3)))}  ")
        more = f"  price {price}" if price else ""
        behind = f"  {trouble}" if trouble and briefly else ""
        lines.append((name, said, span(f"  {service_text.limits(row)}{more}{behind}", Tone.DIM)))
        if trouble and not briefly:
            lines += [(span(f"     {part}", tone),) for part in wrapped(span(trouble).text, max(20, width - 6))]
    return lines


def of_model(use: Use, calls: Sequence[Mapping[str, Any]], now: float, width: int) -> list[Line]:
    """Figures of one model for one purpose, its services, and its newest calls with their errors."""
    title = use.model + (f", {use.purpose}" if use.purpose else "")
    lines: list[Line] = [(span(title, Tone.STRONG),)]
    if use.used_by:
        lines.append((span(f"asked by {', '.join(use.used_by)}", Tone.DIM),))
    figures = (
        ("calls", "calls"), ("kept", "found again"), ("unanswered", "without an answer"), ("tries", "tries"),
        ("tokens_in", "tokens in"), ("tokens_out", "tokens out"),
    )  # fmt: skip
    said = [f"{use.number(name):.0f} {words}" for name, words in figures if use.number(name)]
    said += [f"cost {_cost(use)}"] if _cost(use) else []
    if said:
        lines += [(span(part),) for part in wrapped(", ".join(said), width)]
    lines += [(), (Span("services, in the order in which they are asked", Tone.ACCENT),)]
    lines += service_lines(use, now, width) or [(Span("  The run file does not name it now.", Tone.WARN),)]
    lines += [(), (Span("calls, the newest first", Tone.ACCENT),)]
    for call in calls:
        lines.append(_call(call, now))
        if error := str(call.get("error") or ""):
            lines += [(Span(f"      {part}", Tone.WARN),) for part in wrapped(span(error).text, max(20, width - 8))]
    if not calls:
        lines.append((Span("  none yet", Tone.DIM),))
    note = "Models, judges and summaries hold within seconds of `agentrl up FILE`; c does it here."
    return [*lines, (), *((Span(part, Tone.DIM),) for part in wrapped(note, width))]


def _call(call: Mapping[str, Any], now: float) -> Line:
    outcome = str(call.get("outcome", ""))
    tone = {"ok": Tone.GOOD, "kept": Tone.DIM}.get(outcome, Tone.BAD)
    tries = int(call.get("tries") or 0)
    took = cell_text.quick(float(call.get("latency_s") or 0))
    rest = f"{took:>6}  {counted(tries, 'tries') if tries != 1 else '':8}  {call.get('record') or 'no record'}"
    return (
        Span(f"  {moment(float(call['at']))}  ", Tone.DIM),
        span(fitted(outcome, 8), tone),
        span(f"{rest}  "),
        span(call.get("service") or "", Tone.DIM),
    )

"""Tasks, checkpoints and keys in columns, the pages of the first two, and the account of all that is stored."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from agentrl.formatting import account_lines
from agentrl.formatting.amounts import moment, size
from agentrl.protocol.commands import KeyRow
from agentrl.protocol.data_commands import AccountReport, Story
from tui.model import cell_text
from tui.model.curves import seconds
from tui.model.data_tables import Row, doing
from tui.model.detail_lines import page
from tui.model.styled_text import Line, Span, Tone, span, wrapped
from tui.model.table import Column

_TONES = {"done": Tone.GOOD, "trained": Tone.GOOD, "complete": Tone.GOOD, "dead": Tone.BAD, "deleted": Tone.DIM}
_TONES |= {"admitted": Tone.BUSY, "leased": Tone.BUSY, "writing": Tone.BUSY}


def _order() -> Column[Row]:
    return Column("order", "", 0, lambda row, now: Span(""), lambda row: row["~order"], optional=True)


def _text(name: str, title: str, width: int, rank: int = 0, *, stretches: bool = False) -> Column[Row]:
    def shown(row: Row) -> str:
        return str(row.get(name) or "")

    return Column(name, title, width, lambda row, now: span(shown(row)), shown, rank=rank, stretches=stretches)


def _number(name: str, title: str, width: int, rank: int) -> Column[Row]:
    def value(row: Row) -> float:
        found = row.get(name)
        return float(found) if isinstance(found, int | float) else -1.0

    def show(row: Row, now: float) -> Span:
        return span("" if row.get(name) is None else f"{value(row):g}")

    return Column(name, title, width, show, value, True, rank)


def _status() -> Column[Row]:
    def show(row: Row, now: float) -> Span:
        name = str(row.get("status", ""))
        return span(name, _TONES.get(name, Tone.PLAIN))

    return Column("status", "STATUS", 9, show, lambda row: str(row.get("status")))


def _ago(name: str, title: str, rank: int) -> Column[Row]:
    def show(row: Row, now: float) -> Span:
        return Span(cell_text.ago(seconds(row.get(name)), now), Tone.DIM)

    return Column(name, title, 5, show, lambda row: seconds(row.get(name)), True, rank)


def task_columns() -> tuple[Column[Row], ...]:
    return (
        _order(),
        Column("id", "TASK", 28, lambda row, now: span(row["id"], Tone.STRONG), lambda row: str(row["id"]), least=20),
        _status(),
        _text("purpose", "FOR", 6, 4),
        _number("round", "ROUND", 5, 3),
        _number("trained_count", "TRAINED", 7, 5),
        _ago("admitted_at", "SINCE", 2),
        Column("what", "WHAT", 20, lambda row, now: span(_why(row), Tone.DIM), _why, stretches=True),
    )


def _why(row: Row) -> str:
    return str(row.get("reason") or row.get("query") or "")


def checkpoint_columns() -> tuple[Column[Row], ...]:
    def pinned(row: Row, now: float) -> Span:
        return Span("◆ pinned" if row.get("pinned") else "", Tone.ACCENT)

    return (
        _order(),
        Column("id", "CHECKPOINT", 26, lambda row, now: span(row["id"], Tone.STRONG), lambda row: str(row["id"])),
        _status(),
        _number("step", "STEP", 6, 1),
        _number("version", "WEIGHTS", 7, 2),
        _ago("at", "AGO", 3),
        Column("pinned", "", 8, pinned, lambda row: bool(row.get("pinned"))),
        _text("path", "WHERE", 16, 5, stretches=True),
    )


def key_columns() -> tuple[Column[KeyRow], ...]:
    def state(row: KeyRow, now: float) -> Span:
        return Span(f"revoked {moment(row.revoked_at)}" if row.revoked_at else "", Tone.WARN)

    return (
        Column("name", "KEY", 20, lambda row, now: span(row.name, Tone.STRONG), lambda row: row.name),
        Column("may", "MAY", 9, lambda row, now: span(row.permission.value), lambda row: row.permission.value),
        Column("made", "MADE", 19, lambda row, now: Span(moment(row.created_at), Tone.DIM), lambda row: row.created_at),
        Column("state", "", 28, state, lambda row: row.revoked_at, rank=1),
        Column("public", "PUBLIC", 12, lambda row, now: span(row.public, Tone.DIM), lambda row: 0, stretches=True),
    )


def of_key(row: KeyRow, width: int) -> list[Line]:
    return page(
        (
            ("name", span(row.name, Tone.STRONG)),
            ("may", row.permission.value),
            ("made", moment(row.created_at)),
            ("revoked", moment(row.revoked_at) if row.revoked_at else ""),
            ("public", row.public),
        ),
        width,
    )


def of_task(story: Story, width: int) -> list[Line]:
    return [*_of_document(story, ("query", "answer", "status", "reason", "round", "n"), width), *_records(story)]


def of_account(report: AccountReport, width: int) -> list[Line]:
    wrong = [
        (span(part, Tone.BAD),) for each in report.problems for part in wrapped(account_lines.disagreement(each), width)
    ]
    agrees: list[Line] = [(Span(f"✓ {account_lines.ALL_AGREE}", Tone.GOOD),)] if report.balanced else []
    told = [(span(part),) for line in account_lines.sums(report) for part in wrapped(line, width)]
    return [*agrees, *wrong, (), *told]


def of_checkpoint(story: Story, width: int) -> list[Line]:
    lines = _of_document(story, ("status", "step", "version", "pinned", "at", "path"), width)
    files = story.document.get("files") or {}
    told = [span(f"  {name}  {size(int(file.get('bytes', 0)))}") for name, file in sorted(files.items())]
    return [*lines, (), (Span("files", Tone.ACCENT),), *((each,) for each in told)]


def _of_document(story: Story, names: tuple[str, ...], width: int) -> list[Line]:
    title = (span(story.document.get("id", ""), Tone.STRONG),)
    return [title, (), *page(((name, _plain(story.document.get(name))) for name in names), width)]


def _plain(value: Any) -> Any:
    return moment(seconds(value)) if isinstance(value, datetime) else value


def _records(story: Story) -> list[Line]:
    count = len(story.records)
    head = (Span(f"its attempts ({count} of {count + story.more_records})", Tone.ACCENT),)
    return [(), head, *((span(f"  {row.get('id')}  {row.get('status')}  {doing(row)}"),) for row in story.records)]

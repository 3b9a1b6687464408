"""Prints results and diagnostics; the only writer of stdout.

Invariants:
- Data goes to stdout, diagnostics go to stderr.
- Text of a run (status, log lines, names) loses its control codes and is never parsed as markup.
- With `--json`, stdout has one document, or one per line.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agentrl.formatting.amounts import age as age
from agentrl.formatting.amounts import duration as duration
from agentrl.formatting.amounts import moment as moment
from agentrl.formatting.amounts import since as since
from agentrl.formatting.amounts import size as size
from agentrl.formatting.safe_text import sanitise as sanitise
from agentrl.formatting.safe_text import sanitise_lines as sanitise_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_FOLDS_FROM = 24
"""A column with a cell this long may take several lines."""
_NARROWEST = 12
"""The least width of such a column; if there is less space, names fold."""
_GAP = 2
"""Cells between two columns."""
_ENDLESS = 100_000
"""The width of a pipe or a file: programs split lines themselves."""


def say(text: str = "") -> None:
    """One line of result for a person."""
    print(sanitise(text))


def block(title: str, text: str, indent: str = "  ") -> None:
    """A text of the run line by line, without control codes."""
    for number, line in enumerate(sanitise_lines(text).splitlines()):
        say(f"{indent}{title + ': ' if title and not number else ''}{line}")


def note(text: str) -> None:
    """One line of diagnostics."""
    print(sanitise(text), file=sys.stderr, flush=True)


def plain(value: Any) -> Any:
    """A value for JSON, with all fields, including defaults, and with enumerations by name."""
    import msgspec

    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        return {**tag, **{name: plain(getattr(value, name)) for name in value.__struct_fields__}}
    if isinstance(value, msgspec.Raw):
        return plain(_row_or_plain(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, enum.IntEnum):
        return value.name.lower()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value


def _row_or_plain(body: Any) -> Any:
    import msgspec

    from agentrl.errors import ProtocolError
    from agentrl.protocol.wire import decode_row

    try:
        return decode_row(body)
    except ProtocolError:
        # Rows of a newer version are passed to scripts too.
        return msgspec.msgpack.decode(body)


def emit(value: Any) -> None:
    """The one JSON document of a command."""
    import msgspec

    body = msgspec.json.encode(plain(value))
    print((msgspec.json.format(body, indent=2) if sys.stdout.isatty() else body).decode())


def emit_line(value: Any) -> None:
    """One of many JSON lines, flushed at once."""
    import msgspec

    print(msgspec.json.encode(plain(value)).decode(), flush=True)


def console(color: bool = True, *, stderr: bool = False) -> Console:
    """A terminal that parses no markup: text from a run must not become style.

    A pipe or a file has no width, unless `COLUMNS` sets one.
    """
    from rich.console import Console

    bounded = (sys.stderr if stderr else sys.stdout).isatty() or os.environ.get("COLUMNS")
    return Console(
        stderr=stderr,
        markup=False,
        highlight=False,
        emoji=False,
        no_color=not color,
        soft_wrap=False,
        width=None if bounded else _ENDLESS,
    )


def cell(text: object, style: str = "") -> Text:
    """Text of a run, for a table or a line."""
    from rich.text import Text

    return Text(sanitise(text), style=style)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    width: int = 0,
    spare: Sequence[str] = (),
) -> RenderableType:
    """A table without lines; a cell is text, or already styled. If a width is given and too small, the spare columns
    are left out one after the other. If the table is still too wide, the first column folds, because a folded name can
    still be read, but a heading that is cut cannot.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    cells = [[item if isinstance(item, Text) else Text(sanitise(item)) for item in row] for row in rows]
    # An empty column is left out.
    used = [place for place in range(len(columns)) if not cells or any(row[place].plain for row in cells)]
    long = {place: max(len(columns[place]), *(row[place].cell_len for row in cells), 0) for place in used}

    def is_too_wide(folded: int = _FOLDS_FROM) -> bool:
        taken = sum((min(most, folded) if place else most) + _GAP for place, most in long.items()) - _GAP
        return bool(width) and taken > width

    for name in spare:
        if is_too_wide():
            long.pop(columns.index(name), None)
    folds, cuts, last = is_too_wide(_NARROWEST), is_too_wide(), max(long)
    for place, most in long.items():
        name = columns[place]
        # Names and short columns stay whole; long ones fold, or the last if all are short.
        whole = (most < _FOLDS_FROM and not (cuts and place == last)) or (place == 0 and not folds)
        made.add_column(Text(name), justify="right" if name in right else "left", overflow="fold", no_wrap=whole)
    for row in cells:
        made.add_row(*(row[place] for place in long))
    return made


def show(rendered: RenderableType, color: bool) -> None:
    made = console(color)
    if made.is_terminal:
        made.print(rendered)
        return
    # rich pads the last column with blanks.
    with made.capture() as caught:
        made.print(rendered)
    print("\n".join(line.rstrip() for line in caught.get().splitlines()))


def interactive() -> bool:
    """Whether a person can answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()

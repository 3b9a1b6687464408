"""Makes tables of rows for notebooks: a DataFrame of pandas, a table of Arrow, or plain dictionaries.

Invariants:
- A field within a field is a column with a dotted name, as filters and `--sort` name it (`score_parts.right`).
- pandas and pyarrow are imported when a table is made; if one is missing, the error names its extra.
- A row that lacks a field has no value there; the order of rows is kept.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from agentrl.errors import ConfigError, UsageError

Form = Literal["pandas", "arrow", "rows"]
FORMS = ("pandas", "arrow", "rows")
_PACKAGES = {"pandas": "pandas", "arrow": "pyarrow"}


def table(rows: Iterable[Mapping[str, Any]], form: Form, *, index: str = "", first: Sequence[str] = ()) -> Any:
    """Makes a table. `first`: columns that always exist and come before the others; `index`: the index of a
    DataFrame."""
    check(form)
    flat = [dict(_flat(row)) for row in rows]
    if form == "rows":
        return flat
    columns = {name: [row.get(name) for row in flat] for name in dict.fromkeys([*first, *(n for r in flat for n in r)])}
    package = _package(form)
    if form == "arrow":
        return package.table({name: _array(package, values) for name, values in columns.items()})
    frame = package.DataFrame(columns)
    return frame.set_index(index) if index else frame


def check(form: str) -> None:
    """Checks before any request is sent. Raises UsageError for an unknown form, ConfigError if a package is missing."""
    if form not in FORMS:
        raise UsageError(f"There is no form {form!r} of a table.", hint=f"Forms are: {', '.join(FORMS)}.")
    if form != "rows":
        _package(form)


def _package(form: str) -> Any:
    try:
        return importlib.import_module(_PACKAGES[form])
    except ImportError:
        raise ConfigError(
            f"This table needs {_PACKAGES[form]}.",
            hint="`pip install 'agentrl[notebook]'`, or form=\"rows\" for dictionaries.",
        ) from None


def _flat(row: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _array(pyarrow: Any, values: list[Any]) -> Any:
    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        # Rows may have values of several types under one name, and Arrow has one type for a column.
        return pyarrow.array([None if value is None else str(value) for value in values])

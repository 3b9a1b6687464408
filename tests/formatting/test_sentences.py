"""Composed sentences: `1 thing` is not `1 things`, and no sentence has two full stops.

The tests search the source for f-strings, so that they also find new ones.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.formatting.amounts import counted
from agentrl.formatting.sentences import ended

ROOT = Path(__file__).parents[2]
MAKERS = ("tui", "agentrl/formatting", "agentrl/control/alerts", "agentrl/steward", "agentrl/store/audit")
"""Rooms whose sentences are shown in the console or in previews."""
NUMBER = re.compile(r" (?:(?:more|older|other|new|such|ready|trained|failed) )*([a-z]+s)\b")
VERBS = frozenset(
    {
        "belongs",
        "brings",
        "computes",
        "ends",
        "grows",
        "has",
        "is",
        "its",
        "keeps",
        "leaves",
        "makes",
        "plays",
        "reads",
        "refuses",
        "tells",
    }
    | {"serves", "does", "lives", "means", "shows", "starts", "takes", "this", "wants", "was", "waits", "needs"}
)
OF_MANY = {
    "ms": "is a unit",
    "consoles": "as many as a server has at most",
    "versions": "from so many on there is an alert",
}
"""Plurals without `counted`, each with its reason."""
BY_OTHERS = re.compile(r"(?:^|[._])(?:reason|because|error|message|sentence|note|help)(?:\(.*\))?$")
"""Names of variables with texts from elsewhere, which may end with a full stop."""
LITERALS = {
    "batches": "batch", "boxes": "box", "hashes": "hash", "losses": "loss", "processes": "process", "queries": "query",
    "kinds of tool errors": "kind of tool errors", "groups without signal": "group without signal",
    "baselines other than those": "baseline other than those", "leased tasks that no": "leased task that no",
    "more such waits": "more such wait", "records of no task whatever": "record of no task whatever", "times": "time",
    "records under way": "record under way", "unplanned deaths": "unplanned death", "older ones": "older one",
}  # fmt: skip


def _pairs(made: ast.JoinedStr) -> Iterator[tuple[str, str]]:
    """Each inserted expression, and the text after it."""
    for value, text in zip(made.values, made.values[1:], strict=False):
        if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant):
            yield ast.unparse(value.value), str(text.value)


def _inserted() -> Iterator[tuple[str, str, str]]:
    for path in sorted(path for room in MAKERS for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                for value, text in _pairs(node):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", value, text


def test_numbers_before_plurals_use_counted() -> None:
    wrong = []
    for where, value, text in _inserted():
        found = NUMBER.match(text)
        if found and found[1] not in VERBS and found[1] not in OF_MANY and not _is_text(value):
            wrong.append(f"{where}: {{{value}}}{text[:30]}")
    assert not wrong, "\n".join(["use `counted` for a number before a plural:", *wrong])


def _is_text(value: str) -> bool:
    return bool(re.search(r"(?:name|unit|host|tool|suggest|on|who|item|path|status|_TABLES)$", value))


def test_full_stops_after_foreign_text_use_ended() -> None:
    wrong = [
        f"{where}: {{{value}}}{text[:30]}"
        for where, value, text in _inserted()
        if re.match(r"\.(?:\s|$)", text) and BY_OTHERS.search(value) and not value.startswith("ended(")
    ]
    assert not wrong, "\n".join(["use `ended` to add a full stop:", *wrong])


@pytest.mark.parametrize(("many", "one"), LITERALS.items())
def test_counted_forms_the_singular(many: str, one: str) -> None:
    assert counted(1, many) == f"1 {one}"
    assert counted(2, many) == f"2 {many}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("it died", "it died."), ("It died.", "It died."), ("Why? ", "Why?"), ("and so on…", "and so on…")],
)
def test_ended_adds_a_full_stop_only_if_none_is_there(text: str, sentence: str) -> None:
    assert ended(text) == sentence

"""Error messages that differ in a name form one cluster; different errors stay apart."""

from __future__ import annotations

from agentrl.formatting.repeated_lines import pattern_of
from agentrl.queries.tool_error_kinds import cluster


def messages(*told: str) -> list[str]:
    return sorted(set(cluster(pattern_of(one) for one in told).values()))


def test_messages_that_differ_only_in_a_name_form_one_cluster() -> None:
    assert messages("no such item: baek", "no such item: stwe") == ["no such item: …"]
    assert messages("not an expression: 2*", "not an expression: 3 +", "not an expression: ans x") == [
        "not an expression: …"
    ]
    assert messages(*(f"item {name} is sold out" for name in ("bake", "stew", "soup"))) == ["item … is sold out"]
    assert messages("bad sign U+FFFD", "bad sign U+200B", "bad sign U+7") == ["bad sign #"]
    again = messages("no such item: …", "no such item: soup")
    assert again == ["no such item: …"], "a cluster with a placeholder takes further names"


def test_different_errors_form_separate_clusters() -> None:
    two = ["connection refused by host", "connection reset by host"]
    assert messages(*two) == two
    errors = ["OSError: refused", "OSError: reset", "OSError: away"]
    assert messages(*errors) == sorted(errors), "the words after the name of an error are its cause, so they differ"
    short = ["too long", "too large", "too old", "division by zero"]
    assert messages(*short) == sorted(short)

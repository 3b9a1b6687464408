"""The examples run, get the expected scores, and take no more lines than with verifiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import user_lines
from tests.benchmarks.scripted_service import SCORES, scripted_service

COUNTED = '''"""A docstring."""
import json
from pathlib import Path

import something  # a comment

data = [json.loads(line) for line in Path("rows").read_text()]
# A comment.


@something.mark
class A:
    """A docstring."""

    @property
    def value(self) -> list[int]:
        if data:
            return [
                1,
            ]
        return []
'''


def test_lines_of_code_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(COUNTED)
    assert user_lines.lines_of(file) == len(["import", "@", "class", "@", "def", "if", "return", "1", "]", "return"])
    assert user_lines.tokens_of(file) == 33


def test_the_examples_get_the_expected_scores(tmp_path: Path) -> None:
    with scripted_service() as url:
        user_lines.as_expected(user_lines.ours(url, tmp_path), "agentrl")


@pytest.mark.parametrize("peer", ["classic", "tasksets"])
@pytest.mark.parametrize("name", SCORES)
def test_examples_take_no_more_lines_than_with_verifiers(name: str, peer: str) -> None:
    ours, theirs = user_lines.OURS / f"{name}.py", user_lines.PEERS / peer / f"{name}.py"
    assert user_lines.lines_of(ours) <= user_lines.lines_of(theirs)
    assert user_lines.tokens_of(ours) <= user_lines.tokens_of(theirs)

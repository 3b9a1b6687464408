"""Environments that are tried or checked without a run, whatever their paths and arguments are."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.cli import tried_environments

QUIZ = """
import agentrl as rl

rl.Environment("quiz", dataset="quiz.jsonl", scorer="exact_match")
"""


@pytest.mark.parametrize("name", ["a, b", "a: {b} # c", 'it\'s "odd"', "back\\slash", "界😀"])
def test_paths_of_model_and_file_are_taken_as_they_are(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "quiz.py").write_text(QUIZ)
    (folder / "quiz.jsonl").write_text('{"query": "1 + 1?", "answer": "2"}\n')
    config = tried_environments.configured(str(folder / "quiz.py"), None, folder / "model", None)
    assert config.model is not None
    assert config.model.path == str(folder / "model")
    assert config.environments["quiz"].dataset == str(folder / "quiz.jsonl")


def test_arguments_of_a_word_have_any_characters(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"query": "1 + 1?", "answer": "2"}\n')
    environment = {"dataset": str(rows), "system": '界😀 # {not} "yaml"'}
    found = tried_environments._loaded(f"  a: {tried_environments._quoted(environment)}\n", [])
    assert found.environments["a"].system == environment["system"]

"""Run files are read as YAML 1.2, with the line of each value."""

from __future__ import annotations

import pytest

from agentrl.config.yaml_reader import read_tree, read_value
from agentrl.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("12:30:00", "12:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("010", "010"),
        ("1_000", "1_000"),
        ("0x10", 16),
        ("-3", -3),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("true", True),
        ("~", None),
        ("[a, 1]", ["a", 1]),
        ("'1'", "1"),
        ("", ""),
        ("  ", "  "),
        ("{a: {b: 2}}", {"a": {"b": 2}}),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    seen = read_value(text, "--set x")
    assert seen == value
    assert type(seen) is type(value)


def test_every_value_has_its_line():
    tree = read_tree("a: 1\nb:\n  c:\n  - x\n  - y: 2\n\n  d: {e: 3}\n", "f.yaml")
    assert tree.value == {"a": 1, "b": {"c": ["x", {"y": 2}], "d": {"e": 3}}}
    assert {path: tree.lines[path] for path in [("a",), ("b", "c", "0"), ("b", "c", "1", "y"), ("b", "d", "e")]} == {
        ("a",): 1,
        ("b", "c", "0"): 4,
        ("b", "c", "1", "y"): 5,
        ("b", "d", "e"): 7,
    }


def test_anchors_and_merges_work_and_own_keys_win():
    text = "base: &base\n  x: 1\n  y: 2\nuse:\n  <<: *base\n  y: 3\n"
    tree = read_tree(text, "f.yaml")
    assert tree.value["use"] == {"x": 1, "y": 3}
    assert tree.lines[("use", "y")] == 6


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
"""Twelve lines that stand for thirty thousand million values."""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: the key 'a' appears twice; first on line 1"),
        ("a:\n  b: 1\n  b: 2\n", "f.yaml:3: the key 'b' appears twice"),
        ("- a\n", "f.yaml:1: a run file is made of"),
        ("a: [1\nb: 2\n", "f.yaml:2: this is not valid YAML"),
        ("a: 'x\n", "f.yaml:1: this is not valid YAML"),
        ("a: 1\nb:\n  c: [1,\n  2\n", "f.yaml:4: this is not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]\n", "f.yaml:1: this is not valid YAML"),
        ("a: !secret x\n", "f.yaml:1: this is not valid YAML"),
        ("a: &a [*a]\n", "an alias contains itself"),
        ("? [x, y]\n: 1\n", "f.yaml:1: a key must be one word"),
        ("<<: 3\n", "f.yaml:1: `<<` takes a mapping"),
        ("a: \x07\n", "this is not valid YAML"),
        ("a: 1\n---\nb: 2\n", "this is not valid YAML"),
        ("\ta: 1\n", "f.yaml:1: this is not valid YAML: there is a tab where YAML needs spaces"),
        (f"a: {'[' * 5000}{']' * 5000}\n", "f.yaml: values are nested too deeply"),
        (BOMB, "f.yaml:1: there are more than 100000 values"),
    ],
)
def test_error_names_file_and_line(text, sentence):
    with pytest.raises(ConfigError) as caught:
        read_tree(text, "f.yaml")
    assert sentence in caught.value.message


def test_an_empty_file_is_an_empty_tree():
    assert read_tree("# nothing\n", "f.yaml").value == {}

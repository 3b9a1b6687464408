"""Reads YAML as plain values, with the line of each.

Invariants:
- A mapping has each key once.
- Numbers, booleans and null are those of YAML 1.2 (`no`, `on` and `12:30` are text).
- A file cannot create Python objects, and can have only a bounded number of values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from agentrl.errors import ConfigError

Path = tuple[str, ...]

MOST_VALUES = 100_000
"""A few lines of nested aliases could mean more values than fit into memory."""
_TOO_DEEP = "values are nested too deeply"
_MERGE = "tag:yaml.org,2002:merge"
_CONTAINERS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass(frozen=True, slots=True)
class Tree:
    """The content of a file, and the first line of each value."""

    value: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """The safe loader with the scalars of YAML 1.2."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), list(_first))


def read_tree(text: str, name: str) -> Tree:
    """The tree of a file. Raises ConfigError that names file and line."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return Tree({})
        if not isinstance(node, yaml.MappingNode):
            raise _at(name, node, "a run file is made of `key: value` lines")
        lines: dict[Path, int] = {}
        value = _Builder(loader, name, lines).build(node, ())
        return Tree(value, lines)
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark or broken.context_mark
        # An error at the end of the file is reported one line after the last one, which no editor shows.
        line = f"{min(mark.line + 1, max(1, len(text.splitlines())))}" if mark else "?"
        problem = " ".join(part for part in (broken.context, broken.problem) if part)
        if broken.problem and "'\\t'" in broken.problem:
            problem = "there is a tab where YAML needs spaces"
        raise ConfigError(f"{name}:{line}: this is not valid YAML: {problem}.") from broken
    except yaml.YAMLError as broken:
        raise ConfigError(f"{name}: this is not valid YAML: {' '.join(str(broken).split())}.") from broken
    except RecursionError:
        raise ConfigError(f"{name}: {_TOO_DEEP}.") from None


def read_value(text: str, source: str) -> Any:
    """One value from a variable or the command line; empty text stays text."""
    if not text.strip():
        return text
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return None if node is None else _Builder(loader, source, {}).build(node, ())
    except yaml.YAMLError as broken:
        problem = getattr(broken, "problem", None) or str(broken)
        raise ConfigError(f"{source}: this is not a valid value: {problem}.", hint="Put it in quotes.") from broken
    except RecursionError:
        raise ConfigError(f"{source}: {_TOO_DEEP}.") from None


class _Builder:
    """Turns nodes into values; one per document."""

    def __init__(self, loader: _Loader, name: str, lines: dict[Path, int]) -> None:
        self._loader = loader
        self._name = name
        self._lines = lines
        self._open: set[int] = set()
        self._built = 0

    def build(self, node: yaml.Node, path: Path) -> Any:
        self._built += 1
        if self._built > MOST_VALUES:
            raise _at(self._name, node, f"there are more than {MOST_VALUES} values, counting what aliases name")
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._loader.construct_object(node)
        if node.tag not in _CONTAINERS:
            raise _at(self._name, node, f"this is not valid YAML: the tag {node.tag} is unknown")
        # An anchor may contain itself.
        if id(node) in self._open:
            raise _at(self._name, node, "an alias contains itself")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            return [self.build(item, (*path, str(index))) for index, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        value: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            key, line = self._key(key_node), key_node.start_mark.line + 1
            if key in first:
                raise _at(self._name, key_node, f"the key {key!r} appears twice; first on line {first[key]}")
            first[key] = line
            self._lines.setdefault((*path, key), line)
            value[key] = self.build(value_node, (*path, key))
        for source in merged:
            if not isinstance(source, yaml.MappingNode):
                raise _at(self._name, source, "`<<` takes a mapping")
            for key, item in self.build(source, path).items():
                value.setdefault(key, item)
        return value

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _at(self._name, node, "a key must be one word")
        return str(node.value)


def _at(name: str, node: yaml.Node, sentence: str) -> ConfigError:
    return ConfigError(f"{name}:{node.start_mark.line + 1}: {sentence}.")

"""Turns the errors of pydantic into messages for people.

Invariants:
- One error names all mistakes of a configuration.
- Each message names the source, the key and the allowed values.
- A value that may be a secret is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentrl.config import introspection
from agentrl.config.contradictions import nearest
from agentrl.config.field_types import Section
from agentrl.config.run import RunConfig
from agentrl.config.secrets import SecretRef, names_a_secret
from agentrl.errors import ConfigError

Path = tuple[str, ...]
Where = Callable[[Path], str]
"""The source of a value, `run.yaml:12` or `--set a.b=c`; empty for a default."""

_WHOLE = introspection.Shape(RunConfig)
_LONGEST_VALUE = 60


def error_of(invalid: ValidationError, where: Where) -> ConfigError:
    """One error with all mistakes."""
    return combine([sentence for details in invalid.errors() for sentence in _sentences(details, where)])


def combine(sentences: Sequence[str]) -> ConfigError:
    """The message for several mistakes: one mistake is one sentence; several are a list."""
    unique = list(dict.fromkeys(sentences))
    if len(unique) == 1:
        return ConfigError(unique[0])
    return ConfigError("\n  ".join([f"The configuration has {len(unique)} mistakes:", *unique]))


def combine_errors(errors: Sequence[ConfigError]) -> ConfigError:
    """Like `combine`, with the hint of each error."""
    return errors[0] if len(errors) == 1 else combine([f"{each.message} {each.hint}".rstrip() for each in errors])


def unknown_key(path: Path, where: str) -> str:
    """The message about an unknown key."""
    last = len(path) - 1
    depth = next((depth for depth in range(last) if _WHOLE.at(path[: depth + 1]) is None), last)
    place, wrong = _WHOLE.at(path[:depth]), ".".join(path[: depth + 1])
    if place is not None and not place.keys:
        return _placed(where, f"{'.'.join(path[:depth])} has no keys of its own, so there is no {wrong}")
    below = "".join(f"{key}." for key in path[:depth])
    return _placed(where, f"unknown key {wrong}; {nearest(path[depth], place.keys if place else (), below)}")


def _sentences(details: ErrorDetails, where: Where) -> list[str]:
    path = tuple(str(part) for part in details["loc"])
    if details["type"] == "between_sections":
        found = details.get("ctx", {})["problems"]
        return [_placed(where(tuple(at)), f"{'.'.join(at)} {sentence}") for at, sentence in found]
    if details["type"] == "extra_forbidden":
        return [unknown_key(path, where(path))]
    if details["type"] == "missing":
        return [_placed(where(path[:-1]), f"{'.'.join(path[:-1]) or 'the run'} needs the key {path[-1]}")]
    return [_placed(where(path), _wrong_value(details, path))]


def _wrong_value(details: ErrorDetails, path: Path) -> str:
    key = ".".join(path) or "the run"
    place = _WHOLE.at(path)
    if details["type"] == "value_error":
        problem = str(details.get("ctx", {}).get("error", details["msg"]))
        joined = f"{key} {problem}" if problem.startswith(("must ", "needs ")) else f"{key}: {problem}"
        # Messages about a whole section contain the wrong values already.
        whole = " not " in problem or isinstance(details["input"], Mapping | Section)
        return joined if whole else joined + _shown(details["input"], path)
    rule = introspection.allowed(place) if place is not None else ""
    if not rule and details["type"] in ("literal_error", "enum"):
        rule = str(details.get("ctx", {}).get("expected", "")).replace("''", "empty").replace("'", "")
    if details["type"] == "string_pattern_mismatch":
        rule = "small letters, digits and dashes"
    if not rule or details["type"] in ("too_short", "string_too_short"):
        return f"{key}: {details['msg']}"
    return f"{key} must be {rule}{_shown(details['input'], path)}"


def _shown(value: Any, path: Path) -> str:
    """The value as it was written, unless it may be a secret."""
    if isinstance(value, SecretRef):
        return ""
    if isinstance(value, Mapping):
        return ", not a table"
    place = _WHOLE.at(path)
    secret = bool(path) and ("env" in path or names_a_secret(path[-1]))
    if place is None or secret:
        return ""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return f", not {text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + '…'}"


def _placed(where: str, sentence: str) -> str:
    end = "" if sentence.endswith((".", "?")) else "."
    option, _, key = where.partition(" ")
    if option == "--set" and key and key in sentence:
        # The option contains the key, so it is not repeated.
        return f"{option}{' ' if sentence.startswith(key) else ': '}{sentence}{end}"
    return f"{where}: {sentence}{end}" if where else f"{sentence}{end}"

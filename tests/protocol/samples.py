"""Makes one filled and one bare sample of every message and row from their types.

A sample has a distinct value in every field, so that a field that moves or changes its name or type changes the bytes.
"""

from __future__ import annotations

import enum
import itertools
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from agentrl.protocol import commands, control_commands, data_changes, data_commands, messages, rows
from agentrl.protocol.message_base import Args, Message

MESSAGES: dict[str, type[Message]] = {
    kind.__name__: kind for kind in Message.__subclasses__() if kind.__module__.startswith("agentrl.protocol.")
}
ROWS: dict[str, type[rows.Row]] = {kind.__name__: kind for kind in rows.Row.__subclasses__()}
ARGS: dict[str, type[Args]] = {spec.name: spec.args for spec in commands.COMMANDS.values()}
RESULTS: dict[str, type[msgspec.Struct]] = {
    kind.__name__: kind
    for kind in (
        control_commands.Accepted,
        control_commands.StatusReport,
        control_commands.WhyReport,
        control_commands.KeyRow,
        data_commands.AccountReport,
        data_changes.Done,
        data_commands.ExportPart,
        data_commands.ImagePart,
        data_commands.Page,
        data_commands.RecordStory,
        data_commands.Story,
        data_commands.TokenPart,
        data_commands.ToolErrorGroup,
        messages.LogChunk,
        messages.ScanReport,
        messages.StackReport,
    )
}
EVERYTHING: dict[str, type[msgspec.Struct]] = {
    **MESSAGES,
    **ROWS,
    **RESULTS,
    **{f"args of {name}": kind for name, kind in ARGS.items()},
}


def filled(kind: type[Any]) -> Any:
    """A sample with every field set."""
    return _struct(kind, itertools.count(1), bare=False)


def bare(kind: type[Any]) -> Any:
    """A sample with only those fields set that have no default."""
    return _struct(kind, itertools.count(1), bare=True)


def _struct(kind: type[Any], numbers: Iterator[int], *, bare: bool) -> Any:
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if bare and not field.required:
            continue
        values[field.name] = _value(field.type, field.name, numbers)
    return kind(**values)


def _value(kind: Any, name: str, numbers: Iterator[int]) -> Any:
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    number = next(numbers)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _value(next(each for each in inner if each is not type(None)), name, numbers)
    if origin is typing.Literal:
        return inner[-1]
    if origin is tuple:
        return (_value(inner[0], name, numbers), _value(inner[0], name, numbers))
    if origin in (list, set):
        return origin((_value(inner[0], name, numbers), _value(inner[0], name, numbers)))
    if origin is dict:
        return {f"{name}-{number}": _value(inner[1], name, numbers)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, numbers, bare=False)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)[-1]
    plain: dict[Any, Any] = {
        Any: f"{name}-{number}",
        str: f"{name}-{number}",
        int: number,
        float: number + 0.5,
        bool: True,
        bytes: b"%d" % number,
        msgspec.Raw: msgspec.Raw(msgspec.msgpack.encode({name: number})),
    }
    return plain[kind]

"""The bytes on the wire do not change by accident, because a change breaks every peer of another version.

To accept an intended change: AGENTRL_WRITE_GOLDEN=1 pytest tests/protocol/test_golden.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from agentrl.protocol import wire
from tests.protocol.samples import EVERYTHING, MESSAGES, ROWS, bare, filled

GOLDEN = Path(__file__).with_name("golden.json")


def _now() -> dict[str, dict[str, str]]:
    return {
        name: {"filled": wire.encode(filled(kind)).hex(), "bare": wire.encode(bare(kind)).hex()}
        for name, kind in sorted(EVERYTHING.items())
    }


if os.environ.get("AGENTRL_WRITE_GOLDEN"):
    GOLDEN.write_text(json.dumps(_now(), indent=1) + "\n")

golden: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text())


def test_every_message_has_golden_bytes() -> None:
    assert sorted(golden) == sorted(EVERYTHING)


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_bytes_are_the_golden_ones(name: str) -> None:
    assert _now()[name] == golden[name]


@pytest.mark.parametrize("name", sorted(EVERYTHING))
@pytest.mark.parametrize("form", ["filled", "bare"])
def test_golden_bytes_are_understood(name: str, form: str) -> None:
    kind = EVERYTHING[name]
    expected = filled(kind) if form == "filled" else bare(kind)
    read = wire.decode_as(kind, bytes.fromhex(golden[name][form]))
    assert msgspec.msgpack.encode(read) == msgspec.msgpack.encode(expected)
    assert type(read) is kind


@pytest.mark.parametrize("name", sorted({**MESSAGES, **ROWS}))
def test_samples_differ_in_every_field(name: str) -> None:
    """Otherwise two fields could change places and the bytes would stay."""
    specimen = filled(EVERYTHING[name])
    plain = [
        value
        for field in msgspec.structs.fields(specimen)
        if isinstance(value := getattr(specimen, field.name), str | int | float) and not isinstance(value, bool)
    ]
    assert len(plain) == len(set(plain))

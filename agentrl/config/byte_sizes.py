"""Reads sizes such as `512MiB`. The module imports nothing heavy, because host agents use it too."""

from __future__ import annotations

import re

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?", re.IGNORECASE)
_FACTORS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("ib", 1024), ("b", 1000))
}


def parse_bytes(value: object) -> object:
    """`512MiB` -> 536870912. Values that are not text are left to the validation of the number."""
    if not isinstance(value, str):
        return value
    match = _BYTES.fullmatch(value.strip())
    if match is None:
        raise ValueError("must be a number of bytes such as 1048576 or 512MiB")
    return int(float(match[1]) * _FACTORS[(match[2] or "").lower()])

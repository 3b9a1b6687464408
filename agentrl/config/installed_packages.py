"""Reads which packages are installed, and compares their versions with requirements."""

from __future__ import annotations

import importlib.metadata
import re
from contextlib import suppress


def installed() -> dict[str, tuple[str, list[str]]]:
    """The installed versions of agentrl and its dependencies; without agentrl if it runs from a directory."""
    try:
        own = importlib.metadata.distribution("agentrl")
    except importlib.metadata.PackageNotFoundError:
        return {}
    needed = [each for each in own.requires or [] if "extra ==" not in each]
    found: dict[str, tuple[str, list[str]]] = {"agentrl": (own.version, needed)}
    for requirement in needed:
        name = requirement_of(requirement)[0]
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = (importlib.metadata.version(name), [])
    return found


def requirement_of(text: str) -> tuple[str, str, str]:
    """`pyzmq[x]<28,>=27 ; marker` -> name, extras, condition."""
    parsed = re.fullmatch(r"\s*([\w.-]+)\s*(\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(?:;.*)?", text)
    assert parsed, text
    return parsed[1], parsed[2] or "", parsed[3].strip()


def satisfies(version: str, condition: str) -> bool:
    """Whether a version is within bounds such as `>=27,<28`; other forms count as satisfied."""
    have = _numbers(version)
    for sign, bound in re.findall(r"(>=|<=|==|!=|<|>)\s*([\w.]+)", condition):
        limit = _numbers(bound)
        fits = {
            ">=": have >= limit,
            "<=": have <= limit,
            "==": have == limit,
            "!=": have != limit,
            "<": have < limit,
            ">": have > limit,
        }
        if not fits[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()  # 28 and 28.0 are the same version
    return tuple(numbers)

"""Reads and resolves references to secrets. Files, messages and screens contain the reference, never the secret.

Invariants:
- A SecretRef holds no value.
- The process that uses a secret reads it at that moment.
- No error message repeats a value.
- The module imports nothing heavy, because the host agent resolves references too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.typed_paths import path_of
from agentrl.errors import ConfigError

_ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_FILE = re.compile(r"file:(?!//)(.+)")
_MAX_SECRET_BYTES = 1 << 20
LEAST_TOKEN_CHARS = 16
_KEEPS_A_SECRET = re.compile(r"(password|passwd|secret|token|key|credentials?)(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SecretRef:
    """The place of a secret: `env:NAME` or `file:PATH`."""

    reference: str

    def __str__(self) -> str:
        return self.reference


def is_reference(text: str) -> bool:
    """True for `env:NAME` and `file:PATH`; a URL such as `file:///x` is a plain value."""
    return bool(_ENV.fullmatch(text) or _FILE.fullmatch(text))


def variable_of(text: str) -> str:
    """The variable of a reference `env:NAME`; empty for any other text."""
    match = _ENV.fullmatch(text)
    return match[1] if match else ""


def names_a_secret(name: str) -> bool:
    """True for names that usually hold secrets: `API_KEY`, `HF_TOKEN`, `PGPASSWORD`; not for `MAX_TOKENS`."""
    return _KEEPS_A_SECRET.search(name) is not None


def files_of_references(plain: object) -> Iterator[Path]:
    """The files that references name in a configuration of dicts, lists and text."""
    if isinstance(plain, str):
        if match := _FILE.fullmatch(plain):
            yield path_of(match[1]).resolve()
    elif isinstance(plain, Mapping):
        for value in plain.values():
            yield from files_of_references(value)
    elif isinstance(plain, Iterable):
        for value in plain:
            yield from files_of_references(value)


def parse_reference(value: object) -> SecretRef:
    """Parses a reference. Raises ValueError whose message omits the value, because the value may be the secret
    itself."""
    if not isinstance(value, str) or not is_reference(value):
        raise ValueError("must be a reference to a secret, env:NAME or file:PATH, not the secret itself")
    return SecretRef(value)


def resolve_secret(secret: SecretRef | str, environ: Mapping[str, str] | None = None) -> str:
    """The secret itself. If it is missing, raises ConfigError, which names the reference."""
    reference = str(secret)
    if match := _ENV.fullmatch(reference):
        value = (os.environ if environ is None else environ).get(match[1], "")
        if not value:
            raise ConfigError(f"The secret {reference} is empty.", hint=f"Set the environment variable {match[1]}.")
        return value
    if match := _FILE.fullmatch(reference):
        return _read(reference, path_of(match[1]))
    raise ConfigError("A secret is given as a reference, env:NAME or file:PATH.")


def bearer_token(name: str, secret: SecretRef | str) -> str:
    """A token that callers send in a header. `name`: its key in the run file. Raises ConfigError."""
    token = resolve_secret(secret)
    if len(token) < LEAST_TOKEN_CHARS or not token.isascii() or not token.isprintable():
        raise ConfigError(f"{name} needs at least {LEAST_TOKEN_CHARS} printable ASCII characters.")
    return token


def _read(reference: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_SECRET_BYTES + 1)
        text = body.decode()
    except (OSError, UnicodeDecodeError) as broken:
        why = broken.strerror if isinstance(broken, OSError) else "it is not text"
        raise ConfigError(f"The secret {reference} cannot be read: {why}.", hint=f"Check {path}.") from None
    if len(body) > _MAX_SECRET_BYTES:
        raise ConfigError(f"The secret {reference} is larger than {_MAX_SECRET_BYTES >> 20} MiB.")
    # Editors and `echo` end a file with a newline that is not part of the secret.
    text = text.rstrip("\r\n")
    if not text:
        raise ConfigError(f"The secret {reference} is empty.", hint=f"Write it into {path}.")
    if "\0" in text:
        raise ConfigError(
            f"The secret {reference} contains a NUL character, so no process can receive it.", hint=f"Check {path}."
        )
    return text

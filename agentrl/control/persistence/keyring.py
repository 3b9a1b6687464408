"""Holds the permissions of public keys.

Invariants:
- A revoked key is never accepted again, and its name is never given to another key (connections are known by name, and
  one that is still open must not get new permissions).
- The file is replaced atomically and has mode 0600.
- A change that could not be written is not in force.
"""

from __future__ import annotations

import hashlib
import re
import stat
from pathlib import Path

import msgspec
from msgspec.structs import replace

from agentrl.control.persistence.atomic_file import replace_file
from agentrl.errors import ConfigError, ConflictError, RefusedError, UnknownNameError
from agentrl.protocol.control_commands import KeyRow
from agentrl.protocol.messages import Permission
from agentrl.transport.curve_keys import ClientKey, ServerKeys, load_server_keys, new_keypair

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOSTS = "hosts"
_HOST_CHARS = 50
UNITS = ".units"
"""The suffix of the name of a key for the units of a host. No other key may have such a name."""
_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class _Ring(msgspec.Struct):
    keys: tuple[KeyRow, ...] = ()


class Keyring:
    """The keys of one run, in `keys/` of its state directory."""

    def __init__(self, directory: Path, rows: tuple[KeyRow, ...]) -> None:
        self._directory = directory
        self._set(rows)

    @classmethod
    def open(cls, state_dir: Path) -> Keyring:
        """Read the keyring; a run without one has no keys yet. Raises ConfigError if it cannot be trusted."""
        directory = state_dir / "keys"
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / "keyring.json"
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o022:
                raise ConfigError(f"{path} can be written by others, so it is not used.", hint=f"chmod 600 {path}")
            ring = msgspec.json.decode(path.read_bytes(), type=_Ring)
        except FileNotFoundError:
            ring = _Ring()
        except (OSError, msgspec.DecodeError) as broken:
            # An empty keyring would let revoked keys be admitted again, so a person must decide.
            raise ConfigError(
                f"The keyring {path} cannot be read: {broken}.", hint="Repair it, or remove it."
            ) from broken
        return cls(directory, ring.keys)

    def server_keys(self) -> ServerKeys:
        """The coordinator's own key pair; created when it is first needed."""
        return load_server_keys(self._directory / "server.json")

    def rows(self) -> list[KeyRow]:
        """All keys, including revoked ones."""
        return list(self._rows)

    def lookup(self, public: str) -> tuple[str, Permission] | None:
        """Name and permission of a key; None if it is unknown or revoked."""
        return self._valid.get(public)

    def permission(self, name: str) -> Permission | None:
        """The present permission of a key. It is looked up for each message, so a revocation takes effect at once."""
        return self._permissions.get(name)

    def check(self, name: str, public: str, permission: Permission) -> KeyRow | None:
        """Returns the row of a key that is already admitted, or None. Raises ConflictError or RefusedError."""
        if not _NAME.fullmatch(name):
            raise RefusedError(f"{name!r} is not a valid key name: use at most 64 letters, digits, dots and dashes.")
        if name.endswith(UNITS):
            raise RefusedError(
                f"The name {name!r} is reserved: names that end in {UNITS} are for the units of a host.",
                hint="Choose another name.",
            )
        if not _Z85.fullmatch(public):
            raise RefusedError("A public key is 40 characters of Z85.", hint="`agentrl keys new` makes one.")
        for row in self._rows:
            if row.name != name and row.public != public:
                continue
            if row.revoked_at:
                raise RefusedError(
                    f"The key {row.name} was revoked; neither it nor its name is accepted again.",
                    hint="Create a key with another name: `agentrl keys new`.",
                )
            if (row.name, row.public, row.permission) == (name, public, permission):
                return row
            raise ConflictError(
                f"The key {row.name} exists already, with permission {row.permission}.",
                hint="Choose another name, or use the existing key.",
            )
        return None

    def add(self, name: str, public: str, permission: Permission, at: float) -> KeyRow:
        """Admit a key. Raises ConflictError if the name or the key is already admitted differently."""
        if known := self.check(name, public, permission):
            return known
        added = KeyRow(name, public, permission, created_at=at)
        self._write((*self._rows, added))
        return added

    def add_for_units(self, of: str, public: str, at: float) -> None:
        """Admit the key of the units of a host, which its agent makes. A new one replaces the former."""
        if not _Z85.fullmatch(public) or public in self._valid:
            return
        row = KeyRow(f"{of}{UNITS}", public, Permission.UNIT, created_at=at, of=of)
        self._write((*(each for each in self._rows if (each.name, each.of) != (row.name, of)), row))

    def key_of_host(self, host: str, at: float) -> ClientKey:
        """The key with which a placement starts the agent of this host, without an address.

        It is made once and kept, so that a living agent and a restarted one have the same key."""
        path = self._path_of_host(host)
        if path.exists():
            return ClientKey.load(path)
        pair = new_keypair()
        name = f"{host[:_HOST_CHARS]}.{hashlib.sha256(pair.public.encode()).hexdigest()[:8]}"
        key = ClientKey(name, pair.public, pair.secret, self.server_keys().public, address="")
        key.save(path)
        self.add(name, pair.public, Permission.HOST, at)
        return key

    def placed_hosts(self) -> list[str]:
        """The hosts that have such a key: a placement has started their agents, or tried to."""
        folder = self._directory / _HOSTS
        return sorted(path.name.removesuffix(".json") for path in folder.glob("[!.]*.json")) if folder.is_dir() else []

    def end_key_of_host(self, host: str, at: float) -> None:
        """Refuse the key of a machine that is gone or released; the next machine gets another key."""
        path = self._path_of_host(host)
        if path.exists():
            name = ClientKey.load(path).name
            if name in self._permissions:
                self.revoke(name, at)
            path.unlink()

    def _path_of_host(self, host: str) -> Path:
        return self._directory / _HOSTS / f"{host}.json"

    def revoke(self, name: str, at: float) -> KeyRow:
        """Refuse a key, and the key of its units, from now on. The caller closes its open connections."""
        row = self.find(name)
        if row.revoked_at:
            return row
        gone = [each for each in self._rows if not each.revoked_at and name in (each.name, each.of)]
        self._write(tuple(replace(each, revoked_at=at) if each in gone else each for each in self._rows))
        return self.find(name)

    def find(self, name: str) -> KeyRow:
        """The key of that name, even if it is revoked. Raises UnknownNameError."""
        for row in self._rows:
            if row.name == name:
                return row
        raise UnknownNameError(f"There is no key {name!r}.", hint="`agentrl keys list` shows them.")

    def _write(self, rows: tuple[KeyRow, ...]) -> None:
        body = msgspec.json.format(msgspec.json.encode(_Ring(rows)), indent=2)
        replace_file(self._directory / "keyring.json", body, mode=0o600)
        self._set(rows)

    def _set(self, rows: tuple[KeyRow, ...]) -> None:
        self._rows = rows
        valid = [row for row in rows if not row.revoked_at]
        self._valid = {row.public: (row.name, row.permission) for row in valid}
        self._permissions = {row.name: row.permission for row in valid}

"""Keys are admitted, looked up and permanently revoked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentrl.control.persistence.keyring import Keyring
from agentrl.errors import ConfigError, ConflictError, DiskError, RefusedError, UnknownNameError
from agentrl.protocol.messages import Permission
from agentrl.transport.curve_keys import new_keypair


def test_key_is_valid_until_it_is_revoked(tmp_path: Path) -> None:
    ring, public = Keyring.open(tmp_path), new_keypair().public
    assert ring.lookup(public) is None
    ring.add("ann", public, Permission.OPERATOR, at=5.0)
    assert ring.lookup(public) == ("ann", Permission.OPERATOR)
    assert ring.permission("ann") is Permission.OPERATOR
    assert Keyring.open(tmp_path).lookup(public) == ("ann", Permission.OPERATOR)
    assert ring.revoke("ann", at=9.0).revoked_at == 9.0
    assert ring.revoke("ann", at=11.0).revoked_at == 9.0
    for each in (ring, Keyring.open(tmp_path)):
        assert each.lookup(public) is None
        assert each.permission("ann") is None
        assert [(row.name, row.created_at, row.revoked_at) for row in each.rows()] == [("ann", 5.0, 9.0)]


def test_admitting_the_same_key_again_is_harmless(tmp_path: Path) -> None:
    ring, public = Keyring.open(tmp_path), new_keypair().public
    first = ring.add("ann", public, Permission.VIEWER, at=5.0)
    assert ring.add("ann", public, Permission.VIEWER, at=6.0) == first
    assert len(ring.rows()) == 1


def test_name_and_key_can_be_used_only_once(tmp_path: Path) -> None:
    ring, public = Keyring.open(tmp_path), new_keypair().public
    ring.add("ann", public, Permission.VIEWER, at=5.0)
    for name, key, permission in (
        ("ann", new_keypair().public, Permission.VIEWER),
        ("bob", public, Permission.VIEWER),
        ("ann", public, Permission.ADMIN),
    ):
        with pytest.raises(ConflictError, match="key ann exists already, with permission viewer"):
            ring.add(name, key, permission, at=6.0)


def test_revoked_key_and_its_name_are_never_accepted_again(tmp_path: Path) -> None:
    ring, public = Keyring.open(tmp_path), new_keypair().public
    ring.add("ann", public, Permission.VIEWER, at=5.0)
    ring.revoke("ann", at=6.0)
    for name, key in (("ann", new_keypair().public), ("bob", public), ("ann", public)):
        with pytest.raises(RefusedError, match="revoked"):
            ring.add(name, key, Permission.ADMIN, at=7.0)
    assert ring.lookup(public) is None


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "x" * 65, "a\nb"])
def test_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RefusedError, match="not a valid key name"):
        Keyring.open(tmp_path).add(name, new_keypair().public, Permission.VIEWER, at=1.0)


def test_name_of_a_key_for_units_is_reserved(tmp_path: Path) -> None:
    ring = Keyring.open(tmp_path)
    with pytest.raises(RefusedError, match=r"'node\.units' is reserved"):
        ring.add("node.units", new_keypair().public, Permission.HOST, at=1.0)
    ring.add("node.units.a", new_keypair().public, Permission.HOST, at=1.0)
    ring.add("node", new_keypair().public, Permission.HOST, at=1.0)
    ring.add_for_units("node", new_keypair().public, at=2.0)
    assert ring.permission("node.units") is Permission.UNIT


@pytest.mark.parametrize("public", ["", "short", "x" * 39 + "\n", "é" * 40])
def test_invalid_public_key_is_refused(tmp_path: Path, public: str) -> None:
    with pytest.raises(RefusedError, match="40 characters"):
        Keyring.open(tmp_path).add("ann", public, Permission.VIEWER, at=1.0)


def test_unknown_key_cannot_be_revoked(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="'unknown'"):
        Keyring.open(tmp_path).revoke("unknown", at=1.0)


def test_file_is_private_and_refused_if_others_can_write_it(tmp_path: Path) -> None:
    ring = Keyring.open(tmp_path)
    ring.add("ann", new_keypair().public, Permission.ADMIN, at=1.0)
    path = tmp_path / "keys" / "keyring.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="written by others"):
        Keyring.open(tmp_path)


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    Keyring.open(tmp_path).add("ann", new_keypair().public, Permission.ADMIN, at=1.0)
    (tmp_path / "keys" / "keyring.json").write_bytes(b'{"keys": [')
    with pytest.raises(ConfigError, match="cannot be read"):
        Keyring.open(tmp_path)


def test_change_that_cannot_be_written_is_not_in_force(tmp_path: Path) -> None:
    ring, public = Keyring.open(tmp_path), new_keypair().public
    ring.add("ann", public, Permission.VIEWER, at=1.0)
    # A directory in the place of the draft stops the write for root, too.
    (tmp_path / "keys" / f".keyring.json.{os.getpid()}").mkdir()
    with pytest.raises(DiskError):
        ring.revoke("ann", at=2.0)
    assert ring.lookup(public) == ("ann", Permission.VIEWER)
    assert Keyring.open(tmp_path).lookup(public) == ("ann", Permission.VIEWER)


def test_server_key_pair_is_created_once(tmp_path: Path) -> None:
    ring = Keyring.open(tmp_path)
    assert ring.server_keys() == ring.server_keys() == Keyring.open(tmp_path).server_keys()
    assert (tmp_path / "keys" / "server.json").stat().st_mode & 0o777 == 0o600

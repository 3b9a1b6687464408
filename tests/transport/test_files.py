"""Addresses and key files: what cannot work, or is not safe, is refused with a sentence."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.transport import addresses
from agentrl.transport.curve_keys import ClientKey, load_server_keys, new_keypair, public_from_wire

RUN = "0123abcd-0000-4000-8000-000000000000"


@pytest.fixture
def runtime(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_dir))
    return short_dir


def test_sockets_live_in_a_private_directory(runtime: Path) -> None:
    directory = addresses.runtime_dir(RUN)
    assert directory == runtime / "agentrl" / "0123abcd"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert directory.parent.stat().st_mode & 0o777 == 0o700
    assert addresses.runtime_dir(RUN) == directory
    assert addresses.hub_address(RUN) == f"ipc://{directory}/hub"
    assert addresses.feed_address(RUN) == f"ipc://{directory}/feed"
    assert addresses.metrics_address(RUN) == f"ipc://{directory}/metrics"


def test_removed_sockets_leave_no_file(runtime: Path) -> None:
    hub = Path(addresses.hub_address(RUN).removeprefix("ipc://"))
    hub.touch()
    addresses.remove_sockets(RUN)
    assert not hub.parent.exists()
    stranger = Path(addresses.feed_address(RUN).removeprefix("ipc://")).with_name("notes")
    stranger.touch()
    addresses.remove_sockets(RUN)
    assert stranger.exists()


def test_directory_that_others_could_enter_is_closed_to_them(runtime: Path) -> None:
    (runtime / "agentrl" / "0123abcd").mkdir(parents=True)
    (runtime / "agentrl" / "0123abcd").chmod(0o777)
    assert addresses.runtime_dir(RUN).stat().st_mode & 0o777 == 0o700


def test_without_a_usable_runtime_directory_tmp_serves(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # logind removes the last one at the last logout.
    for unusable in ("", str(short_dir / "missing"), f"/run/user/{os.getuid()}"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", unusable)
        run = uuid.uuid4().hex
        directory = addresses.runtime_dir(run)
        assert directory == Path(f"/tmp/agentrl-{os.getuid()}") / run[:8]
        directory.rmdir()


def test_link_in_place_of_the_directory_is_refused(runtime: Path) -> None:
    (runtime / "agentrl").mkdir()
    (runtime / "elsewhere").mkdir()
    (runtime / "agentrl" / "0123abcd").symlink_to(runtime / "elsewhere")
    with pytest.raises(ConfigError, match="belongs to another user or is not a directory"):
        addresses.runtime_dir(RUN)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_directory_of_another_user_is_refused(runtime: Path) -> None:
    (runtime / "agentrl" / "0123abcd").mkdir(parents=True)
    os.chown(runtime / "agentrl" / "0123abcd", 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to another user"):
        addresses.runtime_dir(RUN)


def test_path_that_is_too_long_for_a_socket_is_refused(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = runtime / ("x" * 90)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with pytest.raises(ConfigError, match="107") as refused:
        addresses.hub_address(RUN)
    assert "XDG_RUNTIME_DIR" in refused.value.hint


def test_longest_path_that_is_admitted_can_be_bound(runtime: Path) -> None:
    import zmq

    room = addresses.IPC_PATH_MAX_BYTES - len(str(runtime)) - 1
    address = addresses._ipc(runtime / ("x" * room))
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(address)
    with pytest.raises(ConfigError):
        addresses._ipc(runtime / ("x" * (room + 1)))


@pytest.mark.parametrize("listen", ["127.0.0.1:7600", "tcp://127.0.0.1:7600"])
def test_three_ports_in_a_row(listen: str) -> None:
    assert addresses.tcp_triplet(listen) == ("tcp://127.0.0.1:7600", "tcp://127.0.0.1:7601", "tcp://127.0.0.1:7602")


@pytest.mark.parametrize(
    "listen", ["", "7600", ":7600", "host", "host:", "host:0", "host:65534", "host:x", "host:-1", "h:²"]
)
def test_invalid_address_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        addresses.tcp_triplet(listen)


def _key() -> ClientKey:
    pair = new_keypair()
    return ClientKey("anna", pair.public, pair.secret, new_keypair().public, "tcp://h:1", "tcp://h:2", "tcp://h:3")


def test_key_file_comes_back_as_it_was_and_is_private(tmp_path: Path) -> None:
    key = _key()
    key.save(tmp_path / "keys" / "anna.json")
    assert (tmp_path / "keys" / "anna.json").stat().st_mode & 0o777 == 0o600
    assert ClientKey.load(tmp_path / "keys" / "anna.json") == key
    assert [each.name for each in (tmp_path / "keys").iterdir()] == ["anna.json"]


def test_secrets_are_never_shown() -> None:
    key, pair = _key(), new_keypair()
    assert key.secret not in repr(key)
    assert pair.secret not in repr(pair)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_key_file_that_others_can_read_is_not_used(tmp_path: Path, mode: int) -> None:
    _key().save(tmp_path / "anna.json")
    (tmp_path / "anna.json").chmod(mode)
    with pytest.raises(ConfigError, match="can be read by others") as refused:
        ClientKey.load(tmp_path / "anna.json")
    assert "chmod 600" in refused.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of root and reads it as another user")
@pytest.mark.parametrize(("mode", "used"), [(0o440, True), (0o640, True), (0o444, False), (0o660, False)])
def test_key_file_of_root_may_be_read_by_one_group(mode: int, used: bool) -> None:
    """This is how Kubernetes gives a secret to a container that does not run as root."""
    with tempfile.TemporaryDirectory() as folder:
        path, nobody = Path(folder) / "anna.json", 65534
        path.parent.chmod(0o755)
        _key().save(path)
        path.chmod(mode)
        os.chown(path, 0, nobody)
        before = os.getgroups()
        os.setgroups([])
        os.setegid(nobody)
        os.seteuid(nobody)
        try:
            with contextlib.nullcontext() if used else pytest.raises(ConfigError, match="can be read by others"):
                assert ClientKey.load(path).name == "anna"
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(before)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff\xfe",
        b'{"name": "a", "public": "x", "secret": "y", "server_public": "z", "address": "tcp://h:1"}',
        b'{"name": "a", "public": 5, "secret": "y", "server_public": "z", "address": "tcp://h:1"}',
        b'{"name": "a", "public": "' + "é".encode() * 40 + b'", "secret": "y", "server_public": "z", "address": "t"}',
    ],
)
def test_invalid_key_file_is_refused_with_a_sentence(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "key.json"
    path.touch(mode=0o600)
    path.write_bytes(body)
    with pytest.raises(ConfigError, match="not a key file"):
        ClientKey.load(path)


def test_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        ClientKey.load(tmp_path / "none.json")


def test_server_keys_are_made_once(tmp_path: Path) -> None:
    first = load_server_keys(tmp_path / "server.json")
    assert load_server_keys(tmp_path / "server.json") == first
    assert (tmp_path / "server.json").stat().st_mode & 0o777 == 0o600


def test_wire_form_of_a_public_key() -> None:
    from zmq.utils import z85

    pair = new_keypair()
    assert public_from_wire(z85.decode(pair.public.encode())) == pair.public

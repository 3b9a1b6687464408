"""Defines the commands `keys new`, `keys list`, `keys revoke` and `keys rotate`.

Invariants:
- A secret is written to a file and never printed.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.options import Cli, add_command, group
from agentrl.errors import (
    AgentrlError,
    ConfigError,
    ConflictError,
    ExitCode,
    NoCoordinatorError,
    OperationFailedError,
    UsageError,
    WaitTimeoutError,
)
from agentrl.formatting.sentences import ended

if TYPE_CHECKING:
    from agentrl.client import Client, ClientKey


_EVERYWHERE = ("", "*", "0.0.0.0", "[::]", "::")


class Permission(enum.StrEnum):
    """The permission of a key: of a person; with `host`, of a host agent on another host; with `unit`, of one unit."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    HOST = "host"
    UNIT = "unit"


def register(app: typer.Typer) -> None:
    keys = group(app, "keys", "Who may use the run from other hosts, and how.")
    add_command(keys, "new", acts=True)(new)
    add_command(keys, "list")(list_keys)
    add_command(keys, "revoke", acts=True)(revoke)
    add_command(keys, "rotate", acts=True)(rotate)


async def new(
    cli: Cli,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of its holder, for the audit.")],
    permission: Annotated[Permission, typer.Option("--permission", help="What it may do.")] = Permission.VIEWER,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The key file; default: NAME.key here.", show_default=False),
    ] = None,
) -> ExitCode:
    """Make a key file that opens the run from another host."""
    from agentrl.cli import output

    file = file_of(name, out)
    async with cli.connect() as client:
        key = await make_key(cli, client, name, permission, file)
    if key is None:
        return ExitCode.OK
    if cli.json:
        made = {"name": name, "permission": permission.value, "public": key.public, "address": key.address}
        output.emit({**made, "file": str(file)})
        return ExitCode.OK
    output.say(f"{file} lets its holder reach {key.address} as {permission.value}; keep it secret (mode 0600).")
    output.say(f"Use it by `agentrl status --key {file.name}`, or set AGENTRL_KEY to its path.")
    return ExitCode.OK


def file_of(name: str, out: Path | None) -> Path:
    """The file of a new key. Raises UsageError or ConflictError."""
    from agentrl.config.typed_paths import path_of

    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or not name.isascii():
        raise UsageError(f"{name!r} is not a name of a key.", hint="Use letters, digits, dots, dashes and underscores.")
    file = path_of(out or f"{name}.key").absolute()
    if file.exists():
        raise ConflictError(
            f"{file} exists already; nothing was overwritten.", hint="Choose another place by --out FILE."
        )
    return file


async def make_key(cli: Cli, client: Client, name: str, permission: Permission, file: Path) -> ClientKey | None:
    """Write a key to the file and have it admitted; returns None after a mere preview."""
    from agentrl.cli.execute import agreed, finished
    from agentrl.client import ClientKey, new_keypair
    from agentrl.protocol.control_commands import AddKey
    from agentrl.protocol.messages import Permission as Allowed
    from agentrl.protocol.rows import OperationState

    pair = new_keypair()
    key = ClientKey(name=name, public=pair.public, secret=pair.secret, **_listening(client))
    args = AddKey(name=name, public=pair.public, permission=Allowed(permission.value))
    send = await agreed(cli, client, "add_key", args)
    if send is None:
        return None
    # The file comes first: an admitted key without its file would be useless.
    key.save(file)
    with _kept_unless_refused(file):
        row = await finished(cli, client, (await send()).operation)
        if row.state is not OperationState.SUCCEEDED:
            raise OperationFailedError(f"The key was not admitted: {ended(row.reason or row.state)}")
    return key


@contextlib.contextmanager
def _kept_unless_refused(file: Path) -> Iterator[None]:
    """Remove the key file if the key was refused. Without an answer the file stays, because the key may be valid."""
    from agentrl.cli import output

    try:
        yield
    except BaseException as failed:
        unknown = not isinstance(failed, AgentrlError) or isinstance(failed, NoCoordinatorError | WaitTimeoutError)
        if unknown:
            output.note(f"{file} is kept: the key may have been admitted. `agentrl keys list` shows whether it was.")
        else:
            file.unlink(missing_ok=True)
        raise


def _listening(client: Client) -> dict[str, str]:
    """The address at which the coordinator listens for other hosts, and its public key."""
    from agentrl.client.run_processes import read_json

    mine = client.target.key
    if mine is not None:
        return {
            "server_public": mine.server_public,
            "address": mine.address,
            "feed": mine.feed,
            "metrics": mine.metrics,
            "run": mine.run,
        }
    name, state_dir = client.target.what, client.target.state_dir
    found = read_json(state_dir / "coordinator.json") if state_dir else {}
    listen, public = str(found.get("listen", "")), str(found.get("public", ""))
    if not listen or not public:
        raise ConfigError(
            f"The run {name} is not reachable from other hosts, so a key is useless.",
            hint="Set coordinator.listen in the run file, such as tcp://0.0.0.0:7400, then `agentrl down` and `up`.",
        )
    return {"server_public": public, "address": _reachable(listen), "run": str(found.get("run", ""))}


def _reachable(listen: str) -> str:
    """An address for other hosts: `0.0.0.0`, which means every address of this host, is replaced by its name."""
    import socket

    host, _, port = listen.removeprefix("tcp://").rpartition(":")
    return f"tcp://{socket.gethostname() if host in _EVERYWHERE else host}:{port}"


async def list_keys(cli: Cli) -> ExitCode:
    """Show all keys and their permissions."""
    from agentrl.cli import output

    async with cli.connect() as client:
        found = await client.list_keys()
    if cli.json:
        output.emit(found)
        return ExitCode.OK
    if not found:
        output.say("There is no key.")
        return ExitCode.OK
    rows = [
        (
            row.name,
            str(row.permission),
            output.moment(row.created_at),
            f"revoked {output.moment(row.revoked_at)}" if row.revoked_at else "",
            row.public,
        )
        for row in found
    ]
    output.show(output.table(("key", "may", "made", "", "public"), rows), cli.color)
    return ExitCode.OK


async def revoke(
    cli: Cli, key_name: Annotated[str, typer.Argument(metavar="NAME", help="The name of its holder.")]
) -> ExitCode:
    """Refuse a key from now on; its connections end at once."""
    from agentrl.cli.execute import act
    from agentrl.protocol.control_commands import RevokeKey

    return await act(cli, "revoke_key", RevokeKey(name=key_name))


async def rotate(cli: Cli) -> ExitCode:
    """Replace the secrets by which processes of the run know each other.

    These are the token of its HTTP listeners and, with several hosts, the authority and the certificates of its
    tunnels. The run works on: the former ones are accepted until every host has the new ones. Keys of people and hosts
    stay; `keys revoke` ends one."""
    from agentrl.cli.execute import act
    from agentrl.protocol.control_commands import RotateKeys

    return await act(cli, "rotate_keys", RotateKeys())

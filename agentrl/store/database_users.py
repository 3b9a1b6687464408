"""Read-only users of a run's database, for people with a MongoDB client:
`python -m agentrl.store.database_users --state-dir S --run-dir R make NAME FILE | remove NAME | list`.

Invariants:
- A user that is made here reads one database and nothing else.
- Its URL, with a password, is written only to a new file with mode 0600, never to a screen; the file exists before the
  user does.
- Only users that have just the role `read` are listed and removed, so the user of the run stays.

stdout is one JSON message.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import pymongo.errors
from pymongo import MongoClient

from agentrl.errors import AgentrlError, ConfigError, ConflictError, DiskError, ExitCode, RefusedError, UnknownNameError
from agentrl.store.database import StoreUnavailableError
from agentrl.store.run_database import configuration, mongo_url
from agentrl.store.server_checks import reason

ANSWERS_WITHIN_MS = 10_000
_OF_THE_LOGIN = frozenset(
    {"authmechanism", "authsource", "authmechanismproperties", "tlscertificatekeyfile", "tlscertificatekeyfilepassword"}
)
"""Options of a URL that belong to its user."""
_UNAUTHORIZED = 13
_EXISTS = 51003


def make(url: str, database: str, user: str, file: Path) -> None:
    """Make the user, and write the URL with its password into the file."""
    password = secrets.token_urlsafe(24)
    _write_new(file, reader_url(url, database, user, password))
    try:
        with _administrating(url, database) as client:
            client[database].command("createUser", user, pwd=password, roles=[{"role": "read", "db": database}])
    except BaseException as failed:
        file.unlink(missing_ok=True)
        if isinstance(failed, pymongo.errors.OperationFailure) and failed.code == _EXISTS:
            raise ConflictError(
                f"The database {database} has a user {user} already.", hint="Remove it first, or choose another name."
            ) from failed
        raise


def remove(url: str, database: str, user: str) -> None:
    if user not in readers(url, database):
        raise UnknownNameError(
            f"The database {database} has no read-only user {user}.", hint="`agentrl database users` lists them."
        )
    with _administrating(url, database) as client:
        client[database].command("dropUser", user)


def readers(url: str, database: str) -> list[str]:
    with _administrating(url, database) as client:
        found = client[database].command("usersInfo")["users"]
    only_read = [{"role": "read", "db": database}]
    return sorted(each["user"] for each in found if each["roles"] == only_read)


def reader_url(url: str, database: str, user: str, password: str) -> str:
    """The URL of the same servers for another user, with all options except those of the login."""
    scheme, _, rest = url.partition("://")
    address, _, query = rest.partition("?")
    hosts = address.rpartition("@")[2].partition("/")[0]
    kept = [(name, value) for name, value in parse_qsl(query) if name.lower() not in _OF_THE_LOGIN]
    options = urlencode([*kept, ("authSource", database)])
    return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{hosts}/{database}?{options}"


@contextmanager
def _administrating(url: str, database: str) -> Iterator[MongoClient[dict[str, Any]]]:
    """A client of the run's own user; refusals of the server become AgentrlError."""
    try:
        with MongoClient[dict[str, Any]](url, serverSelectionTimeoutMS=ANSWERS_WITHIN_MS) as client:
            yield client
    except pymongo.errors.OperationFailure as refused:
        if refused.code == _EXISTS:
            raise
        hint = ""
        if refused.code == _UNAUTHORIZED:
            made = 'db.createUser({user: NAME, pwd: passwordPrompt(), roles: ["read"]})'
            hint = f"An administrator can do it in {database}: {made}."
        raise RefusedError(f"MongoDB does not let the run manage users: {reason(refused)}.", hint=hint) from refused
    except pymongo.errors.ConnectionFailure as away:
        hint = "The database of a run is up while the run is; `agentrl up --read-only` starts it alone."
        raise StoreUnavailableError(f"MongoDB does not answer: {reason(away)}.", hint=hint) from away
    except (pymongo.errors.PyMongoError, ValueError) as wrong:
        raise ConfigError(f"The URL of MongoDB cannot be used: {reason(wrong)}.") from wrong


def _write_new(file: Path, text: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConflictError(
            f"{file} exists already; nothing was overwritten.", hint="Choose another --out FILE."
        ) from None
    except OSError as broken:
        raise DiskError(f"{file} cannot be written: {broken.strerror}.") from broken
    with open(descriptor, "w") as opened:
        opened.write(text + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agentrl.store.database_users", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    acts = parser.add_subparsers(dest="act", required=True)
    making = acts.add_parser("make")
    making.add_argument("name")
    making.add_argument("file", type=Path)
    acts.add_parser("remove").add_argument("name")
    acts.add_parser("list")
    given = parser.parse_args()
    try:
        config = configuration(given.run_dir)
        url = mongo_url(config, given.state_dir)
        if given.act == "make":
            make(url, config.name, given.name, given.file)
        elif given.act == "remove":
            remove(url, config.name, given.name)
        found = readers(url, config.name) if given.act == "list" else []
    except AgentrlError as failed:
        error = {"message": failed.message, "hint": failed.hint, "code": int(failed.exit_code)}
        print(json.dumps({"failed": error}))
        return failed.exit_code
    print(json.dumps({"database": config.name, "users": found}))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())

"""Checks whether a MongoDB server keeps what the store promises, before a run depends on it.

Invariants:
- `findings` is pure: it compares facts with what the store needs, and each failure says which promise would break.
- A look leaves nothing behind, writes only if the user may write, and ends within seconds.
- No sentence contains the URL, because the URL contains a password.

What the store needs: conditional updates that are durable once acknowledged (a write concern of majority and journal on
an engine with a disk), writes that the driver repeats exactly once after a lost answer (retryable writes, so no
standalone server), and the operators of MongoDB 6.0.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Literal, NamedTuple

import pymongo.errors
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from agentrl.errors import ConfigError

LEAST_VERSION = (6, 0)
"""`$minN` and `$sortArray`; the tests run with 6.0."""
LARGEST_SKEW_S = 1.0
ANSWERS_WITHIN_S = 5.0
WRITES_WITHIN_S = 10.0
SLOW_WRITE_S = 0.25
CLOCK_READINGS = 3
PROBE = "DoctorProbe"
"""The collection of the test write; it is removed again."""
NEEDED = frozenset(
    {"find", "insert", "update", "remove", "createCollection", "createIndex", "dropIndex"}
    | {"listCollections", "listIndexes", "dbStats"}
)
"""Actions on the database of the run; the built-in role readWrite has them all."""
FOR_WIPE = frozenset({"dropDatabase"})

Verdict = Literal["ok", "warn", "fail"]
Kind = Literal["replica set", "sharded cluster", "standalone"]
Plain = dict[str, Any]
_AUTHENTICATION_FAILED = 18
_UNAUTHORIZED = 13


class Finding(NamedTuple):
    name: str
    verdict: Verdict
    sentence: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server reports about itself, and how a test write went."""

    version: str
    kind: Kind
    hosts: tuple[str, ...]
    arbiters: int = 0
    encrypted: bool = False
    users: tuple[str, ...] = ()
    """The users that the URL logs in as; empty without a login."""
    access_control: bool = True
    lacks: tuple[str, ...] = ()
    """Actions of NEEDED that the user may not do."""
    may_wipe: bool = True
    skew_s: float = 0.0
    """How far the clock of the server is ahead of that of this host."""
    engine: str = ""
    """The storage engine; empty if nothing was written."""
    write_s: float | None = None
    """How long a durable write took; None if none was made."""
    not_written: str = ""
    """Why the durable write failed."""


def check(url: str, name: str) -> list[Finding]:
    """The findings about the server of that URL for the run of that name."""
    try:
        with _client(url) as client:
            facts = _facts(client, name)
    except pymongo.errors.PyMongoError as failed:
        return [_unreachable(failed)]
    except ConfigError as wrong:
        return [Finding("mongodb", "fail", wrong.message, wrong.hint)]
    return list(findings(facts, name))


# ---- what the facts mean ----


def findings(facts: Facts, name: str) -> Iterator[Finding]:
    yield _of_server(facts)
    yield from _of_connection(facts)
    yield from _of_user(facts, name)
    if facts.kind != "standalone":
        yield from _of_writes(facts)
    yield _of_clock(facts)


def _of_server(facts: Facts) -> Finding:
    numbers = tuple(int(part) for part in re.findall(r"\d+", facts.version)[:2])
    if numbers < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        sentence = f"MongoDB {facts.version} is too old: the store uses operators of {least}."
        return Finding("mongodb", "fail", sentence, f"Upgrade the server to {least} or newer.")
    if facts.kind == "standalone":
        sentence = (
            "The server is a standalone, which refuses retryable writes: a write whose answer is lost could be made "
            "twice or never."
        )
        hint = "Start it with `--replSet rs0` and run `rs.initiate()` once; a replica set of one is enough."
        return Finding("mongodb", "fail", sentence, hint)
    of = "" if facts.kind == "sharded cluster" else f" of {len(facts.hosts)}"
    sentence = f"MongoDB {facts.version}, a {facts.kind}{of}."
    if facts.arbiters:
        hint = "Replace it by a member with data: while a member is away, no write would be acknowledged."
        return Finding("mongodb", "warn", f"{sentence[:-1]} with an arbiter.", hint)
    return Finding("mongodb", "ok", sentence)


def _of_connection(facts: Facts) -> Iterator[Finding]:
    local = all(map(_is_loopback, facts.hosts))
    if not facts.access_control:
        sentence = "The server has no access control: anyone who reaches it can change what the run trained on."
        yield Finding(
            "mongodb access",
            "warn" if local else "fail",
            sentence,
            "Start it with `--auth` and make a user for the run.",
        )
    if not facts.encrypted and not local:
        sentence = "The connection to the server is not encrypted, so others on the network can read all records."
        yield Finding("mongodb access", "fail", sentence, "Give the server a certificate, and the URL `tls=true`.")


def _of_user(facts: Facts, name: str) -> Iterator[Finding]:
    if not facts.access_control:
        return
    who = " and ".join(facts.users)
    grant = f'db.grantRolesToUser(USER, [{{role: "readWrite", db: "{name}"}}])'
    if not facts.users:
        yield Finding("mongodb user", "fail", "The URL names no user, and the server needs one.", "Add USER:PASSWORD@.")
    elif facts.lacks:
        sentence = f"{who} lacks privileges on the database {name}: {', '.join(facts.lacks)}."
        yield Finding("mongodb user", "fail", sentence, f"As an administrator: `{grant}`.")
    elif not facts.may_wipe:
        sentence = f"{who} may do all that a run does, but not drop {name}, which `agentrl runs wipe` does."
        yield Finding("mongodb user", "warn", sentence, f'For that, grant it also {{role: "dbAdmin", db: "{name}"}}.')
    else:
        yield Finding("mongodb user", "ok", f"{who} may do all that a run does with the database {name}.")


def _of_writes(facts: Facts) -> Iterator[Finding]:
    if facts.not_written:
        sentence = f"No durable write was acknowledged: {facts.not_written}."
        hint = "A majority of the members with data must be up and have journals: `rs.status()`."
        yield Finding("mongodb writes", "fail", sentence, hint)
        return
    if facts.write_s is None:
        return
    if facts.engine and facts.engine != "wiredTiger":
        sentence = f"The storage engine is {facts.engine}: acknowledged writes would not survive the server."
        yield Finding("mongodb writes", "fail", sentence, "Start the server with `--storageEngine wiredTiger`.")
        return
    sentence = f"A durable write (majority, journal) takes {1e3 * facts.write_s:.0f} ms."
    if facts.write_s > SLOW_WRITE_S:
        hint = "Each claim, turn and step waits so long; look at the disk and the network between the members."
        yield Finding("mongodb writes", "warn", sentence, hint)
    else:
        yield Finding("mongodb writes", "ok", sentence)


def _of_clock(facts: Facts) -> Finding:
    skew = abs(facts.skew_s)
    if skew > LARGEST_SKEW_S:
        where = "ahead of" if facts.skew_s > 0 else "behind"
        sentence = f"The clock of the server is {skew:.1f} s {where} that of this host."
        hint = (
            "Let ntp or chrony set both; leases use the server's clock alone, but times of logs and records disagree."
        )
        return Finding("mongodb clock", "warn", sentence, hint)
    return Finding("mongodb clock", "ok", f"The clocks of server and host agree within {max(skew, 0.001):.3f} s.")


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0].strip("[]") or host
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost" or "/" in host


# ---- how the facts are read ----


def _client(url: str) -> MongoClient[Plain]:
    milliseconds = round(ANSWERS_WITHIN_S * 1000)
    try:
        return MongoClient(
            url,
            serverSelectionTimeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,
            socketTimeoutMS=round((WRITES_WITHIN_S + ANSWERS_WITHIN_S) * 1000),
            appname="agentrl doctor",
        )
    except (pymongo.errors.ConfigurationError, pymongo.errors.InvalidURI, ValueError, OSError) as wrong:
        # As in `database.connect`: the message has only what is wrong.
        raise ConfigError(f"The URL of MongoDB cannot be used: {wrong}.", hint="Correct it in `mongo.url`.") from wrong


def _facts(client: MongoClient[Plain], name: str) -> Facts:
    hello, skew_s = _hello(client)
    kind: Kind = "standalone"
    if hello.get("msg") == "isdbgrid":
        kind = "sharded cluster"
    elif "setName" in hello:
        kind = "replica set"
    # Members that can never become primary are in separate lists.
    known = (*hello.get("hosts", ()), *hello.get("passives", ())) or tuple(
        f"{host}:{port}" for host, port in client.nodes
    )
    users, granted = _granted(client)
    access_control = bool(users) or _refuses_strangers(client, name)
    may = _on_database(granted, name) if access_control else NEEDED | FOR_WIPE
    lacks = tuple(sorted(NEEDED - may))
    engine, write_s, not_written = "", None, ""
    if kind != "standalone" and not lacks:
        engine, write_s, not_written = _written(client, name)
    return Facts(
        version=str(client.admin.command("buildInfo")["version"]),
        kind=kind,
        hosts=known,
        arbiters=len(hello.get("arbiters", ())),
        encrypted=client.options.pool_options._ssl_context is not None,
        users=users,
        access_control=access_control,
        lacks=lacks,
        may_wipe=may >= FOR_WIPE,
        skew_s=skew_s,
        engine=engine,
        write_s=write_s,
        not_written=not_written,
    )


def _hello(client: MongoClient[Plain]) -> tuple[Plain, float]:
    """The answer, and how far the server's clock is ahead, measured by the fastest of several answers."""
    fastest, skew_s, answer = float("inf"), 0.0, {}
    for _ in range(CLOCK_READINGS):
        sent, began = time.time(), time.monotonic()
        answer = client.admin.command("hello")
        took = time.monotonic() - began
        if took < fastest:
            at = answer["localTime"].replace(tzinfo=UTC).timestamp()
            fastest, skew_s = took, at - (sent + took / 2)
    return answer, skew_s


def _granted(client: MongoClient[Plain]) -> tuple[tuple[str, ...], list[Plain]]:
    """The users that the client is logged in as, and their privileges."""
    status = client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
    users = tuple(f"{each['user']}@{each['db']}" for each in status["authenticatedUsers"])
    return users, list(status["authenticatedUserPrivileges"])


def _refuses_strangers(client: MongoClient[Plain], name: str) -> bool:
    try:
        client[name].command("listCollections", nameOnly=True)
    except pymongo.errors.OperationFailure as refused:
        return refused.code == _UNAUTHORIZED
    return False


def _on_database(granted: Iterable[Mapping[str, Any]], name: str) -> frozenset[str]:
    """The actions that these privileges allow on every collection of the database."""
    allowed: set[str] = set()
    for each in granted:
        on = each["resource"]
        if on.get("anyResource") or (on.get("db") in ("", name) and on.get("collection") == ""):
            allowed.update(each["actions"])
    return frozenset(allowed)


def _written(client: MongoClient[Plain], name: str) -> tuple[str, float | None, str]:
    """The storage engine, the time of a durable write, and why there was none."""
    concern = WriteConcern(w="majority", j=True, wtimeout=round(WRITES_WITHIN_S * 1000))
    probe = client[name].get_collection(f"{PROBE}-{uuid.uuid4().hex}", write_concern=concern)
    try:
        probe.insert_one({"_id": 0})
        began = time.monotonic()
        probe.insert_one({"_id": 1})
        took = time.monotonic() - began
        return _engine(client[name].command("collStats", probe.name)), took, ""
    except pymongo.errors.PyMongoError as failed:
        return "", None, reason(failed)
    finally:
        with contextlib.suppress(pymongo.errors.PyMongoError):
            probe.drop()


def _engine(stats: Mapping[str, Any]) -> str:
    """The storage engine, which is named by the section of the statistics. A sharded collection has the statistics in
    its shards."""
    of_shards = stats.get("shards") or {"": stats}
    names = {"wiredTiger" if "wiredTiger" in each else "one without a disk" for each in of_shards.values()}
    return min(names)


def _unreachable(failed: pymongo.errors.PyMongoError) -> Finding:
    why = reason(failed)
    code = failed.code if isinstance(failed, pymongo.errors.OperationFailure) else None
    if code in (_AUTHENTICATION_FAILED, _UNAUTHORIZED):
        hint = "Check user, password and authSource of the URL; with X.509 also the subject of the certificate."
        return Finding("mongodb", "fail", f"MongoDB does not let this user in: {why}.", hint)
    if "certificate" in why.lower() or "ssl" in why.lower() or "tls" in why.lower():
        hint = "The URL needs tls=true, tlsCAFile=AUTHORITY.pem, and for X.509 tlsCertificateKeyFile=OWN.pem."
        return Finding("mongodb", "fail", f"No encrypted connection to MongoDB was made: {why}.", hint)
    if "connection closed" in why:
        return Finding(
            "mongodb", "fail", f"MongoDB ends the connection: {why}.", "It may want TLS: `tls=true` in the URL."
        )
    hint = "Check that it runs and that each host of the run reaches every address that its members have."
    return Finding("mongodb", "fail", f"MongoDB does not answer: {why}.", hint)


def reason(failed: BaseException) -> str:
    """The first sentence of the error, because the driver appends the whole topology."""
    text = re.split(r" \(configured timeouts|, Timeout:|, full error:|, topology:|\. Topology", str(failed))[0]
    return text.rstrip(". ")[:300]

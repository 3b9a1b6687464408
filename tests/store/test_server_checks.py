"""A server is checked before a run uses it. A server that cannot keep the promises of the store is refused with the
reason."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from pymongo import MongoClient

from agentrl.errors import ExitCode
from agentrl.http.free_ports import free_port
from agentrl.store import indexes, server_checks
from agentrl.store.database import connect
from agentrl.store.mongod_binary import find_mongod
from agentrl.store.mongod_files import MongoFiles, prepare
from agentrl.store.mongod_server import Mongod, command
from agentrl.store.server_checks import FOR_WIPE, NEEDED, Facts, Finding, findings
from tests.store.certificates import CLIENT, Authority
from tests.store.mongod import keep_trying
from tests.waiting import PATIENCE_S, eventually

NAME = "a-run"
PASSWORD = "p@ss:word"


class EncryptedMongod(Mongod):
    """Takes encrypted connections too, and clients with certificates of the authority."""

    def __init__(self, files: MongoFiles, authority: Authority) -> None:
        super().__init__(find_mongod(), files)
        self.argv = [
            *command(find_mongod(), files),
            *("--tlsMode", "preferTLS", "--tlsAllowConnectionsWithoutCertificates"),
            *("--tlsCertificateKeyFile", str(authority.issue("server", "servers")), "--tlsCAFile", str(authority.file)),
        ]

    def start(self) -> None:
        self._process = subprocess.Popen(self.argv, stdout=subprocess.DEVNULL)


@dataclass(frozen=True)
class Server:
    files: MongoFiles
    authority: Authority
    own: Path
    """Key and certificate of the client."""

    def url(self, who: str = "", /, **options: object) -> str:
        given = {"replicaSet": "rs0", "tls": "true", "tlsCAFile": self.authority.file} | options
        query = "&".join(f"{name}={quote_plus(str(value))}" for name, value in given.items() if value)
        return f"mongodb://{f'{who}:{quote_plus(PASSWORD)}@' if who else ''}127.0.0.1:{self.files.port}/?{query}"

    @property
    def by_certificate(self) -> str:
        login: dict[str, object] = {
            "authMechanism": "MONGODB-X509",
            "authSource": "$external",
            "tlsCertificateKeyFile": self.own,
        }
        return self.url(**login)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A replica set of one with TLS, and users by password and by certificate."""
    place = tmp_path_factory.mktemp("server")
    authority, files = Authority(place), prepare(place / "mongo")
    mongod = EncryptedMongod(files, authority)
    mongod.start()
    try:
        assert mongod.bring_up(keep_trying=keep_trying)
        with MongoClient[dict[str, Any]](files.url) as root:
            admin = root.admin
            admin.command("setParameter", 1, tlsMode="requireTLS")
            own: list[Any] = [{"role": "readWrite", "db": NAME}]
            admin.command("createUser", "run", pwd=PASSWORD, roles=[*own, {"role": "dbAdmin", "db": NAME}])
            admin.command("createUser", "no-wipe", pwd=PASSWORD, roles=own)
            admin.command("createUser", "reader", pwd=PASSWORD, roles=[{"role": "read", "db": NAME}])
            root["$external"].command("createUser", CLIENT, roles=own)
        yield Server(files, authority, authority.issue("a-run", "runs"))
    finally:
        mongod.stop(within_s=20)


def verdicts(found: list[Finding]) -> dict[str, str]:
    return {each.name: each.verdict for each in found}


def failure(found: list[Finding]) -> Finding:
    (failed,) = [each for each in found if each.verdict == "fail"]
    return failed


async def test_user_with_a_password_over_tls_may_do_what_a_run_does(server: Server) -> None:
    found = server_checks.check(server.url("run"), NAME)
    assert set(verdicts(found).values()) == {"ok"}, found
    assert {"mongodb", "mongodb user", "mongodb writes", "mongodb clock"} == {*verdicts(found)}
    with MongoClient[dict[str, Any]](server.url("run")) as client:
        assert not [name for name in client[NAME].list_collection_names() if "Probe" in name], "nothing is left"


async def test_a_store_works_with_a_certificate_instead_of_a_password(server: Server) -> None:
    assert failure_free(server_checks.check(server.by_certificate, NAME))
    database = connect(server.by_certificate, NAME)
    try:
        await indexes.ensure(database)
        assert "Task" in await database.collections()
    finally:
        await database.close()


def failure_free(found: list[Finding]) -> bool:
    return not [each for each in found if each.verdict == "fail"]


def test_missing_rights_of_a_user_are_named(server: Server) -> None:
    failed = failure(server_checks.check(server.url("reader"), NAME))
    assert failed.name == "mongodb user"
    assert "createCollection" in failed.sentence
    assert "update" in failed.sentence
    assert "readWrite" in failed.hint
    warned = verdicts(server_checks.check(server.url("no-wipe"), NAME))
    assert warned["mongodb user"] == "warn"
    assert "update" in failure(server_checks.check(server.url("run"), "another-run")).sentence


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tlsCAFile": "", "tls": ""}, "ends the connection"),
        ({"tlsCAFile": ""}, "certificate verify failed"),
        ({"who": "nobody"}, "does not let this user in"),
        ({"who": ""}, "names no user"),
        ({"tlsCAFile": "/nowhere.pem"}, "cannot be used"),
        ({"replicaSet": "other"}, "does not answer"),
    ],
)
def test_refused_connection_is_one_sentence_without_the_password(
    server: Server, changed: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A connection that cannot be established is tried again all the time.
    monkeypatch.setattr(server_checks, "ANSWERS_WITHIN_S", 1.5)
    options = {name: value for name, value in changed.items() if name != "who"}
    failed = failure(server_checks.check(server.url(changed.get("who", "run"), **options), NAME))
    assert words in failed.sentence
    assert failed.sentence.endswith(".")
    assert failed.hint
    assert PASSWORD not in failed.sentence
    assert quote_plus(PASSWORD) not in failed.sentence


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place, port = tmp_path_factory.mktemp("standalone"), free_port()
    argv = [str(find_mongod()), "--dbpath", str(place), "--port", str(port), "--bind_ip", "127.0.0.1"]
    with subprocess.Popen([*argv, "--nounixsocket"], stdout=subprocess.DEVNULL) as process:
        url = f"mongodb://127.0.0.1:{port}/"
        with MongoClient[dict[str, Any]](url, serverSelectionTimeoutMS=round(1000 * PATIENCE_S)) as client:
            client.admin.command("ping")
        yield url
        process.terminate()


def test_up_refuses_a_standalone_before_it_starts_anything(standalone: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("name: on-a-standalone\nmongo: {url: env:MY_URL}\nsidecars: {web: {command: [sleep, '1000']}}\n")
    home = tmp_path / "home"
    environ = os.environ | {"MY_URL": standalone, "AGENTRL_HOME": str(home)}
    up = subprocess.run(
        [sys.executable, "-m", "agentrl", "--json", "up", str(file)], env=environ, capture_output=True, timeout=60
    )
    assert up.returncode == ExitCode.CONFIG, up.stderr
    said = json.loads(up.stdout)["error"]["message"]
    assert "standalone, which refuses retryable writes" in said
    assert not home.exists()
    eventually(lambda: failure(server_checks.check(standalone, NAME)).name == "mongodb")
    assert verdicts(server_checks.check(standalone, NAME))["mongodb access"] == "warn", (
        "on loopback, writing needs no password"
    )


def test_a_replica_set_without_a_working_majority_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [free_port(), free_port()]
    members = [{"_id": at, "host": f"127.0.0.1:{port}", "priority": 1 - at} for at, port in enumerate(ports)]
    url = f"mongodb://127.0.0.1:{ports[0]}/?replicaSet=rs0"
    with contextlib.ExitStack() as stack:
        processes = []
        for port in ports:
            place = tmp_path / str(port)
            place.mkdir()
            argv = [str(find_mongod()), "--dbpath", str(place), "--port", str(port), "--bind_ip", "127.0.0.1"]
            argv += ["--replSet", "rs0", "--nounixsocket", "--wiredTigerCacheSizeGB", "0.25"]
            processes.append(stack.enter_context(subprocess.Popen(argv, stdout=subprocess.DEVNULL)))
            stack.callback(processes[-1].kill)
        first: MongoClient[dict[str, Any]] = MongoClient(f"mongodb://127.0.0.1:{ports[0]}/?directConnection=true")
        with first:
            # A set of one member elects itself at once; then the other member is added.
            first.admin.command("replSetInitiate", {"_id": "rs0", "members": members[:1]})
            eventually(lambda: first.admin.command("hello")["isWritablePrimary"], what="a primary")
            first.admin.command("replSetReconfig", {"_id": "rs0", "version": 2, "members": members})
            status = functools.partial(first.admin.command, "replSetGetStatus")
            eventually(lambda: status()["writeMajorityCount"] == 2, what="a member that has all data, and counts")
        found = server_checks.check(url, NAME)
        assert failure_free(found)
        assert found[0].sentence.endswith("a replica set of 2.")
        monkeypatch.setattr(server_checks, "WRITES_WITHIN_S", 1.0)
        processes[1].send_signal(signal.SIGSTOP)
        failed = failure(server_checks.check(url, NAME))
        assert failed.name == "mongodb writes"
        assert "No durable write was acknowledged: waiting for replication timed out" in failed.sentence


GOOD = Facts(
    version="7.0.14",
    kind="replica set",
    hosts=("a.example:27017", "b.example:27017", "c.example:27017"),
    encrypted=True,
    users=("run@admin",),
    engine="wiredTiger",
    write_s=0.004,
)


def test_a_good_cluster_has_no_finding_that_needs_action() -> None:
    assert {each.verdict for each in findings(GOOD, NAME)} == {"ok"}
    sharded = replace(GOOD, kind="sharded cluster")
    assert "a sharded cluster" in next(findings(sharded, NAME)).sentence


@pytest.mark.parametrize(
    ("facts", "verdict", "words"),
    [
        (replace(GOOD, version="5.0.9"), "fail", "5.0.9 is too old"),
        (replace(GOOD, kind="standalone"), "fail", "retryable writes"),
        (replace(GOOD, arbiters=1), "warn", "arbiter"),
        (replace(GOOD, encrypted=False), "fail", "not encrypted"),
        (replace(GOOD, access_control=False, users=()), "fail", "no access control"),
        (replace(GOOD, lacks=("insert",)), "fail", "lacks privileges on the database a-run: insert"),
        (replace(GOOD, not_written="waiting for replication timed out"), "fail", "No durable write"),
        (replace(GOOD, engine="one without a disk"), "fail", "would not survive"),
        (replace(GOOD, write_s=0.9), "warn", "takes 900 ms"),
        (replace(GOOD, skew_s=-7.0), "warn", "7.0 s behind"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_weakness_is_named(facts: Facts, verdict: str, words: str) -> None:
    (found,) = [each for each in findings(facts, NAME) if each.verdict != "ok"]
    assert found.verdict == verdict
    assert words in found.sentence
    assert found.hint


def test_actions_that_are_needed_do_not_include_dropping_the_database() -> None:
    assert not NEEDED & FOR_WIPE

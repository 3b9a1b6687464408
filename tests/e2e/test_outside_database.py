"""A run on two hosts whose MongoDB is outside of it, set up like the compose file and its scripts do.

Only the environment of `agentrl up` contains the URL, so the other host can get it only from the coordinator.
"""

from __future__ import annotations

import json
import re
import stat
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from agentrl.store.mongod_binary import find_mongod
from tests.e2e.hosts import HERE, TOOLS, Hosts, run_on_hosts
from tests.e2e.pods import DEPLOY
from tests.e2e.running import PYTHON
from tests.small_run import data_plane, write_data
from tests.waiting import PATIENCE_S

FILES = DEPLOY / "mongodb"
MONGOSH = Path(__file__).with_name("programs") / "mongosh.py"
ABSENT = "nowhere"
READY_WITHIN_S = 3 * PATIENCE_S


def service(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FILES / "compose.yaml").read_text())["services"][name]
    return found


def secrets(folder: Path, *arguments: str) -> str:
    command = [str(FILES / "secrets.sh"), "--out", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return done.stdout


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    yield from run_on_hosts(tmp_path, f"t-{uuid.uuid4().hex[:8]}", (TOOLS,), factor=0.3)


@pytest.fixture
def url(hosts: Hosts, tmp_path: Path) -> Iterator[str]:
    """The URL of the run. The member runs on the host of the coordinator, with the command of its container."""
    member, folder = hosts.network.address(HERE), tmp_path / "secrets"
    secrets(folder, member)
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert "for the run file" in secrets(folder, "--run", hosts.run.name, member)
    assert {path: path.read_bytes() for path in kept} == kept, "a second run of the script creates only missing files"
    assert not [path for path in folder.rglob("*") if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077]
    data = tmp_path / "data"
    data.mkdir()

    def here(word: str) -> str:
        return word.replace("/run/mongo", str(folder / member)).replace("/data/db", str(data))

    _, *arguments = map(here, service("mongo")["command"])
    small = ["--nounixsocket", "--wiredTigerCacheSizeGB=0.25", "--oplogSize=64"]
    command = [*hosts.network.inside(HERE), str(find_mongod()), *arguments, *small]
    with (tmp_path / "mongod.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as mongod:
        try:
            _initiate(hosts, member, tmp_path, here)
            yield (folder / "runs" / f"{hosts.run.name}.mongo-url").read_text().strip()
        finally:
            mongod.kill()


def _initiate(hosts: Hosts, member: str, tmp_path: Path, here: Any) -> None:
    script = tmp_path / "initiate.js"
    script.write_text(here((FILES / "initiate.js").read_text()))
    words = service("initiate")["command"]
    (authority,) = (here(word).partition("=")[2] for word in words if word.startswith("--tlsCAFile"))
    url = f"{words[-1]}&tls=true&tlsCAFile={quote(authority, safe='')}"
    for _ in range(2):  # the second time everything is there
        done = subprocess.run(
            [*hosts.network.inside(HERE), PYTHON, str(MONGOSH), url, str(script)],
            env=hosts.run.environ | {"MEMBERS": member, "RUN": hosts.run.name},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"The set rs0 has the members {member} and the user of the run {hosts.run.name}.\n"


def test_other_hosts_get_the_url_and_its_certificates_from_the_coordinator(
    hosts: Hosts, url: str, tmp_path: Path
) -> None:
    run = hosts.run
    write_data(tmp_path)
    run.config |= data_plane() | {"mongo": {"url": "env:ONLY_HERE"}}
    run.config["hosts"] = {TOOLS: {"runs": "toolbox"}, ABSENT: {"runs": ["engine", "sampler", "trainer"]}}
    agents = dict(run.environ)
    run.environ["ONLY_HERE"] = url
    run.write()
    looked = subprocess.run(
        [*hosts.network.inside(HERE), PYTHON, "-m", "agentrl.doctor", "--json", "--inputs", "--", str(run.file)],
        env=run.environ,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    found = {each["name"]: each for each in json.loads(looked.stdout) if each["name"].startswith("mongodb")}
    assert {each["verdict"] for each in found.values()} == {"ok"}, found
    assert f"CN={run.name},O=agentrl-runs@$external may do all" in found["mongodb user"]["sentence"]

    hosts.up()
    run.environ = agents
    hosts.join(TOOLS)
    run.wait_state("steward-0", "ready", within_s=READY_WITHIN_S)
    # It is ready when it has written to the database.
    assert run.wait_state("toolbox-0", "ready", within_s=READY_WITHIN_S).host == TOOLS

    state = tmp_path / TOOLS / "state"
    there = state / "mongo" / "url"
    names = ("tlsCAFile", "tlsCertificateKeyFile")
    named = re.findall(r"tls\w+File=([^&]*)", there.read_text())
    assert named == [quote(str(state / "mongo" / f"{name}.pem"), safe="") for name in names]
    assert [stat.S_IMODE(each.stat().st_mode) for each in sorted(there.parent.iterdir())] == [0o600] * 3
    private = (tmp_path / "secrets/runs" / f"{run.name}.pem").read_text().splitlines()[1]
    for process in run.processes():
        assert "MONGODB-X509" not in " ".join(process.cmdline())
        of_unit = process.environ().get("AGENTRL_INCARNATION")
        assert not of_unit or "ONLY_HERE" not in process.environ(), process
    kept = (there.parent, run.state_dir / "mongo", *(tmp_path / name for name in ("secrets", "data", "mongod.log")))
    for file in (each for each in tmp_path.rglob("*") if each.is_file() and not any(map(each.is_relative_to, kept))):
        text = file.read_bytes()
        assert b"MONGODB-X509" not in text, file
        assert private.encode() not in text, file

"""Makes the files of a run of a release: `make upgrade-fixture RELEASE=DIRECTORY`, with a checkout of the release.

Invariants:
- Everything is made by the code of the release; the code of this checkout only packs it.
- The run ends like in a power loss: all processes are killed at the same moment, in the middle of their work.
- The files are small: a model of some thousand parameters, one checkpoint, no logs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import bson

from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.host import cgroups
from agentrl.store import database
from tests.e2e.running import Run
from tests.small_run import data_plane, write_data
from tests.store.mongod import server_in
from tests.upgrade.restored_run import ARCHIVE, DATABASE, FACTS, RUNTIME, UNITS
from tests.waiting import eventually

NAME = "before"
SMALL = {"hidden_size": 16, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
UP_WITHIN_S = 600.0
LEFT_OUT = ("mongo/data", "mongo/mongod", "recordings", "lock", "journal.sqlite-shm", ".log")
"""Paths of the state directory that contain one of these texts are not packed. The database is packed as documents."""
OF_THE_RUNTIME = ("assets/__init__.py", "assets/units/__init__.py", "assets/units/step_loop.py")


def configure(run: Run) -> None:
    folder = run.file.parent
    write_data(folder)
    texts = [line for name in ("shown", "train") for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    build_tiny(folder / "model", texts, seed=1, **SMALL)
    run.config |= data_plane(steps=400)
    run.config["model"] = {"path": "model"}
    run.config["training"] |= {"keep_checkpoints": 1}
    run.config["training"]["warmup"] |= {"steps": 300, "learning_rate": 1e-2}
    run.unit("tick", "step_loop", "--every", "0.2", count=2)
    run.sidecar("web", ["sleep", "100000"])
    run.write()


def command(run: Run, *arguments: str) -> None:
    """`agentrl ARGUMENTS` of the release."""
    process = run.start(*arguments)
    output = process.communicate(timeout=UP_WITHIN_S)
    assert process.returncode == 0, output


async def documents(url: str, name: str) -> dict[str, list[dict[str, Any]]]:
    opened = database.connect(url, name)
    try:
        return {collection: await opened.find(collection, {}) for collection in await opened.collections()}
    finally:
        await opened.close()


def trained(run: Run) -> bool:
    """Whether steps were trained after the newest checkpoint, and records are running."""
    found = asyncio.run(documents((run.state_dir / "mongo" / "url").read_text(), run.name))
    with_records = [step for step in found.get("Step", ()) if step["status"] == "committed" and step["records"]]
    saved = [one for one in found.get("Checkpoint", ()) if one["status"] == "complete"]
    running = [one for one in found.get("Record", ()) if one["status"] == "running"]
    return bool(running and saved and len(with_records) >= 4 and with_records[-1]["step"] > saved[-1]["step"])


def units_of(run: Run) -> dict[str, dict[str, str]]:
    """The environment variables that the release gave to the living units."""
    found = {}
    for process in run.processes():
        environ = {name: value for name, value in process.environ().items() if name.startswith("AGENTRL_")}
        if environ.get("AGENTRL_GROUP") in ("tick", "web"):
            found[environ["AGENTRL_UNIT"]] = environ
    return found


def end_all(run: Run) -> None:
    processes = run.processes()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            os.kill(process.pid, number)
    eventually(lambda: not run.processes())
    if processes:
        cgroups.remove_of_run(run.uuid())


def add(archive: tarfile.TarFile, name: str, body: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(body), 0o600
    archive.addfile(member, BytesIO(body))


def pack(run: Run, root: Path, units: dict[str, dict[str, str]], target: Path) -> None:
    with server_in(run.state_dir / "mongo") as (_, url):
        collections = asyncio.run(documents(url, run.name))
    (newest,) = [one["path"] for one in collections["Checkpoint"] if one["status"] == "complete"]
    weights = sorted((run.dir / "weights").iterdir())[-2:]
    places = [run.file, *root.glob("*.jsonl"), root / "model", run.dir / "config.json", run.dir / newest, *weights]
    state = [path for path in run.state_dir.rglob("*") if path.is_file()]
    places += [path for path in state if not any(part in str(path.relative_to(run.state_dir)) for part in LEFT_OUT)]
    with tarfile.open(target, "w:xz") as archive:
        for place in places:
            archive.add(place, place.relative_to(root))
        for collection, found in collections.items():
            add(archive, f"{DATABASE}/{collection}.bson", b"".join(bson.encode(document) for document in found))
        add(archive, UNITS, json.dumps(units).encode())
        add(archive, FACTS, json.dumps({"root": str(root), "uuid": run.uuid(), "name": run.name}).encode())


def pack_runtime(release: Path, target: Path) -> None:
    """The part of the release that runs inside a unit."""
    listed = (
        "import sys, agentrl.unit.runner; print(*[m.__file__ for n, m in sys.modules.items() if n[:7] == 'agentrl'])"
    )
    environ = {**os.environ, "PYTHONPATH": str(release)}
    imported = subprocess.check_output([sys.executable, "-c", listed], env=environ, cwd="/", text=True).split()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted([*map(Path, imported), *(release / name for name in OF_THE_RUNTIME)]):
            archive.write(path, path.relative_to(release))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make upgrade-fixture", description=__doc__)
    parser.add_argument("release", type=Path, help="a checkout of the release")
    release = parser.parse_args().release.resolve()
    with tempfile.TemporaryDirectory(prefix="agentrl-release-") as folder:
        root = Path(folder)
        run = Run(root, NAME, factor=1.0)
        run.environ["PYTHONPATH"] = str(release)
        configure(run)
        try:
            command(run, "up", str(run.file), "--yes")
            command(run, "tune", "learning_rate", "0.0002", "--note", "it was too slow", "--yes")
            command(run, "scale", "web", "2", "--yes")
            eventually(lambda: trained(run), within_s=UP_WITHIN_S, every_s=0.5, what="trained steps and a checkpoint")
            units = units_of(run)
        finally:
            end_all(run)
        pack(run, root, units, ARCHIVE)
    pack_runtime(release, RUNTIME)
    print(*(f"{path.name}: {path.stat().st_size >> 10} KiB" for path in (ARCHIVE, RUNTIME)), sep="\n")


if __name__ == "__main__":
    main()

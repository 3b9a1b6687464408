"""The run of the release before, restored into a directory: its files, its database and its living units.

Invariants:
- Paths and the uuid are replaced everywhere, so tests with the same run do not meet; nothing else is changed.
- A living unit runs the unit runtime of the release, under the token and the pid that journal and ledger name.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bson
import msgspec
import yaml
from bson.codec_options import CodecOptions

from agentrl.control.persistence.journal_schema import checksum
from agentrl.host import procfs
from agentrl.store import database
from tests.e2e.running import Run
from tests.store.mongod import server_in

RELEASE = Path(__file__).with_name("release_before")
ARCHIVE, RUNTIME = RELEASE / "run.tar.xz", RELEASE / "unit_runtime.zip"
DATABASE, UNITS, FACTS = "database", "units.json", "release.json"


class RestoredRun:
    """A run of the release before. All its processes have ended, except those that `living_units` starts again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder, filter="data")
        facts = json.loads((folder / FACTS).read_text())
        self._replaced = {facts["root"]: str(folder), facts["uuid"]: str(uuid.uuid4())}
        self._replaced[facts["uuid"][:8]] = self._replaced[facts["uuid"]][:8]
        self.run = Run(folder, facts["name"], factor=1.0)
        for path in (self.run.file, self.run.dir / "config.json", *self.run.state_dir.rglob("*.json"), folder / UNITS):
            path.write_text(self._moved(path.read_text()))
        self.run.config = yaml.safe_load(self.run.file.read_text())
        self.journal = self.run.state_dir / "journal.sqlite"
        self._change_journal(lambda kind, key, value: self._moved(value))
        options: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)
        files = (folder / DATABASE).iterdir()
        self.documents = {path.stem: bson.decode_all(path.read_bytes(), options) for path in files}
        self._units = json.loads((folder / UNITS).read_text())

    def _moved(self, value: Any) -> Any:
        match value:
            case str():
                for old, new in self._replaced.items():
                    value = value.replace(old, new)
                return value
            case list():
                return [self._moved(one) for one in value]
            case dict():
                return {key: self._moved(one) for key, one in value.items()}
        return value

    def _change_journal(self, change: Any) -> None:
        with sqlite3.connect(self.journal) as db:
            for table, name in (("state", "key"), ("events", "id")):
                for kind, key, body in db.execute(f"SELECT kind, {name}, body FROM {table}").fetchall():
                    if kind == "secret":
                        continue
                    value = msgspec.msgpack.decode(body)
                    changed = change(kind, key, value)
                    if changed != value:
                        body = msgspec.msgpack.encode(changed)
                        row = (body, checksum(kind, key, body), kind, key)
                        db.execute(f"UPDATE {table} SET body = ?, crc = ? WHERE kind = ? AND {name} = ?", row)
        db.close()

    def restore_database(self) -> None:
        """Restore the documents as data of the embedded server of the release, which had no identity."""
        with server_in(self.run.state_dir / "mongo") as (_, url):
            asyncio.run(self._insert(url))

    async def _insert(self, url: str) -> None:
        opened = database.connect(url, self.run.name)
        try:
            for collection, documents in self.documents.items():
                await opened.insert_many(collection, documents)
        finally:
            await opened.close()

    @contextmanager
    def living_units(self) -> Iterator[dict[str, int]]:
        """Pids by unit. The units are started like in the release, but not as children of an agent, so the next agent
        finds them by the ledger."""
        processes = {unit: self._start(unit, environ) for unit, environ in self._units.items()}
        pids = {unit: process.pid for unit, process in processes.items()}
        for unit, pid in pids.items():
            self._note_in_ledger(unit, pid)
        self._change_journal(
            lambda kind, key, value: {**value, "pid": pids[key]} if (kind, key in pids) == ("slot", True) else value
        )
        try:
            yield pids
        finally:
            for process in processes.values():
                process.kill()
                process.wait()

    def _start(self, unit: str, environ: dict[str, str]) -> subprocess.Popen[bytes]:
        command = self._ledger(unit)[1]["spec"]["command"]
        log = self.folder / f"{unit}.log"
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable if word == "{python}" else word for word in command],
                env={**os.environ, **environ, "PYTHONPATH": str(RUNTIME)},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _ledger(self, unit: str) -> tuple[Path, dict[str, Any]]:
        (path,) = self.run.state_dir.glob(f"hosts/*/ledger/{unit}.*.json")
        return path, json.loads(path.read_text().splitlines()[-1])

    def _note_in_ledger(self, unit: str, pid: int) -> None:
        path, entry = self._ledger(unit)
        stat = procfs.read_stat(pid)
        assert stat is not None
        entry |= {"pid": pid, "start_ticks": stat.start_ticks, "boot_id": procfs.boot_id()}
        # They are not in a cgroup of this machine.
        entry |= {"cgroup_tree": "", "cgroup_memory": ""}
        path.write_text(json.dumps(entry) + "\n")

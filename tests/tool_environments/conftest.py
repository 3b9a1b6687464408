"""Packages made by the tests, in a folder that takes the place of the index."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SAYS = "def main():\n    print('{word}', __file__)\n"
BROKEN = "def main():\n    raise RuntimeError('on purpose')\n"


class QuotaIndex:
    """An index that serves a folder of wheels, or answers 429 and asks to wait an hour."""

    def __init__(self, folder: Path) -> None:
        self.refuses: str | None = "/"
        """Part of the paths that are refused."""
        self.refused = 0
        outer = self

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(folder))

            def do_GET(self) -> None:
                if outer.refuses is not None and outer.refuses in self.path:
                    outer.refused += 1
                    self.send_response(429)
                    self.send_header("Retry-After", "3600")
                    self.end_headers()
                elif self.path.startswith("/simple/"):
                    links = "".join(f'<a href="/{wheel.name}">{wheel.name}</a>' for wheel in folder.iterdir())
                    self.send_response(200)
                    self.send_header("Content-Type", "text/html")
                    self.end_headers()
                    self.wfile.write(f"<!DOCTYPE html><html><body>{links}</body></html>".encode())
                else:
                    super().do_GET()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self.env = {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"http://user:secret@{self.address}/simple/",
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_FIND_LINKS": "",
            "PIP_NO_INDEX": "0",
        }
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Workplace:
    """A folder with a run file, an index and a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.index = folder / "index"
        self.cache = folder / "cache"
        self.file = folder / "work" / "run.yaml"
        self.lock = self.file.with_suffix(".tools.lock")
        self.more_env: dict[str, str] = {}
        for each in (self.index, self.file.parent):
            each.mkdir()

    @property
    def env(self) -> dict[str, str]:
        own = {"AGENTRL_CACHE": str(self.cache), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index)}
        # For pip, 0 means no isolation: packages are built with the tools of the test environment.
        return {**os.environ, **own, "PIP_NO_BUILD_ISOLATION": "0", **self.more_env}

    def wheel(self, name: str, version: str = "1.0", *, requires: str = "", code: str = SAYS) -> None:
        """A package with the program `NAME`, which writes the version and where it runs."""
        module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        files = {
            f"{module}.py": code.replace("{word}", version),
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {module}:main\n",
        }
        record = "".join(f"{path},{_hash(text)},{len(text)}\n" for path, text in files.items())
        files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
        with zipfile.ZipFile(self.index / f"{module}-{version}-py3-none-any.whl", "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)

    def source(self, name: str, proof: Path) -> None:
        """A package without a wheel, whose code writes `proof` when it is built."""
        folder = self.index / f"{name}-1.0"
        folder.mkdir()
        (folder / "setup.py").write_text(f"open({str(proof)!r}, 'w')\n")
        (folder / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        with tarfile.open(self.index / f"{name}-1.0.tar.gz", "w:gz") as archive:
            archive.add(folder, folder.name)

    def describe(self, **tools: str) -> None:
        """Write the run file; each server is a line of YAML."""
        lines = "".join(f"  {name}: {text}\n" for name, text in tools.items())
        wanted = ", ".join(tools)
        head = "name: packed\nmodel: {build: tiny}\n"
        self.file.write_text(f"{head}environments: {{e: {{dataset: d.jsonl, tools: [{wanted}]}}}}\ntools:\n{lines}")

    def start(self, *arguments: str, text: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "agentrl.tool_environments", *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, env=self.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, *arguments: str, text: str = "") -> tuple[int, list[dict[str, Any]]]:
        """The exit code and the lines of the program."""
        with self.start(*arguments, text=text) as process:
            out, errors = process.communicate(timeout=120)
        assert not errors
        return process.returncode, [json.loads(line) for line in out.splitlines()]

    def locked(self) -> dict[str, Any]:
        code, lines = self.run("lock", str(self.file))
        assert code == 0, lines
        found: dict[str, Any] = json.loads(self.lock.read_text())
        return found

    def wanted(self, program: str = "small", server: str = "small") -> str:
        """The input of `install` for one server of the lock file."""
        lock = json.loads(self.lock.read_text())
        pins = {"server": lock["servers"][server], "node": lock["node"]}
        return json.dumps([{"name": server, "program": program, "pins": pins}])

    @property
    def installed(self) -> list[Path]:
        """The complete environments."""
        return sorted(each for each in (self.cache / "tools").glob("*") if not each.name.startswith("."))

    @property
    def remains(self) -> list[str]:
        """Files that belong to no environment and are not in use."""
        return [each.name for each in (self.cache / "tools").glob(".*")]


def _hash(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


@pytest.fixture
def index(place: Workplace) -> Iterator[QuotaIndex]:
    """An index with the wheels of `place`, which installs from there."""
    index = QuotaIndex(place.index)
    place.more_env = index.env
    yield index
    index.close()


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


@pytest.fixture
def locked(place: Workplace) -> Workplace:
    """With a server `small`, whose package needs another one, and the pins of both."""
    place.wheel("other", "2.0")
    place.wheel("small", requires="other>=1")
    place.describe(small="{python: small, command: [small]}")
    place.locked()
    return place

"""A run with secrets and a toolbox, whose tool server runs the code of an attacker."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.config.tool_sandbox import Sandbox
from agentrl.sandboxes import sandbox_cgroups
from agentrl.sandboxes.launch_environment import launch_of
from agentrl.sandboxes.sandbox_choice import sandboxed
from agentrl.sandboxes.visible_files import Secrets
from agentrl.toolbox.toolbox import Toolbox
from tests.toolbox.conftest import FAULTY, Hands

RUN = str(uuid.uuid4())
LOOK = "import os, sys; print(*map(os.path.isfile, sys.argv[1:]), sep='\\n')"


class Run:
    """A run with a state directory, sockets and secrets, and a toolbox with an attacked and another server."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work = folder / "work"
        """The directory of the run file."""
        self.run_dir = self.work / "runs" / "mine"
        # This directory is beside the run file, where a server sees all other files.
        self.state = self.work / "state"
        self.sockets = self.work / "runtime" / "agentrl"
        self.workspace = self.work / "workspace"
        for place in (self.run_dir, self.work / "runs" / "other", self.state / "mine", self.sockets, self.workspace):
            place.mkdir(parents=True)
        self.token = self.state / "mine" / "token"
        for file in (self.token, self.run_dir / "config.json", self.work / "runs" / "other" / "config.json"):
            file.write_text("secret")
        (self.work / "data.txt").write_text("of the run file")
        shutil.copy(FAULTY, self.work / "server.py")
        for name, value in (
            ("AGENTRL_RUN", RUN),
            ("AGENTRL_HOME", str(self.state)),
            ("AGENTRL_STATE_DIR", str(self.state / "mine")),
            ("AGENTRL_TOKEN", "fencing-token"),
            ("AGENTRL_INCARNATION", "toolbox-0.1"),
            ("XDG_RUNTIME_DIR", str(self.sockets.parent)),
        ):
            monkeypatch.setenv(name, value)
        self.hands: Hands

    def server(self, *, script: str = "server.py", cwd: Path | None = None, **sandbox: Any) -> ToolServer:
        settings = Sandbox.model_validate({"required": True, "write": str(self.workspace), **sandbox})
        command = (sys.executable, script)
        return ToolServer(
            command=command, cwd=str(cwd or self.work), session="process", pool=1, timeout_s=20, sandbox=settings
        )

    def sees(self, server: ToolServer, *paths: Path) -> list[bool]:
        """Which files a program in the place of the server can read."""
        plain = launch_of("looks", server, run_dir=self.run_dir, environ=os.environ)
        secrets = Secrets.of_this_host(os.environ, self.run_dir)
        looks = sandboxed("looks", server, plain, run_dir=self.run_dir, secrets=secrets)
        # The last words are the interpreter and its script.
        command = [*looks.command[: -len(plain.command)], sys.executable, "-c", LOOK, *map(str, paths)]
        with looks.passing() as passed:
            done = subprocess.run(
                command, capture_output=True, text=True, env=dict(looks.env), check=False, pass_fds=passed
            )
        assert done.returncode == 0, done.stderr
        return [line == "True" for line in done.stdout.splitlines()]

    async def attack(self, code: str, *, session: str = "attack") -> str:
        answer = await self.hands.call(session, f"{session}/{hash(code)}", "python", server="attacked", code=code)
        return answer.content


@contextlib.asynccontextmanager
async def attacked(made: Run, *, secret_files: Sequence[Path] = (), **sandbox: Any) -> AsyncIterator[Run]:
    """The run with its toolbox. At the end, the other server must still answer, whatever happened inside."""
    servers = {"attacked": made.server(**sandbox), "other": made.server()}
    sandbox_cgroups.usable_places.cache_clear()
    toolbox = Toolbox(servers, run_dir=made.run_dir, name="toolbox-0.1", secret_files=secret_files)
    async with toolbox.running():
        made.hands = Hands(toolbox)
        await made.hands.open("attack", "attacked")
        await made.hands.open("victim", "other")
        yield made
        answer = await made.hands.call("victim", "still", "echo", server="other", text="here")
        assert answer.content == "here"
    assert not [place for place, _ in sandbox_cgroups.usable_places() if place.exists()]
    sandbox_cgroups.usable_places.cache_clear()

"""Servers in containers: the command line of the engine, and what happens without one.

No engine runs here, so a program in its place shows what it was given.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.config.tool_sandbox import Sandbox
from agentrl.errors import ConfigError
from agentrl.sandboxes import bubblewrap, containers
from agentrl.sandboxes.launch_environment import Launch, launch_of
from agentrl.sandboxes.sandbox_choice import choose, sandboxed
from agentrl.sandboxes.visible_files import Secrets
from tests.toolbox.conftest import FAULTY, MakeToolbox
from tests.waiting import aeventually

IMAGE = f"tools/shell@sha256:{'0' * 64}"
# Starts the command after the image, and records each command line.
ENGINE = f"""#!/bin/sh
echo "$@" >> "{{notes}}"
[ "$1" = run ] || exit 0
while [ "$1" != {IMAGE} ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The recorded command lines of an engine that is first on the PATH."""
    program = tmp_path / "bin" / "podman"
    program.parent.mkdir()
    program.write_text(ENGINE.replace("{notes}", str(tmp_path / "notes")))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    for cached in (containers.engine, containers.problem):
        cached.cache_clear()
    yield tmp_path / "notes"
    for cached in (containers.engine, containers.problem):
        cached.cache_clear()


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "neither podman nor docker is installed; install one of them"
    monkeypatch.setattr(containers, "problem", lambda: missing)


def start(sandbox: Sandbox, folder: Path, **environ: str) -> Launch:
    server = ToolServer(command=("serve", "--all"), env={"KEY": "env:SECRET"}, sandbox=sandbox)
    environ = {"PATH": "/bin", "HOME": "/h", "SECRET": "hidden", "AGENTRL_RUN": "r", **environ}
    plain = launch_of("shell", server, run_dir=folder, environ=environ)
    secrets = Secrets.of_this_host(environ, folder)
    return sandboxed("shell", server, plain, run_dir=folder, secrets=secrets)


@pytest.mark.usefixtures("engine")
def test_a_container_has_its_limits_and_no_secret_in_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "notebook").mkdir()
    sandbox = Sandbox(kind="container", image=IMAGE, memory=1 << 29, processes=16, write=(str(tmp_path / "notebook"),))
    made = start(sandbox, tmp_path)
    line = " ".join(made.command)
    for words in (
        "run --rm --interactive",
        "--pull never",
        "--network none",
        "--read-only --cap-drop ALL --security-opt no-new-privileges",
        f"--memory {1 << 29} --memory-swap {1 << 29} --pids-limit 16",
        f"--volume {tmp_path}:{tmp_path}:ro",
        f"--volume {tmp_path}/notebook:{tmp_path}/notebook:rw",
        "--env AGENTRL_MARK --env KEY",
        f"{IMAGE} serve --all",
    ):
        assert words in line
    assert "hidden" not in line
    assert "--env HOME" not in line
    assert made.env["KEY"] == "hidden"
    assert made.removal[1:3] == ("rm", "--force")
    assert made.removal[3] in made.command
    assert "--network host" in " ".join(start(sandbox.model_copy(update={"network": True}), tmp_path).command)


async def test_a_container_is_removed_with_its_server(engine: Path, make: MakeToolbox) -> None:
    server = ToolServer(
        command=(sys.executable, str(FAULTY)), session="keyed", sandbox=Sandbox(kind="container", image=IMAGE)
    )
    async with make({"faulty": server}) as hands:
        await hands.open("s")
        assert (await hands.call("s", "a", "echo", text="inside")).content == "inside"
        assert hands.server().sandbox == "in a container sandbox"
    _, started, removed = engine.read_text().splitlines()  # noqa: ASYNC240 - one look
    name = started.split("--name ")[1].split()[0]
    assert removed == f"rm --force {name}"


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_the_next_weaker_sandbox_is_taken_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox(kind="container", image=IMAGE)
    assert choose(sandbox).sentence.startswith("in a process sandbox: neither podman nor docker is installed")
    monkeypatch.setattr(bubblewrap, "problem", lambda: "bubblewrap is not installed; install it")
    assert choose(sandbox).kind == "none"
    assert "podman" in choose(sandbox).sentence
    assert "bubblewrap" in choose(sandbox).sentence


@pytest.mark.usefixtures("no_engine")
async def test_without_an_engine_a_required_container_is_refused(tmp_path: Path, make: MakeToolbox) -> None:
    sandbox = Sandbox(kind="container", image=IMAGE, required=True)
    with pytest.raises(ConfigError, match=r"tools\.shell\.sandbox requires the kind container: neither podman"):
        start(sandbox, tmp_path)
    async with make({"shell": ToolServer(command=("serve",), sandbox=sandbox)}) as hands:
        await aeventually(lambda: "requires the kind container" in hands.server("shell").why)

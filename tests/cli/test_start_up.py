"""Fast commands load no heavy module. The list of imports is checked, because times differ between machines."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import ROOT, Shell
from tests.cli.scripted import Scripted

HEAVY = ("textual", "pydantic", "mcp", "httpx", "rich", "motor", "torch", "yaml")


def loaded(shell: Shell, *arguments: str) -> tuple[str, set[str]]:
    """The output of the command, and the top-level names of all modules that it loaded."""
    code = (
        "import sys, agentrl.cli.app as a\n"
        f"code = a.run({list(arguments)!r})\n"
        "print('\\n' + ' '.join(sorted(sys.modules)), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=shell.env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout, set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["completion", "bash"], ["--version"]])
def test_help_loads_nothing_heavy(shell: Shell, arguments: list[str]) -> None:
    printed, modules = loaded(shell, *arguments)
    assert printed
    roots = {name.partition(".")[0] for name in modules}
    assert not roots & {*HEAVY, "zmq", "msgspec", "psutil"}
    assert not modules & {"asyncio", "agentrl.client", "agentrl.transport", "agentrl.protocol.commands"}


def test_status_as_json_loads_only_the_client(shell: Shell, coordinator: Scripted) -> None:
    printed, modules = loaded(shell, "status", "--json")
    assert '"demo"' in printed
    roots = {name.partition(".")[0] for name in modules}
    assert "zmq" in roots
    assert not roots & set(HEAVY)


def test_trial_loads_what_speaks_mcp_and_computes_only_if_it_needs_it() -> None:
    code = "import sys, daemons.trial; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert not {"mcp", "torch", "transformers", "agentrl.toolbox.toolbox"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("program", "arguments", "module"),
    [
        ("agentrl", ["status"], "agentrl.cli.app"),
        ("tui", ["--serve=127.0.0.1:0", "--playback=@demo"], "tui.serving.web_server"),
    ],
)
def test_ctrl_c_during_imports_prints_nothing(shell: Shell, program: str, arguments: list[str], module: str) -> None:
    code = (
        "import os, runpy, signal, sys\n"
        "class Pressed:\n"
        "    def find_spec(name, *_):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Pressed)\n"
        f"sys.argv = {[program, *arguments]!r}\n"
        f"runpy.run_module({program!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=shell.env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")

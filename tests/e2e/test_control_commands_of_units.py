"""Processes of units are recognised as units whatever they claim, and may give only commands that the run file
permits."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.errors import ExitCode
from agentrl.protocol.rows import OperationRow
from tests.e2e.running import Run, running
from tests.waiting import eventually

IMPOSTOR = """
import asyncio, json, os, sys
import psutil
from agentrl.protocol.messages import PROTOCOL_MAJOR, UnitHello
from agentrl.protocol.wire import decode_from_coordinator, encode
from agentrl.transport.dealer import Dealer

async def main(victim, output):
    # Other runs of this host have units of the same name.
    found = (environ_of(process) for process in psutil.process_iter())
    of_run = (each for each in found if each.get("AGENTRL_RUN") == os.environ["AGENTRL_RUN"])
    environ = next(each for each in of_run if victim in each.get("AGENTRL_INCARNATION", ""))
    unit, _, number = environ["AGENTRL_INCARNATION"].rpartition(".")
    answers = asyncio.Queue()
    dealer = Dealer(environ["AGENTRL_COORDINATOR"], on_message=answers.put_nowait, on_refused=answers.put_nowait)
    dealer.start()
    hello = UnitHello(
        major=PROTOCOL_MAJOR, minor=0, run=environ["AGENTRL_RUN"], unit=unit, incarnation=int(number),
        token=environ["AGENTRL_TOKEN"], pid=os.getpid(),
    )
    while not dealer.send(encode(hello)):
        await asyncio.sleep(0.05)
    answer = decode_from_coordinator(await answers.get())
    open(output + ".new", "w").write(f"{type(answer).__name__}: {getattr(answer, 'message', '')}")
    os.rename(output + ".new", output)
    await asyncio.sleep(3600)

def environ_of(process):
    try:
        return process.environ()
    except psutil.Error:
        return {}

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    for run in running(tmp_path_factory.mktemp("units"), f"t-{uuid.uuid4().hex[:8]}"):
        run.sidecar("web", ["sleep", "1000"])
        run.unit("tick", "step_loop", "--every", "0.05")
        yield run


def commanding(run: Run, name: str, *prefix: str) -> list[str]:
    """The command of a sidecar that queries the status and scales a group, and writes both results to files."""
    agentrl = f"{' '.join(prefix)} {sys.executable} -m agentrl"
    home = f"AGENTRL_HOME={run.home} PATH=$PATH PYTHONPATH={Path.cwd()}"
    lines = (
        f"env -i {home} {agentrl} status --run {run.name} --json > {run.dir}/{name}.status 2>&1",
        f"env -i {home} {agentrl} scale web 2 --yes --json --run {run.name} > {run.dir}/{name}.scale 2>&1",
        f"echo $? > {run.dir}/{name}.part; mv {run.dir}/{name}.part {run.dir}/{name}.code",
        "sleep 1000",
    )
    return ["sh", "-c", "\n".join(lines)]


def code_of(run: Run, name: str) -> int:
    """The exit code of the sidecar's second command."""
    file = run.dir / f"{name}.code"
    return int(eventually(lambda: file.exists() and file.read_text(), what=f"the commands of {name}"))


def test_processes_of_units_command_only_what_their_run_file_permits(run: Run) -> None:
    run.sidecar("viewing", commanding(run, "viewing"))
    run.sidecar("silent", commanding(run, "silent"), permission="")
    run.sidecar("hiding", commanding(run, "hiding", "setsid", "--fork", "--wait"), permission="")
    run.sidecar("scaling", commanding(run, "scaling"), permission="operator")
    run.up()
    assert code_of(run, "viewing") == ExitCode.REFUSED
    assert json.loads((run.dir / "viewing.status").read_text())["run"]
    assert "Set `permission: operator` of the sidecar" in (run.dir / "viewing.scale").read_text()
    for name in ("silent", "hiding"):
        assert code_of(run, name) == ExitCode.KEY_REFUSED
        assert f"it is {name}-0." in (run.dir / f"{name}.scale").read_text()
        assert "may not ask or command anything" in (run.dir / f"{name}.status").read_text()
    assert code_of(run, "scaling") == ExitCode.OK
    run.wait_state("web-1", "ready")
    assert {row.who for row in run.rows().values() if isinstance(row, OperationRow)} >= {"scaling-0.1"}


def test_process_of_one_unit_cannot_register_as_another(run: Run, tmp_path: Path) -> None:
    program, answer = tmp_path / "impostor.py", tmp_path / "answer"
    program.write_text(IMPOSTOR)
    run.sidecar("impostor", ["{python}", str(program), "tick-0", str(answer)])
    run.up()
    eventually(answer.exists, what="the answer to the impostor")
    assert "not tick-0." in answer.read_text()
    assert answer.read_text().startswith("Refused: Process ")
    assert run.unit_row("tick-0").state == "ready"

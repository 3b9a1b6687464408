"""The stages of a command on a whole run, and the effect of signals in each of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from agentrl.cli import leftover_processes
from agentrl.cli.down_transaction import report_end
from agentrl.cli.options import Cli
from agentrl.cli.run_transaction import Transaction, carry_out
from agentrl.config.this_host import HOST_FILE, this_host
from agentrl.errors import ExitCode, RefusedError
from agentrl.protocol.messages import ScanReport
from agentrl.protocol.rows import OperationRow, OperationState
from tests.cli.conftest import Shell


class Recorded(Transaction):
    """Records its stages, and sends a signal to this process in one of them."""

    def __init__(self, *, consents: bool = True, at: str = "", number: signal.Signals | None = None) -> None:
        super().__init__(Cli())
        self.stages: list[str] = []
        self._consents = consents
        self._at = at
        self._number = number

    async def _stage(self, name: str) -> None:
        self.stages.append(name)
        if name == self._at:
            if self._number is None:
                raise RefusedError("no")
            os.kill(os.getpid(), self._number)
            # The event loop handles a signal within its next iterations.
            for _ in range(10):
                await asyncio.sleep(0)
            assert self._number is signal.SIGHUP, "the command should have ended"

    async def prepare(self) -> None:
        await self._stage("prepare")

    async def consent(self) -> bool:
        await self._stage("consent")
        return self._consents

    async def act(self) -> None:
        await self._stage("act")

    async def roll_back(self, cause: BaseException | None) -> str:
        self.stages.append(f"roll back {type(cause).__name__}")
        return "undone"

    def commit(self) -> None:
        self.stages.append("commit")

    async def finish(self) -> ExitCode:
        await self._stage("finish")
        return ExitCode.CONFLICT


def test_transaction_with_consent_is_committed_before_it_waits() -> None:
    transaction = Recorded()
    assert asyncio.run(carry_out(transaction)) is ExitCode.CONFLICT
    assert transaction.stages == ["prepare", "consent", "act", "commit", "finish"]


def test_transaction_without_consent_is_rolled_back(capsys: pytest.CaptureFixture[str]) -> None:
    transaction = Recorded(consents=False)
    assert asyncio.run(carry_out(transaction)) is ExitCode.OK
    assert transaction.stages == ["prepare", "consent", "roll back NoneType"]
    assert capsys.readouterr().err == "undone\n"


@pytest.mark.parametrize("at", ["prepare", "consent", "act"])
def test_error_before_the_commit_rolls_back(at: str) -> None:
    transaction = Recorded(at=at)
    with pytest.raises(RefusedError):
        asyncio.run(carry_out(transaction))
    assert transaction.stages[-2:] == [at, "roll back RefusedError"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("at", "last"), [("act", "roll back CancelledError"), ("finish", "finish")])
def test_ctrl_c_and_sigterm_roll_back_before_the_commit_and_end_only_the_wait_after_it(
    number: signal.Signals, at: str, last: str
) -> None:
    transaction = Recorded(at=at, number=number)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(carry_out(transaction))
    assert transaction.stages[-1] == last


def test_terminal_that_closes_before_the_commit_does_not_end_the_command() -> None:
    code = (
        "import asyncio, os, sys, signal\n"
        "from tests.cli.test_lifecycle import Recorded, carry_out\n"
        "told = os.dup(1)\n"
        "transaction = Recorded(at='act', number=signal.SIGHUP)\n"
        "code = asyncio.run(carry_out(transaction))\n"
        "os.write(told, f'{code} {transaction.stages[-1]}'.encode())\n"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("0 commit", "")


def test_down_without_a_report_of_the_coordinator_and_without_a_scan_is_not_proven(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = report_end(Cli(json=True), "demo", None, None, [])
    document = json.loads(capsys.readouterr().out)
    assert (code, document["proven"]) == (ExitCode.NOT_PROVEN, False)


def test_down_that_could_not_prove_the_end_is_not_proven(capsys: pytest.CaptureFixture[str]) -> None:
    row = OperationRow("1", "down", "down", "ann", OperationState.SUCCEEDED, 1.0)
    scan = ScanReport("here", 100, unproven="Units were not in cgroups.")
    assert report_end(Cli(json=True), "demo", row, scan, []) is ExitCode.NOT_PROVEN
    assert "Not proven: Units were not in cgroups." in capsys.readouterr().out


def test_down_of_an_unreadable_run_is_an_error(shell: Shell) -> None:
    (shell.home / "demo" / "run.json").mkdir(parents=True)
    for named in ([], ["--run", "demo"]):
        said = shell("down", *named, expect=ExitCode.CONFIG)
        assert "run.json cannot be read" in said.err
        assert "The run demo may be up." in said.err
    file = shell.home.parent / "file"
    file.touch()
    assert "cannot be read" in shell("down", expect=ExitCode.CONFIG, AGENTRL_HOME=str(file)).err


async def test_scan_calls_this_host_by_its_name_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_HOST_NAME", "renamed")
    assert (await leftover_processes.scan("no-such-run", tmp_path)).host == "renamed"
    assert os.listdir(tmp_path) == [], "a scan makes no identity"
    this_host(tmp_path, "node-7")
    assert (await leftover_processes.scan("no-such-run", tmp_path)).host == "node-7"
    (tmp_path / HOST_FILE).write_text("damaged")
    assert (await leftover_processes.scan("no-such-run", tmp_path)).host == "renamed"

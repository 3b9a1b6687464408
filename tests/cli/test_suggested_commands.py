"""Suggested commands name the run that they are about."""

from __future__ import annotations

import pytest

from agentrl.cli.suggested_commands import aimed
from agentrl.client import ClientKey, new_keypair
from agentrl.errors import ExitCode
from agentrl.protocol.commands import COMMANDS
from tests.cli.conftest import Shell
from tests.cli.scripted import Scripted
from tests.ports import free_triplet


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("`agentrl events` shows it.", "`agentrl events --run a` shows it."),
        ("agentrl restart web-0 --now", "agentrl restart --run a web-0 --now"),
        ("`agentrl alerts ack x`, `agentrl status`", "`agentrl alerts ack --run a x`, `agentrl status --run a`"),
        ("agentrl up RUN.yaml makes one", "agentrl up RUN.yaml makes one"),
        ("`agentrl down --run b` ends it", "`agentrl down --run b` ends it"),
        (
            "`agentrl doctor` and `agentrl runs` look at the host",
            "`agentrl doctor` and `agentrl runs` look at the host",
        ),
        (
            "`agentrl config check` and `agentrl config schema`",
            "`agentrl config check --run a` and `agentrl config schema`",
        ),
        ("the agentrl version; agentrl upgrades nothing", "the agentrl version; agentrl upgrades nothing"),
    ],
)
def test_commands_that_take_a_run_get_the_option_once(text: str, meant: str) -> None:
    assert aimed(text, "--run a") == meant
    assert aimed(meant, "--run a") == meant


@pytest.mark.parametrize("spec", COMMANDS.values(), ids=lambda spec: spec.name)
def test_every_command_of_the_table_gets_the_option(spec: object) -> None:
    verb = " ".join(word for word in spec.cli.split() if not word.startswith("-"))  # type: ignore[attr-defined]
    assert aimed(f"agentrl {verb}", "--run a") == f"agentrl {verb} --run a"


def test_hint_of_an_error_names_the_run(shell: Shell, coordinator: Scripted) -> None:
    near = shell("tune", "nosuch", "--run", "demo", expect=ExitCode.UNKNOWN)
    assert "`agentrl tune --run demo` lists them" in near.err
    assert "`agentrl tune` lists them" in shell("tune", "nosuch", expect=ExitCode.UNKNOWN).err
    error = shell("tune", "nosuch", "--run", "demo", "--json", expect=ExitCode.UNKNOWN).json["error"]
    assert "--run demo" in error["hint"]


def test_with_a_key_no_hint_suggests_up(shell: Shell) -> None:
    pair = new_keypair()
    address = f"tcp://127.0.0.1:{free_triplet()}"
    key = ClientKey(name="ann", public=pair.public, secret=pair.secret, server_public=pair.public, address=address)
    key.save(shell.home / "ann.key")
    result = shell("status", "--key", str(shell.home / "ann.key"), expect=ExitCode.NO_COORDINATOR).err
    assert "agentrl up" not in result
    assert address in result

"""The token of a run: a single one, private, whichever process creates it."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config.http_token import TOKEN_FILE, generation, http_token
from agentrl.control.key_rotation import Step, tokens_after
from agentrl.control.persistence.atomic_file import replace_file
from agentrl.errors import ConfigError, DiskError


def test_the_token_is_created_once_and_is_private(tmp_path: Path) -> None:
    token = http_token(tmp_path / "state")
    file = tmp_path / "state" / TOKEN_FILE
    assert http_token(tmp_path / "state").current == token.current == file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(token.current) >= 32
    assert [one.name for one in file.parent.iterdir()] == [TOKEN_FILE]


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    program = "import sys, pathlib; from agentrl.config.http_token import http_token; "
    program += "print(http_token(pathlib.Path(sys.argv[1])).current)"
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    assert len({one.communicate(timeout=60)[0] for one in started}) == 1


def test_a_process_follows_the_replacement_of_the_token_and_survives_a_broken_file(tmp_path: Path) -> None:
    token, file = http_token(tmp_path), tmp_path / TOKEN_FILE
    first = token.current
    sent, accepted = [first], [{first}]
    tokens = [first]
    for step in Step:
        tokens = tokens_after(step, tokens)
        replace_file(file, "\n".join(tokens).encode(), mode=0o600)
        sent.append(token.current)
        known = {first, max(tokens, key=generation)}
        accepted.append({each for each in known if token.accepts(f"Bearer {each}".encode())})
    new = token.current
    assert sent == [first, first, new, new]
    assert accepted == [{first}, {first, new}, {first, new}, {new}]
    assert not any(token.accepts(wrong) for wrong in (b"", b"Bearer ", new.encode(), f"Bearer {new} ".encode()))
    file.write_text("")
    assert token.current == new
    file.unlink()
    assert token.accepts(f"Bearer {new}".encode())


@pytest.mark.parametrize("dies_after", list(Step))
def test_a_rotation_that_begins_again_ends_with_the_newer_token(dies_after: Step) -> None:
    tokens = ["2.former"]
    for step in [*(each for each in Step if each <= dies_after), *Step]:
        tokens = tokens_after(step, tokens)
    (left,) = tokens
    # After its last step a rotation may run once more. That replaces its token again, and no call is refused.
    assert generation(left) == (4 if dies_after is Step.DROP else 3)


def test_a_file_that_holds_no_token_is_not_used(tmp_path: Path) -> None:
    for content in (b"", b"short", b"\xff" * 40, b"two\x00parts-of-a-token-file"):
        (tmp_path / TOKEN_FILE).write_bytes(content)
        with pytest.raises(ConfigError, match="contains no token"):
            http_token(tmp_path)


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="cannot be made or read"):
        http_token(tmp_path / "file")

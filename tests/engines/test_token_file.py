"""The token of a run: a single one, private, whichever process creates it."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config.http_token import TOKEN_FILE, http_token
from agentrl.errors import ConfigError, DiskError


def test_the_token_is_created_once_and_is_private(tmp_path: Path) -> None:
    token = http_token(tmp_path / "state")
    file = tmp_path / "state" / TOKEN_FILE
    assert http_token(tmp_path / "state") == token == file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(token) >= 32
    assert [one.name for one in file.parent.iterdir()] == [TOKEN_FILE]


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    program = "import sys, pathlib; from agentrl.config.http_token import http_token; "
    program += "print(http_token(pathlib.Path(sys.argv[1])))"
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    assert len({one.communicate(timeout=60)[0] for one in started}) == 1


def test_a_file_that_holds_no_token_is_not_used(tmp_path: Path) -> None:
    for content in (b"", b"short", b"\xff" * 40, b"two\x00parts-of-a-token-file"):
        (tmp_path / TOKEN_FILE).write_bytes(content)
        with pytest.raises(ConfigError, match="contains no token"):
            http_token(tmp_path)


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="cannot be made or read"):
        http_token(tmp_path / "file")

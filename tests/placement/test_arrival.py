"""The directory of a host on a disk that other users can write to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, ExitCode
from agentrl.placement import arrival
from tests.placement.sites import ROOT


def test_directory_that_another_user_may_have_made_gets_no_key(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "open"):
        with pytest.raises(ConfigError, match="may not hold a key"):
            arrival._make_own(tmp_path / name)
    arrival._make_own(tmp_path / "own")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


def test_state_of_a_host_is_on_a_local_disk_by_default() -> None:
    assert arrival.usual_state_dir("uuid", "b") == Path(f"/var/tmp/agentrl-{os.getuid()}/uuid/b")


def test_order_that_is_not_understood_is_refused_without_its_content() -> None:
    command = [sys.executable, "-m", "agentrl.placement.arrival"]
    done = subprocess.run(command, input='{"act": "secret"}', cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == ExitCode.VERSION
    assert json.loads(done.stdout)["code"] == ExitCode.VERSION
    assert "Traceback" not in done.stderr

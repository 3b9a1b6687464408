"""The environment of a tool server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.errors import ConfigError
from agentrl.host import procfs
from agentrl.sandboxes.launch_environment import launch_of


def test_a_server_inherits_only_the_allow_list_and_the_marks(tmp_path: Path) -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/h",
        "AGENTRL_RUN": "r",
        "AGENTRL_HOST": "h",
        "AGENTRL_INCARNATION": "toolbox-0.1",
        "AGENTRL_TOKEN": "fencing",
        "AGENTRL_COORDINATOR": "ipc://hub",
        "AWS_SECRET_ACCESS_KEY": "s",
        "SEARCH_KEY": "for this server",
    }
    server = ToolServer(command="{python} -m x {run_dir} {other}", env={"KEY": "env:SEARCH_KEY", "DIR": "{run_dir}/d"})
    launch = launch_of("search", server, run_dir=tmp_path, environ=environ)
    assert launch.command == (sys.executable, "-m", "x", str(tmp_path), "{other}")
    assert launch.cwd == tmp_path
    beside = ToolServer(command="{python} x.py", cwd="{run_dir}/servers")
    assert launch_of("search", beside, run_dir=tmp_path, environ=environ).cwd == tmp_path / "servers"
    assert launch.env == {
        "PATH": "/bin",
        "HOME": "/h",
        "AGENTRL_MARK": procfs.mark_of("r"),
        "AGENTRL_HOST": "h",
        "AGENTRL_INCARNATION": "toolbox-0.1",
        "PYTHONUNBUFFERED": "1",
        "KEY": "for this server",
        "DIR": f"{tmp_path}/d",
    }


@pytest.mark.parametrize("env", [{"KEY": "env:NOT_THERE"}, {"AGENTRL_RUN": "another"}])
def test_a_missing_secret_of_the_environment_is_named(env: dict[str, str], tmp_path: Path) -> None:
    server = ToolServer(command="x", env=env)
    with pytest.raises(ConfigError, match=r"tools\.search\.env\."):
        launch_of("search", server, run_dir=tmp_path, environ={})

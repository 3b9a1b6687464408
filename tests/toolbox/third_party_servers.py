"""The servers of assets/third-party-tools.yaml, as that run file describes them.

Their packages are installed by the toolbox itself, into a cache that is kept between runs of the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentrl.config.data_plane import ToolServer
from agentrl.config.load import load_config
from agentrl.config.tool_lock import keep_pins

FILE = Path(__file__).parents[2] / "assets" / "third-party-tools.yaml"
CACHE = Path("~/.cache/agentrl-tests").expanduser()


def third_party_servers(run_dir: Path, *names: str) -> Mapping[str, ToolServer]:
    """Some servers, or all, with one process each; their pins are in `run_dir`."""
    config = load_config(FILE, environ={}).config
    keep_pins(config, FILE, run_dir)
    chosen = names or tuple(config.tools)
    return {name: config.tools[name].model_copy(update={"pool": 1}) for name in chosen}

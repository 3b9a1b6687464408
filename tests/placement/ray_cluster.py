"""A Ray cluster of several nodes on this machine, in a process of its own: `python -m tests.placement.ray_cluster`.

The process reads one word a line (`add`, or `kill NODE`) and answers each with a line of JSON. It ends with its input,
and the cluster with it.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

NODES = 2
UP_WITHIN_S = 180
"""Long enough for a busy machine, because each node starts several programs."""
_ROOT = Path(__file__).parents[2]
_SMALL: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False, "include_log_monitor": False}
# Start workers only on demand; each host needs one.
_LAZY = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}


class RayCluster:
    """The cluster of this test process."""

    def __init__(self, nodes: int = NODES) -> None:
        # A folder of its own, because /tmp/ray decides which cluster `auto` means on this machine.
        self._folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.placement.ray_cluster", str(nodes)],
            cwd=_ROOT,
            env=os.environ | _LAZY | {"RAY_TMPDIR": self._folder.name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._killed = 0
        self.address: str = self._answer()["address"]

    @staticmethod
    @cache
    def shared() -> RayCluster:
        made = RayCluster()
        atexit.register(made.close)
        return made

    @staticmethod
    def end_shared() -> None:
        """End the shared cluster, because idle nodes use a tenth of a core."""
        if RayCluster.shared.cache_info().currsize:
            made = RayCluster.shared()
            RayCluster.shared.cache_clear()
            atexit.unregister(made.close)
            made.close()

    def kill_node(self, node: str) -> None:
        self._killed += 1
        self._ask(f"kill {node}")

    def mend(self) -> None:
        """Replace the nodes that were killed."""
        while self._killed:
            self._killed -= 1
            self._ask("add")

    def close(self) -> None:
        self._process.communicate(timeout=60)
        self._folder.cleanup()

    def _ask(self, words: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)  # type: ignore[no-any-return]
        raise AssertionError(f"the Ray cluster ended with {self._process.wait(60)}")


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **_SMALL})
    nodes = [cluster.add_node(num_cpus=1, num_gpus=1, wait=False, **_SMALL) for _ in range(int(sys.argv[1]))]
    cluster.wait_for_nodes(timeout=UP_WITHIN_S)
    print(json.dumps({"address": cluster.address}), flush=True)
    for line in sys.stdin:
        what, _, node = line.strip().partition(" ")
        if what == "add":
            nodes.append(cluster.add_node(num_cpus=1, num_gpus=1, **_SMALL))
        else:
            (gone,) = [each for each in nodes if each.node_id == node]
            nodes.remove(gone)
            cluster.remove_node(gone, allow_graceful=False)
        print("{}", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()

"""The coordinator: `python -m daemons.coordinator --state-dir S`."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import resource
import signal
import sys
from pathlib import Path

from agentrl.config.paths import read_run
from agentrl.control.coordinator import Coordinator
from agentrl.errors import AgentrlError, ExitCode
from agentrl.tracing import log_format


def take_all_descriptors() -> None:
    """Raise the limit of descriptors: thousands of peers need thousands of them, and the soft limit is often 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def run(state_dir: Path) -> int:
    coordinator = Coordinator(state_dir)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, coordinator.stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    await coordinator.serve()
    return ExitCode.OK


def main() -> int:
    parser = argparse.ArgumentParser(prog="agentrl daemon coordinator", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    args = parser.parse_args()
    faulthandler.enable()
    take_all_descriptors()
    log_format.set_up("coordinator")
    state_dir = args.state_dir.absolute()
    known = read_run(state_dir)
    if known is not None and os.environ.get("AGENTRL_RUN") != known.uuid:
        # The mark must be in /proc/PID/environ from the start of the process, so the program executes itself again.
        environ = {**os.environ, "AGENTRL_RUN": known.uuid}
        os.execve(sys.executable, [sys.executable, "-m", "daemons.coordinator", *sys.argv[1:]], environ)
    try:
        return asyncio.run(run(state_dir))
    except AgentrlError as failed:
        print(f"coordinator: {failed}", file=sys.stderr)
        return failed.exit_code


if __name__ == "__main__":
    sys.exit(main())

"""The host agent: `python -m daemons.host --state-dir S --run-dir R --name H --with-coordinator`.

On another host than the coordinator's: `--coordinator ADDRESS --key FILE --run UUID` instead of `--with-coordinator`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from agentrl.config.paths import make_run_dir, read_run
from agentrl.errors import AgentrlError, ConfigError, ExitCode
from agentrl.host.agent import Agent
from agentrl.host.agent_lock import AgentLock
from agentrl.host.coordinator_watchdog import CoordinatorWatchdog
from agentrl.host.spawn_environment import Home
from agentrl.protocol import wire
from agentrl.transport.addresses import hub_address
from agentrl.transport.curve_keys import ClientKey
from agentrl.transport.dealer import Dealer

log = logging.getLogger("host")


async def run(args: argparse.Namespace, home: Home) -> int:
    loop, finished = asyncio.get_running_loop(), asyncio.Event()
    # Before the claim: whoever reads there which process this is may end it at once, and it shall end in order.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, finished.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: log.info("SIGHUP: the agent goes on."))
    folder = home.state_dir / "hosts" / home.host
    claim = AgentLock(folder, home.run, home.host)
    dealer = Dealer(
        home.coordinator,
        key=ClientKey.load(home.key) if home.key else None,
        on_message=lambda frame: agent.receive_frame(frame),
        on_connected=lambda: agent.connected(),
        on_disconnected=lambda: agent.disconnected(),
        on_refused=lambda why: log.error("The coordinator's socket refuses this agent: %s", why),
    )
    agent = Agent(
        home,
        lambda message: dealer.send(wire.encode(message)),
        use_cgroups=args.cgroups == "auto",
        finished=finished,
    )
    agent.start()
    dealer.start()
    if args.with_coordinator:
        output = folder / "coordinator.log"
        agent.guard(
            CoordinatorWatchdog(
                agent.processes,
                home.state_dir,
                output,
                home.run,
                on_given_up=claim.note_coordinator,
                on_left=agent.coordinator_left,
            )
        )
    log.info("The host agent of %s is up with %d incarnations in its ledger.", home.host, len(agent.lives))
    try:
        await finished.wait()
    finally:
        dealer.close()
        await agent.close()
        claim.release()
    return ExitCode.OK


def run_uuid(state_dir: Path) -> str:
    known = read_run(state_dir)
    if known is None:
        raise ConfigError(f"{state_dir} has no run.json.", hint="Say --run UUID.")
    return known.uuid


def home_of(args: argparse.Namespace, uuid: str) -> Home:
    """Units have working directories of their own, so every path is a whole one."""
    return Home(
        run=uuid,
        host=args.name,
        state_dir=args.state_dir.absolute(),
        run_dir=args.run_dir.absolute(),
        key=args.key.absolute() if args.key else None,
        coordinator=args.coordinator or hub_address(uuid),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="agentrl daemon host", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--name", required=True, help="name of this host in the run")
    parser.add_argument("--with-coordinator", action="store_true", help="start the coordinator and keep it alive")
    parser.add_argument("--coordinator", default="", help="address of the coordinator, if it is elsewhere")
    parser.add_argument("--key", type=Path, help="file with this host's key")
    parser.add_argument("--run", default="", help="uuid of the run; otherwise from run.json")
    parser.add_argument("--cgroups", choices=("auto", "off"), default="auto")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        uuid = args.run or run_uuid(args.state_dir)
        if os.environ.get("AGENTRL_RUN") != uuid:
            # The mark must stand in /proc/PID/environ from the first moment of a process on, so begin once more.
            os.execve(
                sys.executable,
                [sys.executable, "-m", "daemons.host", *sys.argv[1:]],
                {**os.environ, "AGENTRL_RUN": uuid},
            )
        home = home_of(args, uuid)
        make_run_dir(home.run_dir)
        return asyncio.run(run(args, home))
    except AgentrlError as failed:
        print(f"host agent: {failed}", file=sys.stderr)
        return failed.exit_code


if __name__ == "__main__":
    sys.exit(main())

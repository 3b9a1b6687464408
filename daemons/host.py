"""The host agent: `python -m daemons.host --state-dir S --run-dir R --with-coordinator`.

On another host than the coordinator's: `--key FILE --name NAME` instead of `--with-coordinator`. `--probe ready` and
`--probe live` report the state of the agent of a state directory, for Kubernetes and other monitors.

This file takes the lock and starts the coordinator before it imports the host agent (`host_main_loop`): while the
agent imports its modules the coordinator imports its own, which shortens `agentrl up`.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from agentrl.config.containers import LEAVE_VARIABLE
from agentrl.config.paths import home, list_runs, make_run_dir, read_run, state_dir
from agentrl.config.this_host import known_name, this_host
from agentrl.errors import AgentrlError, ConfigError
from agentrl.host.agent_lock import AgentLock
from agentrl.host.coordinator_process import coordinator_command, living_coordinator, start_coordinator
from agentrl.tracing import log_format

log = logging.getLogger("host")


class EarlySignals:
    """Remembers SIGTERM and SIGINT until the event loop handles them, so that the agent always ends in order."""

    def __init__(self) -> None:
        self.seen = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, *_: object) -> None:
        self.seen = True


def run_uuid(args: argparse.Namespace) -> str:
    if args.run:
        return str(args.run)
    if args.key is not None:
        from agentrl.transport.curve_keys import ClientKey

        if of_key := ClientKey.load(args.key).run:
            return of_key
    known = read_run(args.state_dir)
    if known is None:
        raise ConfigError(f"{args.state_dir} has no run.json.", hint="Say --run UUID.")
    return known.uuid


def probe(args: argparse.Namespace) -> int:
    """Print why the agent is not in that state, and return 1."""
    from agentrl.host import condition

    state = args.state_dir
    if state is None:
        runs = [run.name for run in list_runs()]
        if len(runs) != 1:
            raise ConfigError(f"{home()} has {len(runs)} runs.", hint="Say --state-dir DIR.")
        state = state_dir(runs[0])
    found = condition.why_not_live if args.probe == "live" else condition.why_not_ready
    if why := found(state, args.name or known_name(state)):
        print(why, file=sys.stderr)
    return 1 if why else 0


def refuse_journal_of_another_version(state: Path) -> None:
    """Raises VersionMismatchError before anything starts, because a coordinator would be refused again at each
    start."""
    journal = state / "journal.sqlite"
    if journal.exists():
        from agentrl.control.persistence.journal import refuse_other_version

        refuse_other_version(journal)


def start_coordinator_early(args: argparse.Namespace, uuid: str) -> int:
    """Start the coordinator and return its pid; 0 if one is running or it cannot be started, which the watchdog then
    handles.
    """
    if not args.with_coordinator or living_coordinator(args.state_dir) is not None:
        return 0
    try:
        command = coordinator_command(args.state_dir)
        return start_coordinator(command, uuid, args.state_dir / "hosts" / args.name / "coordinator.log")
    except OSError as failed:
        log.error("The coordinator cannot be started: %s.", failed)
        return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agentrl daemon host", description=__doc__)
    parser.add_argument("--state-dir", type=Path)
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--name", default="", help="name of this host, for its first start; default: the hostname")
    parser.add_argument("--with-coordinator", action="store_true", help="start the coordinator and keep it alive")
    parser.add_argument("--coordinator", default="", help="address of the coordinator, if not that of the key")
    parser.add_argument("--key", type=Path, help="file with this host's key, or a directory with NAME.key in it")
    parser.add_argument("--run", default="", help="uuid of the run; otherwise from the key or run.json")
    parser.add_argument(
        "--leave-within",
        type=float,
        default=os.environ.get(LEAVE_VARIABLE, "0"),
        metavar="S",
        help="SIGTERM drains this host, and the agent ends when no unit is left or after S seconds",
    )
    parser.add_argument(
        "--bound-to", type=int, default=0, metavar="PID", help="the end of that process is like SIGTERM to this one"
    )
    parser.add_argument("--probe", choices=("ready", "live"), help="exit 0 if the agent is so, else say why not")
    parser.add_argument("--cgroups", choices=("auto", "off"), default="auto")
    args = parser.parse_args()
    if not args.probe and (missing := [name for name in ("state_dir", "run_dir") if getattr(args, name) is None]):
        parser.error(f"the following arguments are required: --{missing[0].replace('_', '-')}")
    # Units have working directories of their own, so every path is absolute.
    for name in ("state_dir", "run_dir", "key"):
        if path := getattr(args, name):
            setattr(args, name, path.absolute())
    return args


def main() -> int:
    args = arguments()
    log_format.set_up("host agent")
    try:
        if args.probe:
            return probe(args)
        wanted, args.name = args.name, this_host(args.state_dir, args.name).name
        if wanted not in ("", args.name):
            log.warning("This machine has joined the run as host %s; the name %s is not used.", args.name, wanted)
        if args.key is not None and args.key.is_dir():
            args.key = args.key / f"{args.name}.key"
        uuid = run_uuid(args)
        if os.environ.get("AGENTRL_RUN") != uuid:
            # The mark must be in /proc/PID/environ from the start of the process, so the program executes itself again.
            os.execve(
                sys.executable,
                [sys.executable, "-m", "daemons.host", *sys.argv[1:]],
                {**os.environ, "AGENTRL_RUN": uuid},
            )
        make_run_dir(args.run_dir)
        if args.with_coordinator and living_coordinator(args.state_dir) is None:
            refuse_journal_of_another_version(args.state_dir)
        signals = EarlySignals()
        lock = AgentLock(args.state_dir / "hosts" / args.name, uuid, args.name)
        coordinator_pid = start_coordinator_early(args, uuid)
        from daemons.host_main_loop import run_agent

        return run_agent(args, uuid, lock, coordinator_pid, ended_early=lambda: signals.seen)
    except AgentrlError as failed:
        print(f"host agent: {failed}", file=sys.stderr)
        return failed.exit_code


if __name__ == "__main__":
    sys.exit(main())

"""Prints the events of a run that is down: `python -m agentrl.control.offline_events --state-dir S [--kind K]...`.

Invariants:
- The journal is only read, and the answer equals the answer of a coordinator.
- Stdout is one message.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agentrl.control.handlers.client_queries import happenings
from agentrl.control.persistence.journal import Journal
from agentrl.errors import AgentrlError, ExitCode
from agentrl.protocol.control_commands import Events
from agentrl.protocol.wire import raw


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agentrl.control.offline_events", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--kind", action="append", default=[])
    parser.add_argument("--after-at", type=float, default=0.0)
    parser.add_argument("--limit", type=int, default=200)
    args = parser.parse_args()
    try:
        journal = Journal.read_only(args.state_dir / "journal.sqlite")
        rows = happenings(journal, Events(tuple(args.kind), args.after_at, args.limit))
    except AgentrlError as failed:
        print(failed.message, file=sys.stderr)
        return failed.exit_code
    sys.stdout.buffer.write(bytes(raw(rows)))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())

"""Lists and removes files that a run which is down left on other hosts.

`python -m agentrl.control.other_hosts --state-dir S [--act forget|wipe]`

Invariants:
- Without an act it only names the hosts.
- A host that cannot be reached is named, with the files that a person must remove there.
- Stdout is one JSON message.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Literal

from agentrl.config.paths import read_run
from agentrl.config.run import RunConfig
from agentrl.config.serialization import config_from_plain
from agentrl.config.this_host import known_name
from agentrl.control.commands.active_config import StoredConfig
from agentrl.control.persistence.journal import Journal
from agentrl.errors import AgentrlError, ExitCode
from agentrl.placement import HostRemains, PlacedRun
from agentrl.placement.arrival import usual_state_dir
from agentrl.placement.backends import open_placement
from agentrl.protocol import wire

Act = Literal["forget", "wipe"]


def hosts_of(state_dir: Path) -> tuple[RunConfig | None, list[str]]:
    """The last configuration, and the hosts other than this one that it names or that have joined."""
    if not (state_dir / "journal.sqlite").exists():
        return None, []
    journal = Journal.read_only(state_dir / "journal.sqlite")
    body = journal.get("config", "")
    config = None
    if body is not None:
        config = config_from_plain(wire.decode_as(StoredConfig, body).plain, where="the journal")
    named = {*journal.all("host"), *(config.all_hosts if config is not None else ())}
    return config, sorted(named - {known_name(state_dir)})


def clear(state_dir: Path, act: Act) -> dict[str, str]:
    """For each host the reason why it still has files of the run; empty if it has none. Raises AgentrlError if the
    journal cannot be read."""
    config, hosts = hosts_of(state_dir)
    run = read_run(state_dir)
    if not hosts or config is None or run is None:
        return {host: "its place is not known" for host in hosts}
    known = config.all_hosts
    by_hand = "the directories of its agent (--state-dir, --run-dir)"
    found = {host: f"a person started its agent; remove {by_hand} there" for host in hosts if host not in known}
    left = tuple(
        HostRemains(host, known[host].node, known[host].disk, known[host].dir or run.run_dir, wipe=act == "wipe")
        for host in hosts
        if host in known
    )
    placement = open_placement(config.placement, PlacedRun(run.uuid, run.name, str(state_dir)))
    kind = config.placement.kind
    for one in left:
        place = one.state_dir or usual_state_dir(run.uuid, one.host)
        where = by_hand if kind == "local" else f"{place} and {one.run_dir}"
        why = placement.clear(one)
        found[one.host] = f"{why}; remove {where} there" if why else ""
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agentrl.control.other_hosts", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--act", choices=("forget", "wipe"))
    args = parser.parse_args()
    try:
        found = clear(args.state_dir, args.act) if args.act else dict.fromkeys(hosts_of(args.state_dir)[1], "")
    except AgentrlError as failed:
        print(json.dumps({"failed": failed.message}))
        return failed.exit_code
    print(json.dumps({"hosts": found}))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())

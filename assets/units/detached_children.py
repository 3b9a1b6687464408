"""Starts children that fork twice and call setsid, as daemons do, so that killing its process group misses them.

    python -m assets.units.detached_children [--children 3]

Writes the process ids of the children to RUN_DIR/children-UNIT.pids, one a line.
"""

from __future__ import annotations

import subprocess

from agentrl.unit import Unit, run_unit
from assets.units import options

# The inner shell is an orphan in its own session before it writes its pid and becomes `sleep`.
_DAEMON = """(setsid sh -c 'echo $$ >> "$1"; exec sleep 3600' daemon "$1" </dev/null >/dev/null 2>&1 &) &"""


def main(unit: Unit) -> None:
    wanted = options(__doc__, children=3).children
    pids = unit.run_dir / f"children-{unit.name}.pids"
    pids.write_text("")
    with unit.phase("forking", at_most_s=30):
        for _ in range(wanted):
            subprocess.run(["sh", "-c", _DAEMON, "sh", str(pids)], check=True)
        while len(pids.read_text().split()) < wanted and unit.sleep(0.02):
            pass
    unit.ready()
    unit.status(f"{wanted} daemons")
    while unit.sleep(0.5):
        unit.tick()


if __name__ == "__main__":
    run_unit(main)

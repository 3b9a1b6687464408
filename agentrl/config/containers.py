"""Variables by which a container or a job passes settings to all processes of the run in it."""

from __future__ import annotations

import os

LEAVE_VARIABLE = "AGENTRL_LEAVE_WITHIN_S"
"""How long this host has from SIGTERM to its end; the default of `--leave-within` of every host agent here."""
CONTAINER_VARIABLE = "AGENTRL_OWN_CONTAINER"
"""Set in a container whose process 1 is `agentrl up --foreground` or a host agent."""


def ends_with_process_1() -> bool:
    """Whether process 1 belongs to the run. If it does, the kernel ends every process here when process 1 ends, so no
    process of the run can be left."""
    return bool(os.environ.get(CONTAINER_VARIABLE))

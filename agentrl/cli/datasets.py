"""What is known of a run's datasets and files before anything is started, for `config check` and `up`.

Invariant: what a unit would refuse when it starts is refused here; what it would only warn of is told.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError, OperationFailedError

if TYPE_CHECKING:
    from agentrl.config.load import Loaded


def look(loaded: Loaded, sets: Sequence[str]) -> list[str]:
    """What is to be told of them. Raises ConfigError for one that cannot be trained on."""
    import msgspec

    from agentrl.config import file_checks

    if problem := next(file_checks.problems_of(loaded.config), None):
        raise problem
    if not loaded.config.environments:
        return []
    # Rows are read by a room that the command line does not know, so a program that does looks at them.
    command = [sys.executable, "-m", "agentrl.doctor", "--json", "--datasets", *(f"--set={one}" for one in sets)]
    # In a session of its own: Ctrl-C is for this command, which ends that program with itself.
    done = subprocess.run(
        [*command, "--", str(loaded.path)], stdout=subprocess.PIPE, check=False, start_new_session=True
    )
    try:
        checks = msgspec.json.decode(done.stdout, type=list[dict[str, str]])
    except msgspec.DecodeError:
        raise OperationFailedError(
            f"The datasets could not be looked at: the program that reads them ended with {done.returncode}.",
            hint="What it wrote stands above; `agentrl doctor` looks for what is missing.",
        ) from None
    for each in checks:
        if each["verdict"] == "fail":
            raise ConfigError(each["sentence"], hint=each["hint"])
    return [f"{each['sentence']} {each['hint']}" for each in checks if each["verdict"] == "warn"]

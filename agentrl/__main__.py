"""The program `agentrl`, also as `python -m agentrl`.

Invariant: Ctrl-C while it is being loaded ends it at once, and without a word.
"""

import sys
from typing import NoReturn

from agentrl.loading import quiet_interrupts


def main() -> NoReturn:
    """Entry point of the console script."""
    with quiet_interrupts():
        from agentrl.cli.app import run
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

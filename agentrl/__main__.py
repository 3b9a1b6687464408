"""The program `agentrl`, also as `python -m agentrl`.

Invariant: Ctrl-C during the imports ends it at once and without output.
"""

import gc
import sys
from typing import NoReturn

from agentrl.import_interrupts import quiet_interrupts


def main() -> NoReturn:
    """Entry point of the console script."""
    # All that is created here stays, so collections would only cost time.
    gc.disable()
    with quiet_interrupts():
        from agentrl.cli.app import run
    gc.freeze()
    gc.enable()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

"""Contains small example units, written with the public unit runtime: `python -m assets.units.NAME`.

They show how a main loop becomes a unit, and fail on request so that the reaction of the supervisor can be seen.
"""

from __future__ import annotations

import argparse


def options(description: str | None, **defaults: float | str | bool) -> argparse.Namespace:
    """Parses the command line of an example: an option for each default, of its type."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(option, action="store_true")
        else:
            parser.add_argument(option, type=type(default), default=default)
    return parser.parse_args()

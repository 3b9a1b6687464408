"""Commands that are named to a person, made such that they reach the run that is meant when they are typed.

Invariant: only commands that look for a run get the option, and none gets it twice.
"""

from __future__ import annotations

import re

_OF_A_RUN = re.compile(
    r"\bagentrl ((?:alerts|keys|tasks|records|steps|checkpoints|versions|tools) [a-z]+"
    r"|(?:up|down|status|scale|drain|restart|stop|pause|resume|tune|logs|events|why|stacks|accounting|staleness))(?![\w-])"
    r"(?! --(?:run|key)\b| RUN\.yaml)"
)


def aimed(text: str, option: str) -> str:
    """The text, with the option behind the verb of each command in it that looks for a run."""
    return _OF_A_RUN.sub(lambda found: f"{found[0]} {option}", text)

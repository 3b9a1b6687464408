"""Adds the run to the commands that messages suggest.

Invariants:
- Only commands that take a run get the option, and only once.
"""

from __future__ import annotations

import re

_OF_A_RUN = re.compile(
    r"\bagentrl ((?:alerts|keys|hosts|tasks|records|steps|checkpoints|versions|tools|calls|replays|review) [a-z]+"
    r"|config (?:check|show)|eval (?:list|show|compare)"
    r"|(?:up|down|status|wait|scale|drain|restart|stop|pause|resume|tune|rollback|replay|fork"
    r"|logs|events|why|stacks|accounting|staleness|models))(?![\w-])"
    r"(?! --(?:run|key)\b| RUN\.yaml)"
)


def aimed(text: str, option: str) -> str:
    """The text, with the option added to each command that takes a run."""
    return _OF_A_RUN.sub(lambda found: f"{found[0]} {option}", text)


def how_to_read(named: str | None) -> str:
    """The commands that start and end the store of a run that is down; empty if it has none or is up."""
    from agentrl.client.offline_run import OfflineRun
    from agentrl.client.run_processes import keepers_of

    found = OfflineRun.find(named)
    if found is None:
        return "" if named else "agentrl up --run NAME --read-only brings up the store of one that is down."
    if keepers_of(found.state_dir) or not found.has_store:
        return ""
    return (
        f"agentrl up --run {found.name} --read-only brings up its store and nothing else, to read from; "
        f"agentrl down --run {found.name} ends that."
    )

"""One thing with everything that belongs to it, its records as the list of records shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agentrl.cli import lists
from agentrl.cli.records import COLUMNS, RIGHT, SPARE
from agentrl.cli.verbs import Cli
from agentrl.errors import ExitCode

if TYPE_CHECKING:
    from agentrl.protocol.data_commands import Story


async def show_story(cli: Cli, command: str, id: str, tell: Callable[[Cli, Story], None]) -> ExitCode:
    """Ask for one thing and everything that belongs to it; its records follow as a table."""
    from agentrl.cli import output

    async with cli.connect() as client:
        story = await client.call(command, {"id": id}, deadline_s=lists.ANSWER_WITHIN_S)
    if cli.json:
        output.emit(story)
        return ExitCode.OK
    tell(cli, story)
    if story.records:
        output.say()
        lists.show_rows(cli, story.records, COLUMNS, right=RIGHT, spare=SPARE)
    if story.more_records:
        output.note(f"{story.more_records} more; `agentrl records list` has all of them.")
    return ExitCode.OK

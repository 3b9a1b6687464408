"""One call of a backend: `python -m agentrl.placement`, with a Request on standard input. Prints a Reply as JSON.

It is a separate process, so a backend may block, import anything, and die, while the coordinator goes on.
"""

from __future__ import annotations

import sys

import msgspec

from agentrl.config.placement import Placement as Settings
from agentrl.errors import AgentrlError, ExitCode
from agentrl.placement.backends import open_placement
from agentrl.placement.requests import Reply, Request


def answer(request: Request) -> Reply:
    try:
        placement = open_placement(Settings.model_validate(request.settings), request.run)
        if request.act == "ensure":
            return Reply(placement.ensure(request.wanted))
        if request.act == "describe":
            return Reply(placement.describe())
        placement.release(request.hosts)
        return Reply()
    except AgentrlError as failed:
        return Reply(error=failed.message, hint=failed.hint, code=failed.exit_code)


def main() -> int:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    sys.stdout.buffer.write(msgspec.json.encode(answer(request)))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())

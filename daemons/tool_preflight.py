"""Calls the tools of a run before it starts: `python -m daemons.tool_preflight`, which reads the configuration as JSON
and writes a line of JSON for each tool.

Invariant: its servers, sessions and processes end with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

import msgspec

from agentrl.config.run import RunConfig
from agentrl.errors import AgentrlError, ExitCode
from agentrl.toolbox.preflight import Trial, try_tools
from daemons.interruptions import until_stopped
from daemons.program_messages import keep_messages_apart, tell


def _show(trial: Trial) -> None:
    tell("tool", **msgspec.to_builtins(trial))


def run(line: str) -> int:
    logging.basicConfig(level=logging.CRITICAL, stream=sys.stderr, format="%(message)s")
    try:
        asked = json.loads(line)
        config = RunConfig.model_validate(asked["config"])
        file = Path(asked["run_file"]) if asked["run_file"] else None
        asyncio.run(until_stopped(try_tools(config, asked["tools"], _show, run_file=file)))
    except asyncio.CancelledError:
        return ExitCode.INTERRUPTED
    except AgentrlError as wrong:
        tell("failed", message=wrong.message, hint=wrong.hint, exit_code=int(wrong.exit_code))
        return int(wrong.exit_code)
    tell("done")
    return ExitCode.OK


if __name__ == "__main__":
    keep_messages_apart()
    code = run(sys.stdin.readline())
    sys.stderr.flush()
    os._exit(code)

"""Compares mathematical answers in a process of its own, which can be ended at any time.

Invariants:
- an answer that is not decided within its processor time is not equal, however busy the host is;
- a process that cannot be started or does not answer is an error, never a verdict;
- there is at most one process; it starts with the first question that needs it, and the owner closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from asyncio.subprocess import Process

from agentrl.rollout import math_text
from agentrl.rollout.math_text import tidy

log = logging.getLogger("math_judge")
PROCESSOR_S = 4
"""For one question. Equal answers usually take a hundredth of that."""
ANSWER_WITHIN_S = 90.0
"""Longest wait for a verdict; longer means that the host is too busy to give that processor time."""
START_WITHIN_S = 60.0
END_WITHIN_S = 5.0


class NoVerdictError(Exception):
    """The process failed. It says nothing about the answer."""


class MathJudge:
    """Compares pairs of answers, one after the other."""

    def __init__(self, *, processor_s: int = PROCESSOR_S) -> None:
        self._processor_s = processor_s
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The pid of the process, if there is one."""
        return None if self._process is None else self._process.pid

    async def equal(self, answer: str, truth: str) -> bool:
        """Raises NoVerdictError if the process fails."""
        left, right = tidy(answer), tidy(truth)
        if left == right:
            return True
        numbers = math_text.number(left), math_text.number(right)
        if numbers[0] is not None and numbers[1] is not None:
            return numbers[0] == numbers[1]
        async with self._turn:
            return await self._ask(left, right) == "equal"

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(END_WITHIN_S):
                await process.wait()
        except TimeoutError:
            await _kill(process)

    async def _ask(self, left: str, right: str) -> str:
        process = await self._running()
        question = json.dumps({"left": left, "right": right, "processor_s": self._processor_s})
        answer = b""
        try:
            assert process.stdin is not None
            process.stdin.write(question.encode() + b"\n")
            await process.stdin.drain()
            answer = await _line(process, ANSWER_WITHIN_S)
        except ConnectionError:
            pass  # the process ended; its exit status says why
        except BaseException:
            # A late verdict would be read as the answer to the next question.
            self._process = None
            await _kill(process)
            raise
        if answer:
            return str(json.loads(answer)["verdict"])
        self._process = None
        return await _why_it_ended(process)

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            started = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "agentrl.rollout.math_worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as broken:
            raise NoVerdictError(f"the math process cannot be started: {broken}") from broken
        try:
            ready = await _line(started, START_WITHIN_S)
        except BaseException:
            await _kill(started)
            raise
        if not ready:
            raise NoVerdictError(f"the math process ended at its start with status {await started.wait()}")
        self._process = started
        return started


async def _line(process: Process, within_s: float) -> bytes:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(within_s):
            return await process.stdout.readline()
    except TimeoutError:
        raise NoVerdictError(f"the math process did not answer within {within_s:g} s") from None


async def _why_it_ended(process: Process) -> str:
    """The verdict of a process that ended: undecided if its processor time ran out; any other reason is an error."""
    status = await process.wait()
    if status == -signal.SIGXCPU:
        log.info("a mathematical answer was not decided within its processor time")
        return "undecided"
    raise NoVerdictError(f"the math process ended with status {status}")


async def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()

"""Asks whether two mathematical answers are equal, of a process that may be ended at any time.

Invariants: an answer that cannot be decided within its processor time is not equal, today and tomorrow, on a busy host
and an idle one; a process that cannot be started or does not answer at all is no verdict but an error. There is at most
one process, started when it is first needed, and its owner closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from asyncio.subprocess import Process

from agentrl.rollout import mathtext
from agentrl.rollout.mathtext import tidy

log = logging.getLogger("mathjudge")
PROCESSOR_S = 4
"""Of one question. Equal answers are usually seen to be so in a hundredth of that."""
ANSWER_WITHIN_S = 90.0
"""On a host so busy that the processor time above takes this long, there is no verdict."""
START_WITHIN_S = 60.0
END_WITHIN_S = 5.0


class NoVerdictError(Exception):
    """The process could not be asked. Says nothing about the answer."""


class MathJudge:
    """One question after the other."""

    def __init__(self, *, processor_s: int = PROCESSOR_S) -> None:
        self._processor_s = processor_s
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Of its process, if there is one."""
        return None if self._process is None else self._process.pid

    async def equal(self, answer: str, truth: str) -> bool:
        """Raises NoVerdictError if nobody can say."""
        left, right = tidy(answer), tidy(truth)
        if left == right:
            return True
        numbers = mathtext.number(left), mathtext.number(right)
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
            pass  # it ended; its exit status says why
        except BaseException:
            # What it will still say would be taken for the answer to the next question.
            self._process = None
            await _kill(process)
            raise
        if answer:
            return str(json.loads(answer)["verdict"])
        self._process = None
        return await _last_word(process)

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            started = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "agentrl.rollout.mathworker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as broken:
            raise NoVerdictError(f"the process for mathematics does not start: {broken}") from broken
        try:
            ready = await _line(started, START_WITHIN_S)
        except BaseException:
            await _kill(started)
            raise
        if not ready:
            raise NoVerdictError(f"the process for mathematics ended at its start with status {await started.wait()}")
        self._process = started
        return started


async def _line(process: Process, within_s: float) -> bytes:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(within_s):
            return await process.stdout.readline()
    except TimeoutError:
        raise NoVerdictError(f"the process for mathematics did not answer within {within_s:g} s") from None


async def _last_word(process: Process) -> str:
    """Why it ended instead of answering: over its processor time, or for another reason."""
    status = await process.wait()
    if status == -signal.SIGXCPU:
        log.info("a mathematical answer was not decided within its processor time")
        return "undecided"
    raise NoVerdictError(f"the process for mathematics ended with status {status}")


async def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()

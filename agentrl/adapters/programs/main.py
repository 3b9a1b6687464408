"""Plays an environment of another package: `python main.py JSON`, with one request or answer per line.

Invariants:
- Only answers are on standard output; what the package prints goes to standard error.
- Requests are served concurrently. Those of one episode come one after another, except its end, which may come at any
  time.
- An episode is scored by the same object that played it, or by one that plays the stored texts again.
- Each request is answered, whatever the package raises.
- This process and what the package started end with the process that started this one, whatever holds them up.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import json
import os
import signal
import sys
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

MOST_ENDED = 256
"""The most ended episodes that are kept until they are scored. To score an older one, its texts are played again."""
LONGEST_LINE = 64 * 2**20
THREADS = 32
ENDS_WITHIN_S = 3.0
"""How long the running work of an environment file may take after the last request."""
LOOK_EVERY_S = 1.0


@dataclass
class _Running:
    play: Any
    row: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    """The texts of the model that it has answered."""
    answers: bool = False
    """Whether it is answering another text. An episode that ends during an answer is played again to be scored."""


class Plays:
    """The episodes of one environment."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._beginning: set[str] = set()
        """The names of episodes whose beginning is still running."""
        self._running: dict[str, _Running] = {}
        """Running plays by the name of their episode."""
        self._ended: OrderedDict[str, Any] = OrderedDict()
        """Ended plays by a hash of row and texts."""

    async def describe(self, **_: Any) -> Any:
        return await _run(self._environment.describe)

    async def rows(self, **_: Any) -> Any:
        return await _run(self._environment.rows)

    async def begin(self, *, episode: str, row: dict[str, Any]) -> Any:
        self._beginning.add(episode)
        try:
            play = await _run(self._environment.begin, row)
            if episode in self._beginning:
                self._running[episode] = _Running(play, row)
            else:
                await _close(play)  # The episode ended in the meantime.
        finally:
            self._beginning.discard(episode)

    async def answer(self, *, episode: str, text: str) -> Any:
        if (running := self._running.get(episode)) is None:
            raise LookupError("the program that played this episode has ended")
        running.answers = True
        following = await _run(running.play.answer, text)
        running.texts.append(text)
        running.answers = False
        return following

    async def end(self, *, episode: str) -> Any:
        self._beginning.discard(episode)
        if (ended := self._running.pop(episode, None)) is not None:
            if ended.texts and not ended.answers:
                self._keep(_key(ended.row, ended.texts), ended.play)
            else:
                await _close(ended.play)
        while len(self._ended) > MOST_ENDED:
            await _close(self._ended.popitem(last=False)[1])
        return None

    async def score(self, *, row: dict[str, Any], texts: list[str]) -> Any:
        play, played = None, 0
        for number in range(len(texts), 0, -1):
            # If an episode ended at a limit, its last turn was not answered.
            if (play := self._ended.pop(_key(row, texts[:number]), None)) is not None:
                played = number
                break
        if play is None:
            play = await _run(self._environment.begin, row)
        try:
            for text in texts[played:]:
                if not play.done:
                    await _run(play.answer, text)
            found = await _run(play.result)
        except BaseException:
            await _close(play)
            raise
        self._keep(_key(row, texts), play)
        return found

    def _keep(self, key: str, play: Any) -> None:
        self._ended[key] = play
        self._ended.move_to_end(key)


def _key(row: dict[str, Any], texts: list[str]) -> str:
    return hashlib.blake2b(json.dumps([row, texts], sort_keys=True).encode(), digest_size=16).hexdigest()


async def _close(play: Any) -> None:
    if hasattr(play, "close"):
        await _run(play.close)


async def _run(function: Any, *arguments: Any) -> Any:
    """Calls the function; one that is not async runs in a thread, because it may take long."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, _called, function, arguments)


def _called(function: Any, arguments: Any) -> Any:
    try:
        return function(*arguments)
    except StopIteration as ended:  # No future takes it, and what waits for that would wait for ever.
        raise RuntimeError(f"StopIteration: {ended}".rstrip(": ")) from ended


async def _serve(plays: Any, request: dict[str, Any], answers: int) -> None:
    number, do = request.pop("id"), request.pop("do")
    try:
        # Any process whose event loop runs can answer `alive`.
        answer = {"id": number, "ok": None if do == "alive" else await getattr(plays, do)(**request)}
        line = json.dumps(answer, default=str)
    except BaseException as broken:  # noqa: BLE001 - the boundary to the package, which may raise SystemExit, too
        error = " ".join(f"{type(broken).__name__}: {broken}".split()).rstrip(": ")
        line = json.dumps({"id": number, "error": error})
    rest = memoryview(line.encode() + b"\n")
    while rest:
        rest = rest[os.write(answers, rest) :]


async def _main(answers: int, arguments: list[str]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    # Arguments are read before the import, which names our module, because the package may have the same name.
    asked = json.loads(arguments[0])
    try:
        environment = importlib.import_module(asked.pop("module")).Environment(**asked)
    except BaseException as broken:  # noqa: BLE001 - the package may raise anything, SystemExit too
        text = " ".join(f"{type(broken).__name__}: {broken}".split())
        os.write(answers, json.dumps({"id": 0, "error": text}).encode() + b"\n")
        return
    os.write(answers, b'{"id": 0, "ok": null}\n')
    serves = getattr(environment, "serves", False)
    plays = environment if serves else Plays(environment)
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    under_way: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = asyncio.create_task(_serve(plays, json.loads(line), answers))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    if left := under_way | getattr(plays, "ending", set()):
        # Work that waits for a sampler that is gone would never end, so it gets a limit. A package that makes tasks may
        # take long, so it gets none.
        await asyncio.wait(left, timeout=ENDS_WITHIN_S if serves else None)


def _end_with(parent: int) -> None:
    """Code that does not give back control never sees the end of its input."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main(arguments: list[str]) -> None:
    mine = os.dup(1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    status = 0
    try:
        asyncio.run(_main(mine, arguments))
    except BaseException as broken:  # noqa: BLE001 - such as SystemExit in a task that the package began
        status = 1
        print(f"{type(broken).__name__}: {broken}".rstrip(": "), file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(status)  # Exits at once, without waiting for threads of the package.


if __name__ == "__main__":
    main(sys.argv[1:])

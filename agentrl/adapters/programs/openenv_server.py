"""Environments behind an OpenEnv server: an observation is a message, and an action is the JSON of `<action>`.

Invariants:
- An episode is one connection, and therefore one session of the server. It waits while the server has no free session,
  and gives its session back when it ends.
- The score is the sum of the rewards that the server gives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import urllib.parse
import urllib.request
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)
HELD_OUT_FROM = 1_000_000
"""The first seed of held-out tasks."""
MOST_TURNS = 32
LARGEST_MESSAGE = 64 * 2**20
ANSWERS_WITHIN_S = 120.0
FREE_WITHIN_S = 300.0
"""How long an episode waits for a session of the server."""
_AGAIN_S = 0.5


class Environment:
    def __init__(self, name: str, arguments: dict[str, Any], rows: int, held_out: int) -> None:
        self._url = name.rstrip("/")
        self._arguments = arguments
        self._seeds = [*range(rows), *range(HELD_OUT_FROM, HELD_OUT_FROM + held_out)]

    def describe(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}/schema", timeout=ANSWERS_WITHIN_S) as answer:
            self._schema = json.loads(answer.read())["action"]
        return {"system": _how_to_act(self._schema), "max_turns": MOST_TURNS, "answer_schema": "action"}

    async def rows(self) -> list[dict[str, Any]]:
        session = Session(self._url, self._arguments)
        try:
            made = [
                {
                    "id": f"seed-{seed}",
                    "query": _shown(await session.reset(seed)),
                    "split": "eval" if seed >= HELD_OUT_FROM else "train",
                    "seed": seed,
                }
                for seed in self._seeds
            ]
        finally:
            await session.close()
        known = {row["query"] for row in made if row["split"] == "train"}
        return [row for row in made if row["split"] == "train" or row["query"] not in known]

    async def begin(self, row: dict[str, Any]) -> Session:
        session = Session(self._url, self._arguments)
        try:
            await session.reset(int(row["seed"]))
        except BaseException:
            await session.close()  # A server has few of them.
            raise
        return session


class Session:
    def __init__(self, url: str, arguments: dict[str, Any]) -> None:
        parts = urllib.parse.urlsplit(url)
        scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
        self._url = parts._replace(scheme=scheme, path=f"{parts.path.rstrip('/')}/ws").geturl()
        self._arguments = arguments
        self._connection: Any = None
        self._total = 0.0
        self._steps = self._without = 0
        self.done = False

    async def reset(self, seed: int) -> Any:
        began = time.monotonic()
        while True:
            try:
                if self._connection is None:
                    self._connection = await connect(self._url, max_size=LARGEST_MESSAGE, proxy=None)
                data = await self._ask("reset", {**self._arguments, "seed": seed})
                self._total, self._steps, self._without, self.done = 0.0, 0, 0, bool(data.get("done"))
                return data.get("observation")
            except BusyError:
                await self.close()
                if time.monotonic() - began > FREE_WITHIN_S:
                    raise
                await asyncio.sleep(_AGAIN_S)

    async def answer(self, text: str) -> dict[str, Any]:
        written = _ACTION.findall(text)
        try:
            action = json.loads(written[-1]) if written else None
        except (ValueError, RecursionError):
            action = None
        if not isinstance(action, dict):
            self._without += 1
            return {"message": "That is no action. Write <action>JSON</action>, an object with its fields."}
        try:
            data = await self._ask("step", action)
        except RefusedError as refused:
            self._without += 1
            return {"message": str(refused)}
        self._steps += 1
        self._total += float(data.get("reward") or 0.0)
        self.done = bool(data.get("done"))
        if self.done:
            await self.close()
            return {"done": True}
        return {"message": _shown(data.get("observation"))}

    async def result(self) -> dict[str, Any]:
        await self.close()
        parts = {"reward": self._total, "steps": self._steps, "no_action": self._without, "terminated": int(self.done)}
        return {"value": self._total, "parts": parts}

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            # A server without a free session reports that and closes the connection, perhaps before it reads.
            with contextlib.suppress(ConnectionClosed):
                await self._connection.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(await self._connection.recv())
        found: dict[str, Any] = answer.get("data") or {}
        if answer.get("type") == "error":
            code = str(found.get("code", ""))
            text = str(found.get("message", "the server refuses"))
            raise (BusyError if "CAPACITY" in code else RefusedError)(text)
        return found


class RefusedError(Exception):
    """The server does not take an action; the model reads why."""


class BusyError(Exception):
    """The server has no session free."""


def _shown(observation: Any) -> str:
    if isinstance(observation, dict):
        texts = [value for value in observation.values() if value not in (None, {}, [])]
        if len(texts) == 1 and isinstance(texts[0], str):
            return texts[0]
    return json.dumps(observation, ensure_ascii=False, default=str)


def _how_to_act(schema: dict[str, Any]) -> str:
    known = {name: value for name, value in schema.get("properties", {}).items() if name != "metadata"}
    fields = json.dumps(known, ensure_ascii=False)
    return f"In each turn, write one action as <action>JSON</action>, an object with these fields: {fields}"

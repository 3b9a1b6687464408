"""The client of OpenEnv servers, against a server that speaks their protocol and has one session."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentrl.adapters.programs.openenv_server import Environment, RefusedError
from tests.waiting import aeventually

SCHEMA = {"action": {"properties": {"number": {"type": "integer"}, "metadata": {}}, "required": ["number"]}}


class Guessing:
    """The number to guess is the seed modulo 5."""

    def __init__(self) -> None:
        self.sessions = 0
        self.refused = asyncio.Event()

    async def schema(self, request: Request) -> JSONResponse:
        return JSONResponse(SCHEMA)

    async def session(self, socket: WebSocket) -> None:
        await socket.accept()
        if self.sessions:
            await socket.send_json({"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}})
            await socket.close()
            self.refused.set()
            return
        self.sessions += 1
        number = 0
        try:
            while True:
                message = json.loads(await socket.receive_text())
                data: dict[str, Any] = message["data"]
                if message["type"] == "reset" and data["seed"] < 0:
                    await socket.send_json({"type": "error", "data": {"message": "no such seed", "code": "NO_SEED"}})
                elif message["type"] == "reset":
                    number = data["seed"] % 5
                    await _observe(socket, "guess", 0.0, done=False)
                elif isinstance(data.get("number"), int):
                    right = data["number"] == number
                    await _observe(socket, "right" if right else "wrong", 1.0 if right else -0.25, done=right)
                else:
                    wrong = {"message": "number must be an integer", "code": "VALIDATION_ERROR"}
                    await socket.send_json({"type": "error", "data": wrong})
        except WebSocketDisconnect:
            pass
        finally:
            self.sessions -= 1


async def _observe(socket: WebSocket, hint: str, reward: float, *, done: bool) -> None:
    data = {"observation": {"hint": hint}, "reward": reward, "done": done}
    await socket.send_json({"type": "observation", "data": data})


@pytest.fixture
async def server() -> AsyncIterator[tuple[Guessing, str]]:
    guessing = Guessing()
    app = Starlette(routes=[Route("/schema", guessing.schema), WebSocketRoute("/ws", guessing.session)])
    listener = socket.create_server(("127.0.0.1", 0))
    served = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="websockets-sansio", lifespan="off"))
    running = asyncio.create_task(served.serve(sockets=[listener]))
    yield guessing, f"http://127.0.0.1:{listener.getsockname()[1]}"
    served.should_exit = True
    await running


async def test_an_episode_has_a_session_of_its_own_and_gives_it_back(server: tuple[Guessing, str]) -> None:
    guessing, url = server
    environment = Environment(url, {}, 4, 1)
    described = await asyncio.to_thread(environment.describe)
    assert described["system"].endswith('{"number": {"type": "integer"}}')
    rows = await environment.rows()
    assert [(row["query"], row["seed"], row["split"]) for row in rows] == [("guess", n, "train") for n in range(4)]
    first = await environment.begin(rows[3])
    waiting = asyncio.create_task(environment.begin(rows[1]))
    await guessing.refused.wait()
    said = [
        "hm",
        '<action>{"number": "x"}</action>',
        '<action>{"number": 2}</action>',
        '<action>{"number": 3}</action>',
    ]
    answers = [await first.answer(text) for text in said]
    assert [next(iter(answer.values())) for answer in answers[1:]] == ["number must be an integer", "wrong", True]
    assert await first.result() == {
        "value": 0.75,
        "parts": {"reward": 0.75, "steps": 2, "no_action": 2, "terminated": 1},
    }
    second = await waiting
    assert (await second.result())["value"] == 0.0


async def test_an_episode_that_cannot_begin_gives_its_session_back(server: tuple[Guessing, str]) -> None:
    guessing, url = server
    environment = Environment(url, {}, 1, 0)
    with pytest.raises(RefusedError, match="no such seed"):
        await environment.begin({"seed": -1})
    await aeventually(lambda: guessing.sessions == 0, what="the session is free")

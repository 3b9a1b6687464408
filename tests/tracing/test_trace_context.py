"""Trace ids are the same in every process, and ids from outside count only if they are well-formed."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from agentrl.http.http_client import HttpClient
from agentrl.http.token_server import Application, Route, listening
from agentrl.tracing import trace_context
from agentrl.tracing.trace_context import TraceContext

OPERATION = "0af7651916cd43dd8448eb211c80319c"


def test_the_trace_of_an_operation_is_its_id() -> None:
    made = trace_context.of_operation(OPERATION)
    assert made == trace_context.of_operation(OPERATION)
    assert made.trace_id == OPERATION
    assert trace_context.of_operation("my-own-id").trace_id == trace_context.of_operation("my-own-id").trace_id
    assert trace_context.parse(made.header()) == made


def test_records_are_sampled_by_share_and_the_same_everywhere() -> None:
    made = [trace_context.of_record("run", f"r{number}", 0.25) for number in range(400)]
    assert 60 < sum(each.sampled for each in made) < 140
    assert made == [trace_context.of_record("run", f"r{number}", 0.25) for number in range(400)]
    assert len({each.trace_id for each in made}) == 400
    assert trace_context.of_record("other", "r1").trace_id != trace_context.of_record("run", "r1").trace_id


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n",
    ],
)
def test_malformed_traceparents_are_ignored(header: str) -> None:
    assert trace_context.parse(header) is None


def test_work_without_a_trace_belongs_to_that_of_the_process_until_it_is_taken_away() -> None:
    own = trace_context.of_operation(OPERATION)
    trace_context.set_of_process(own)
    try:
        assert trace_context.current() == own
        with trace_context.within(own.child()):
            assert trace_context.current() != own
    finally:
        trace_context.set_of_process(None)
    assert trace_context.current() is None


async def test_a_call_carries_the_trace_and_tasks_of_its_handler_keep_it() -> None:
    async def show(request: Request) -> Response:
        task = asyncio.create_task(_seen())
        return PlainTextResponse(await task)

    async def _seen() -> str:
        found = trace_context.current()
        return found.header() if found else ""

    async with listening(Application([Route("/", "GET", show)], lambda act: act)) as url:
        client = HttpClient(url, {})

        async def ask() -> str:
            async with client.ask("GET", "/") as reply:
                return (await reply.read()).decode()

        sent = TraceContext(OPERATION, "00f067aa0ba902b7", sampled=False)
        with trace_context.within(sent):
            assert await ask() == sent.header()
        assert await ask() == ""
        await client.close()
        async with httpx.AsyncClient() as foreign:
            assert (await foreign.get(url, headers={"traceparent": "nonsense"})).text == ""

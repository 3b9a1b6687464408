"""Other models over real HTTP: both dialects, failures of every kind, limits, and what is kept of each call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.other_models import OtherModel
from agentrl.other_models import service_health
from agentrl.other_models.client import ModelAwayError, ModelRefusedError, OtherModels
from agentrl.other_models.dialects import Question, openai_request
from agentrl.other_models.ledger import MemoryLedger
from agentrl.other_models.service_calls import ServiceCalls, ServiceFailedError
from tests.other_models.services import Asked, RawAnswer, Service, anthropic, openai
from tests.waiting import PATIENCE_S, aeventually

KEY = "sk-not-to-be-seen"


@pytest.fixture
async def services(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Service]]:
    monkeypatch.setattr(service_health, "FIRST_S", 0.05)
    made: list[Service] = []

    def make(says: Callable[[Asked], str | RawAnswer]) -> Service:
        made.append(Service(says))
        return made[-1]

    yield make
    for each in made:
        await each.close()


def entry(service: Service, **more: Any) -> OtherModel:
    return OtherModel.model_validate({"url": service.url, "model": "m", "timeout_s": 5.0, **more})


def asking(text: str = "is it?", salt: str = "") -> Question:
    return Question([{"role": "system", "content": "be brief"}, {"role": "user", "content": text}], salt=salt)


class Asking:
    """A client with one model, `judge`."""

    def __init__(self, *entries: OtherModel) -> None:
        self.ledger = MemoryLedger()
        self.models = OtherModels({"judge": entries}, self.ledger)

    async def ask(self, text: str = "is it?", *, salt: str = "", patience_s: float = PATIENCE_S) -> str:
        question = asking(text, salt)
        return (await self.models.ask("judge", question, purpose="test", record="r1", patience_s=patience_s)).text


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_both_dialects_give_text_tokens_and_cost_and_keep_the_key_for_themselves(
    kind: str, services: Callable[..., Service], tmp_path: Path
) -> None:
    write = {"openai": openai, "anthropic": anthropic}[kind]
    service = await services(lambda asked: RawAnswer(write("yes", (1_000, 200)))).start()
    (tmp_path / "key").write_text(KEY + "\n")
    of = Asking(entry(service, kind=kind, key=f"file:{tmp_path}/key", price_in=2.0, price_out=10.0, more={"seed": 4}))
    assert await of.ask() == "yes"
    (asked,) = service.asked
    assert asked.body["seed"] == 4
    if kind == "openai":
        assert (asked.path, asked.headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
        assert [message["role"] for message in asked.body["messages"]] == ["system", "user"]
    else:
        assert (asked.path, asked.headers["x-api-key"]) == ("/v1/messages", KEY)
        assert asked.body["system"] == "be brief"
        assert [message["role"] for message in asked.body["messages"]] == ["user"]
    (call,) = of.ledger.calls
    assert (call.record, call.outcome, call.tokens_in, call.tokens_out) == ("r1", "ok", 1_000, 200)
    assert call.cost == pytest.approx(0.004)
    assert KEY not in repr(call)
    await of.models.close()


@pytest.mark.parametrize(
    "wrong",
    [
        RawAnswer(b"<html>busy</html>"),
        RawAnswer(b'{"choices": []}'),
        RawAnswer(b'{"choices": [{"message": {"content": null}}]}'),
        RawAnswer(openai("yes"), cut=9),
        RawAnswer(b"it broke", status=500),
        RawAnswer(f"the key {KEY} is not known".encode(), status=401),
    ],
    ids=["no JSON", "no choice", "no text", "cut off", "500", "401"],
)
async def test_what_is_no_answer_is_tried_again_and_shows_no_key(
    wrong: RawAnswer, services: Callable[..., Service], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_text(KEY)
    service = services(lambda asked: wrong if len(service.asked) == 1 else "yes")
    await service.start()
    of = Asking(entry(service, key=f"file:{tmp_path}/key"))
    assert await of.ask() == "yes"
    assert of.models.counts["failures"] == 1
    assert of.ledger.calls[0].tries == 2
    await of.models.close()
    away = Asking(entry(services(lambda asked: wrong), key=f"file:{tmp_path}/key"))
    with pytest.raises(ModelAwayError) as raised:
        await away.ask(patience_s=0.3)
    assert away.ledger.calls[0].error
    assert KEY not in f"{raised.value} {away.ledger.calls} {caplog.text}"
    await away.models.close()


@pytest.mark.parametrize("counted", [None, 5.0, -3, 10**15], ids=str)
async def test_what_a_service_counts_oddly_is_no_reason_to_ask_again(
    counted: float | None, services: Callable[..., Service]
) -> None:
    body = json.loads(openai("yes")) | {"usage": {"prompt_tokens": 10, "completion_tokens": counted}}
    of = Asking(entry(await services(lambda asked: RawAnswer(json.dumps(body).encode())).start()))
    assert await of.ask() == "yes"
    (call,) = of.ledger.calls
    assert (call.tries, call.tokens_in) == (1, 10)
    assert 0 <= call.tokens_out <= 10**8
    await of.models.close()


async def test_the_next_service_answers_until_the_first_one_is_back(services: Callable[..., Service]) -> None:
    first, second = services(lambda asked: "first"), await services(lambda asked: "second").start()
    of = Asking(entry(first), entry(second))
    await first.start()
    assert await of.ask("a") == "first"
    await first.stop()
    assert await of.ask("b") == "second"
    asked = len(second.asked)
    assert await of.ask("c") == "second", "the first one rests"
    assert len(second.asked) == asked + 1
    await first.start()
    number = iter(range(10_000))

    async def back() -> bool:
        return await of.ask(f"d {next(number)}") == "first"

    await aeventually(back, what="the first service is asked again")
    await of.models.close()


async def test_a_service_is_left_alone_as_long_as_it_asks_for(services: Callable[..., Service]) -> None:
    busy = RawAnswer(b"slow down", status=429, headers="Retry-After: 1\r\n")
    service = services(lambda asked: busy if len(service.asked) == 1 else "yes")
    await service.start()
    of = Asking(entry(service))
    assert await asyncio.gather(of.ask("a"), of.ask("b")) == ["yes", "yes"]
    limited, *later = service.asked
    assert min(asked.at for asked in later if asked.text == limited.text) - limited.at >= 1.0
    await of.models.close()


async def test_a_refused_question_is_not_repeated(services: Callable[..., Service]) -> None:
    service = await services(lambda asked: RawAnswer(b"too long", status=400)).start()
    of = Asking(entry(service))
    with pytest.raises(ModelRefusedError, match=r"refuses the question: m at .*: status 400: too long"):
        await of.ask()
    assert len(service.asked) == 1
    await of.models.close()


async def test_a_question_that_waits_is_answered_by_what_is_configured_meanwhile(
    services: Callable[..., Service],
) -> None:
    gone, there = services(lambda asked: "never"), await services(lambda asked: "yes").start()
    of = Asking(entry(gone))
    waiting = asyncio.create_task(of.ask())
    await aeventually(lambda: of.models.counts["failures"] > 0, what="the first try fails")
    of.models.configure({"judge": (entry(there),)})
    assert await waiting == "yes"
    await of.models.close()


async def test_the_same_question_is_asked_once(services: Callable[..., Service]) -> None:
    service = await services(lambda asked: f"answer {len(service.asked)}").start()
    of = Asking(entry(service))
    assert await asyncio.gather(of.ask(), of.ask()) == ["answer 1", "answer 1"]
    assert await of.ask() == "answer 1"
    assert await of.ask(salt="vote 1") == "answer 2"
    of.models.configure({"judge": (entry(service, temperature=1.0),)})
    assert await of.ask() == "answer 3", "a model that is configured otherwise is another one"
    assert [call.outcome for call in of.ledger.calls] == ["ok", "kept", "ok", "ok"]
    await of.models.close()


async def test_limits_a_minute_leave_the_rest_to_the_next_service(services: Callable[..., Service]) -> None:
    first, second = await services(lambda asked: "first").start(), await services(lambda asked: "second").start()
    of = Asking(entry(first, per_minute=2), entry(second))
    found = [await of.ask(str(number)) for number in range(6)]
    # A minute may begin in the middle.
    assert found[:2] == ["first", "first"]
    assert found.count("second") >= 2
    await of.models.close()


def test_pauses_grow_are_limited_and_end_with_a_success() -> None:
    health = service_health.Health()
    rests = []
    for _ in range(10):
        health.not_before = 0.0
        health.failed(now=0.0, chance=0.5)
        rests.append(health.not_before)
    assert rests[:3] == [0.5, 1.0, 2.0]
    assert max(rests) == service_health.MOST_S
    health.failed(now=0.0, chance=0.5, asked_for=200.0)
    assert health.not_before == 200.0
    health.worked()
    assert (health.failures, health.not_before) == (0, 0.0)


async def test_a_key_is_in_no_sentence_whatever_is_wrong_with_it(services: Callable[..., Service]) -> None:
    behind_spaces = RawAnswer(b" " * 580 + f"unknown: {KEY}".encode(), status=401)
    service = await services(lambda asked: behind_spaces).start()
    calls = ServiceCalls()
    for key in (KEY, f"{KEY}\n"):
        with pytest.raises(ServiceFailedError) as failed:
            await calls.answer(openai_request(service.url, {"messages": []}, key), within_s=PATIENCE_S)
        assert KEY[:8] not in str(failed.value)
    assert "line break" in str(failed.value)
    await calls.close()


class LedgerElsewhere(MemoryLedger):
    """Asks a database first."""

    async def admitted(self, service: str, minute: int, most: int) -> bool:
        await asyncio.sleep(0)
        return await super().admitted(service, minute, most)


async def test_no_more_calls_are_made_at_once_while_a_limit_a_minute_is_looked_up(
    services: Callable[..., Service],
) -> None:
    at_work: list[int] = []

    def says(asked: Asked) -> str:
        at_work.extend(of.models._at_work.values())
        return "yes"

    service = await services(says).start()
    limited = entry(service, at_once=2, per_minute=100)
    of = Asking(limited)
    of.models._ledger = LedgerElsewhere()
    assert await asyncio.gather(*(of.ask(salt=f"{number}") for number in range(6))) == ["yes"] * 6
    assert max(at_work) == 2
    assert of.models._at_work[limited.identity] == 0
    await of.models.close()

"""How a question is written for a service behind an address, and how its answer is read. Pure.

Invariants: an answer that breaks the API raises RubbishError and is never used as text; equal questions give equal
bytes, so their hash identifies them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from agentrl.config.other_models import OtherModel

Dialect = Literal["openai", "anthropic", "completions"]
"""Messages in the form of OpenAI or Anthropic, or a text that OpenAI's older API continues."""
ANTHROPIC_VERSION = "2023-06-01"


class RubbishError(Exception):
    """The answer cannot be read."""


@dataclass(frozen=True, slots=True)
class Question:
    """What another model is asked."""

    messages: Sequence[Mapping[str, str]]
    """Each with `role` (system, user, assistant) and `content`."""
    temperature: float | None = None
    """None: as the service is configured."""
    max_tokens: int | None = None
    salt: str = ""
    """Makes otherwise equal questions different: the votes of a judge, the turns of an episode."""

    def key(self, name: str, services: Sequence[OtherModel]) -> str:
        """The hash by which an answer is found again. It includes the configuration of the model."""
        of = [[service.kind, service.url, service.model, service.temperature, service.more] for service in services]
        asked = [name, of, list(map(dict, self.messages)), self.temperature, self.max_tokens, self.salt]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    """May be empty."""
    tokens_in: int = 0
    tokens_out: int = 0
    finish: Literal["", "stop", "length"] = ""
    """`length` if it was cut off."""


@dataclass(frozen=True, slots=True)
class Request:
    dialect: Dialect
    url: str
    body: bytes
    headers: Mapping[str, str] = field(repr=False)
    """With the key."""
    key: str = field(repr=False, default="")


def openai_request(url: str, body: Mapping[str, Any], key: str) -> Request:
    """For chat completions if the body has messages, otherwise for completions of a text."""
    dialect: Dialect = "openai" if "messages" in body else "completions"
    path = "/chat/completions" if dialect == "openai" else "/completions"
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    return Request(dialect, url.rstrip("/") + path, json.dumps(body).encode(), headers, key)


def request_of(service: OtherModel, question: Question, key: str) -> Request:
    body: dict[str, Any] = {
        "model": service.model,
        "max_tokens": question.max_tokens or service.max_tokens,
        "temperature": service.temperature if question.temperature is None else question.temperature,
    }
    messages = [dict(message) for message in question.messages]
    if service.kind == "openai":
        return openai_request(service.url, body | {"messages": messages} | service.more, key)
    system = [message["content"] for message in messages if message["role"] == "system"]
    body["messages"] = [message for message in messages if message["role"] != "system"]
    if system:
        body["system"] = "\n\n".join(system)
    headers = {"Content-Type": "application/json", "anthropic-version": ANTHROPIC_VERSION}
    headers |= {"x-api-key": key} if key else {}
    url = service.url.rstrip("/") + "/messages"
    return Request("anthropic", url, json.dumps(body | service.more).encode(), headers, key)


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


_Count: TypeAlias = int | float | None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    input_tokens: _Count = 0
    output_tokens: _Count = 0


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class _Text(msgspec.Struct):
    text: str
    finish_reason: str | None = None


class _Texts(msgspec.Struct):
    choices: list[_Text]
    usage: _Usage | None = None


class _Block(msgspec.Struct):
    type: str
    text: str = ""


class _Reply(msgspec.Struct):
    content: list[_Block]
    stop_reason: str | None = None
    usage: _Usage | None = None


def answer_of(dialect: Dialect, body: bytes) -> Answer:
    """Raises RubbishError."""
    try:
        match dialect:
            case "anthropic":
                return _of_anthropic(msgspec.json.decode(body, type=_Reply))
            case "completions":
                texts = msgspec.json.decode(body, type=_Texts)
                return _answer(texts.choices[0].text, texts.choices[0].finish_reason, texts.usage)
        found = msgspec.json.decode(body, type=_Completion)
        return _answer(found.choices[0].message.content or "", found.choices[0].finish_reason, found.usage)
    except (msgspec.MsgspecError, UnicodeDecodeError, IndexError) as wrong:
        raise RubbishError(f"its answer cannot be read: {wrong}") from wrong


def _answer(text: str, finish_reason: str | None, usage: _Usage | None) -> Answer:
    counted = usage or _Usage()
    finish: Literal["", "stop", "length"] = ""
    if finish_reason in ("stop", "length"):
        finish = "stop" if finish_reason == "stop" else "length"
    return Answer(text, _count(counted.prompt_tokens), _count(counted.completion_tokens), finish)


def _of_anthropic(found: _Reply) -> Answer:
    text, usage = "".join(block.text for block in found.content if block.type == "text"), found.usage or _Usage()
    finish: Literal["stop", "length"] = "length" if found.stop_reason == "max_tokens" else "stop"
    return Answer(text, _count(usage.input_tokens), _count(usage.output_tokens), finish)


def _count(value: _Count) -> int:
    """A count from a service may have any value."""
    return int(min(max(value or 0, 0), 100_000_000))

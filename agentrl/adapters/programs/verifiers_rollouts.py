"""Environments that `load_environment` of the package verifiers returns: their rollouts of messages and their rubrics.

Invariants:
- The environment runs its own rollout. Its questions to a model are answered by the player of the episode.
- Earlier messages never change, because a record is one conversation. An environment that rewrites them is refused.
- The rubric computes the score from the state of the rollout. A rollout that failed for infrastructure has no score.
- The first message describes the tools; what the model writes in `<tool_call>` is a call.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import verifiers

try:
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage, ToolCall
except ImportError as other:
    release = getattr(verifiers, "__version__", "")
    raise ImportError(f"verifiers {release} has another interface than this needs; install verifiers<0.2") from other

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
MOST_TURNS = 32
_TOOLS = """You may call these functions:
{functions}

Write a call as <tool_call>{{"name": NAME, "arguments": {{...}}}}</tool_call>. Their results are the next message."""


class Environment:
    def __init__(self, name: str, arguments: dict[str, Any], rows: int, held_out: int) -> None:
        self._rollouts = verifiers.load_environment(name, **arguments)
        if self._rollouts.requires_group_rollouts:
            raise ValueError("its rubric compares the rollouts of a group, and a score is of one episode")
        self._rows, self._held_out = rows, held_out

    def describe(self) -> dict[str, Any]:
        limit = int(getattr(self._rollouts, "max_turns", -1))
        return {"max_turns": min(limit, MOST_TURNS) if limit > 0 else MOST_TURNS, "answer_schema": ""}

    def rows(self) -> list[dict[str, Any]]:
        train = self._of("train", self._rollouts.build_dataset(), self._rows)
        held_out = self._of("eval", self._rollouts.build_eval_dataset(), self._held_out)
        known = {json.dumps(row["query"]) for row in train}
        return [*train, *(row for row in held_out if json.dumps(row["query"]) not in known)]

    def _of(self, split: str, dataset: Any, count: int) -> list[dict[str, Any]]:
        items = [] if dataset is None else [dict(item) for item in dataset.select(range(min(count, len(dataset))))]
        return [
            {
                "id": f"{split}-{number}",
                "query": self._opening(item),
                "answer": str(item.get("answer") or ""),
                "split": split,
                "item": item,
            }
            for number, item in enumerate(items)
        ]

    def _opening(self, item: dict[str, Any]) -> list[dict[str, str]]:
        """The messages with which the model begins."""
        prompt = item["prompt"]
        if not isinstance(prompt, list):
            raise ValueError("its tasks are texts to be continued; only conversations are played")
        messages = [{"role": str(one["role"]), "content": _text(one["content"])} for one in prompt]
        tools = self._tools(item)
        if tools:
            functions = [tool.model_dump(include={"name", "description", "parameters"}) for tool in tools]
            told = _TOOLS.format(functions="\n".join(map(json.dumps, functions)))
            if messages[0]["role"] == "system":
                messages[0]["content"] += f"\n\n{told}"
            else:
                messages.insert(0, {"role": "system", "content": told})
        return messages

    def _tools(self, item: dict[str, Any]) -> list[Any]:
        info = item.get("info")
        info = json.loads(info) if isinstance(info, str) and info else info
        own = info.get("tool_defs") if isinstance(info, dict) else None
        return self._rollouts._normalize_tool_defs(own or self._rollouts.tool_defs or []) or []

    async def begin(self, row: dict[str, Any]) -> Rollout:
        rollout = Rollout(self._rollouts, row["item"], tools=bool(self._tools(row["item"])))
        await rollout.begin()
        return rollout


class Rollout:
    """One episode."""

    def __init__(self, rollouts: Any, item: dict[str, Any], *, tools: bool) -> None:
        self._rollouts, self._item, self._tools = rollouts, item, tools
        self._model = _Model()
        self._said: list[dict[str, str]] = []
        self._rollout: asyncio.Task[Any] | None = None
        self._result: dict[str, Any] | None = None
        self.done = False

    async def begin(self) -> None:
        self._rollout = asyncio.create_task(self._rollouts.rollout(self._item, self._model, "agentrl", {}))
        first = await self._asked()
        if first is None:
            raise self._rollout.result()["error"] or ValueError("its rollout ended before the model was asked")
        if _plain(first) != _plain(self._item["prompt"]):
            await self.close()
            raise ValueError("its rollout does not begin with the messages of its task")
        self._said = _plain(first)

    async def answer(self, text: str) -> dict[str, Any]:
        calls = [_call(number, written) for number, written in enumerate(_CALL.findall(text))] if self._tools else []
        self._model.answer(text, calls)
        messages = await self._asked()
        if messages is None:
            self.done = True
            return {"done": True}
        now, before = _plain(messages), [*self._said, {"role": "assistant", "content": text}]
        if now[: len(before)] != before:
            raise ValueError("it changes what was said before, which a record cannot have")
        self._said = now
        return {"message": "\n\n".join(one["content"] for one in now[len(before) :])}

    async def result(self) -> dict[str, Any]:
        if self._result is None:
            assert self._rollout is not None
            # If the episode ended at a limit, the rollout ends as if the context were full.
            self._model.end()
            state = await self._rollout
            if isinstance(state["error"], verifiers.InfraError):
                raise state["error"]
            await self._rollouts.rubric.score_rollout(state)
            await self._rollouts.rubric.cleanup(state)
            parts = {name: float(value) for name, value in (state["metrics"] or {}).items()}
            self._result = {"value": float(state["reward"]), "parts": parts}
        return self._result

    async def close(self) -> None:
        if self._rollout is not None and not self._rollout.done():
            self._model.end()
            await asyncio.wait([self._rollout])

    async def _asked(self) -> list[Any] | None:
        """The messages that the environment sends to the model next; None if the rollout has ended."""
        assert self._rollout is not None
        question = asyncio.create_task(self._model.questions.get())
        await asyncio.wait([question, self._rollout], return_when=asyncio.FIRST_COMPLETED)
        if question.done():
            return question.result()
        question.cancel()
        self._rollout.result()  # Raises the error of the rollout, if it had one.
        return None


class _Model(Client):  # type: ignore[misc]
    """A client whose answers are handed in from outside: the turns of the episode."""

    def __init__(self) -> None:
        super().__init__({})  # There is no client of a service behind it.
        self.questions: asyncio.Queue[list[Any]] = asyncio.Queue()
        self._answers: asyncio.Queue[ResponseMessage | None] = asyncio.Queue()

    def answer(self, text: str, calls: list[ToolCall]) -> None:
        reason = "tool_calls" if calls else "stop"
        told = ResponseMessage(content=text, tool_calls=calls or None, finish_reason=reason, is_truncated=False)
        self._answers.put_nowait(told)

    def end(self) -> None:
        self._answers.put_nowait(None)

    async def get_response(self, prompt: Any, model: str, *_: Any, **__: Any) -> Response:
        self.questions.put_nowait(list(prompt))
        message = await self._answers.get()
        if message is None:
            raise verifiers.OverlongPromptError("the episode ended")
        return Response(id="answer", created=int(time.time()), model=model, message=message)

    def setup_client(self, config: Any) -> Any:
        return config

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> Any:
        return messages, {}

    async def get_native_response(self, prompt: Any, model: str, *_: Any, **__: Any) -> Any:
        return await self.get_response(prompt, model)

    async def raise_from_native_response(self, response: Any) -> None:
        pass

    async def from_native_response(self, response: Any) -> Response:
        return response

    async def close(self) -> None:
        pass


def _call(number: int, written: str) -> ToolCall:
    """A malformed call goes to the environment unchanged, and the environment tells the model what is wrong."""
    try:
        call = json.loads(written)
        name, arguments = str(call["name"]), json.dumps(call.get("arguments", {}))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        name, arguments = "", written.strip()
    return ToolCall(id=f"call-{number}", name=name, arguments=arguments)


def _plain(messages: Any) -> list[dict[str, str]]:
    found = [one if isinstance(one, dict) else one.model_dump() for one in messages]
    return [{"role": str(one["role"]), "content": _text(one.get("content"))} for one in found]


def _text(content: Any) -> str:
    """The text of a message. Raises ValueError if it has parts other than text."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part if isinstance(part, dict) else part.model_dump() for part in content]
    if any(part.get("type") != "text" for part in parts):
        raise ValueError("its messages have more than text; only text is played")
    return "".join(str(part["text"]) for part in parts)

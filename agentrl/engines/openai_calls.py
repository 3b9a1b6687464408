"""Calls a model behind an OpenAI-compatible address for an episode.

Invariants:
- A failure is an EngineError, so episodes wait, use another engine or end as they do with engines of the run.
- A service with too many calls (status 429) has done nothing: the call is repeated after the delay that the service
  asks for, while there is time for the call.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Mapping
from typing import Any

from agentrl.engines.interface import (
    CallRefusedError,
    EngineBusyError,
    EngineError,
    EngineGoneError,
    EngineRubbishError,
)
from agentrl.other_models.dialects import Answer, openai_request
from agentrl.other_models.service_calls import ServiceCalls, ServiceFailedError
from agentrl.other_models.service_health import Health

_REFUSALS = (400, 401, 403, 404, 413, 414, 422)
"""Statuses that are not retried: a wrong key or model name will not become right while an episode waits."""
LONGEST_S = 3600.0
_WHO = re.compile(r"//[^/@]*@")
"""A name and a password in an address."""


class OpenAiCalls:
    """Calls to one address."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key
        self._calls = ServiceCalls()

    async def close(self) -> None:
        await self._calls.close()

    async def answer(self, body: Mapping[str, Any], *, within_s: float = LONGEST_S) -> Answer:
        """The answer to a request whose body has `messages` or a `prompt`. Raises EngineError."""
        request = openai_request(self._url, body, self._key)
        health, ends_at = Health(), time.monotonic() + within_s
        while True:
            try:
                return await self._calls.answer(request, within_s=ends_at - time.monotonic())
            except ServiceFailedError as failed:
                now = time.monotonic()
                health.failed(now, random.random(), failed.asked_for)
                if failed.verdict != "busy" or health.not_before >= ends_at:
                    raise _as_of_an_engine(_WHO.sub("//", request.url), failed) from failed
            await asyncio.sleep(health.not_before - now)


def _as_of_an_engine(url: str, failed: ServiceFailedError) -> EngineError:
    if failed.status in _REFUSALS:
        return CallRefusedError(f"{url} refuses the call: {failed}.")
    if failed.verdict == "busy":
        return EngineBusyError(f"{url} is busy: {failed}.")
    if not failed.status:
        return EngineGoneError(f"{url} does not answer: {failed}.")
    return EngineRubbishError(f"{url}: {failed}.") if failed.status == 200 else EngineError(f"{url} fails: {failed}.")

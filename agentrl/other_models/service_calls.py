"""Calls services behind OpenAI- and Anthropic-compatible addresses: one call each, without repeating it.

It is used by judges and other helpers, by `try` and `eval` of a model behind an address, and by engines of the kind
`openai`.

Invariants:
- An answer is bounded and comes within its time; no redirect is followed.
- A failure has one sentence without the key, although services repeat keys in their error messages.
- A failure says whether the service is busy, away, or refuses this question.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import cached_property

import httpx

from agentrl.other_models import dialects, service_health
from agentrl.other_models.dialects import Answer, Request, RubbishError
from agentrl.other_models.service_health import Verdict

MOST_ANSWER_BYTES = 8 << 20
CONNECT_WITHIN_S = 10.0
_MOST_SHOWN = 200


class ServiceFailedError(Exception):
    """A call failed. `status` is the HTTP status of the answer, 0 without an answer."""

    def __init__(self, why: str, verdict: Verdict = "away", *, status: int = 0, asked_for: float | None = None) -> None:
        """`asked_for`: the seconds that the service asks callers to wait."""
        super().__init__(why)
        self.verdict, self.status, self.asked_for = verdict, status, asked_for


class ServiceCalls:
    """Makes calls, and holds the connections to any number of services."""

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        # Created late: it reads all certificates, and most processes never ask a service.
        return httpx.AsyncClient(follow_redirects=False)

    async def close(self) -> None:
        if "_http" in vars(self):
            await self._http.aclose()

    async def answer(self, request: Request, *, within_s: float) -> Answer:
        """Raises ServiceFailedError."""
        status = 0
        try:
            async with asyncio.timeout(within_s):
                status, body = await self._sent(request, within_s)
            return dialects.answer_of(request.dialect, body)
        except TimeoutError:
            raise ServiceFailedError(f"no answer within {within_s:g} s") from None
        except RubbishError as wrong:
            raise ServiceFailedError(_without(request.key, str(wrong)), status=status) from None
        except httpx.InvalidURL:
            raise ServiceFailedError("its address is invalid") from None
        except httpx.LocalProtocolError:
            # The text of this error may contain the key in another encoding.
            raise ServiceFailedError("its key has a line break, or another character that no header may have") from None
        except (httpx.HTTPError, UnicodeError) as broken:
            raise ServiceFailedError(_without(request.key, str(broken)) or type(broken).__name__) from None

    async def _sent(self, request: Request, within_s: float) -> tuple[int, bytes]:
        timeout = httpx.Timeout(within_s, connect=min(CONNECT_WITHIN_S, within_s))
        async with self._http.stream(
            "POST", request.url, content=request.body, headers=dict(request.headers), timeout=timeout
        ) as reply:
            body = bytearray()
            async for piece in reply.aiter_bytes():
                body += piece
                if len(body) > MOST_ANSWER_BYTES:
                    raise ServiceFailedError(f"its answer has more than {MOST_ANSWER_BYTES >> 20} MiB")
            if reply.status_code == 200:
                return 200, bytes(body)
            raise ServiceFailedError(
                f"status {reply.status_code}{_shortly(bytes(body), request.key)}",
                service_health.of_status(reply.status_code),
                status=reply.status_code,
                asked_for=service_health.asked_for_s(reply.headers.get("retry-after", ""), datetime.now(UTC)),
            )


def _shortly(body: bytes, key: str) -> str:
    """The beginning of an error's text."""
    # Remove the key before the text is cut: half a key would not be recognised.
    text = _without(key, " ".join(body.decode(errors="replace").split()))
    return f": {text[:_MOST_SHOWN]}" if text else ""


def _without(key: str, text: str) -> str:
    return text.replace(key, "…") if key else text

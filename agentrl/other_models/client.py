"""Asks other models: tries the services of a model in their order, repeatedly, until one answers or the time is up.

Invariants:
- A service is not asked while it rests after a failure, nor beyond its limits; the next one is asked meanwhile.
- Equal questions that are asked at the same time are sent once, and all callers get the same answer.
- Waiting ends after `patience_s` without a decision: the caller may ask again later.
- A new configuration applies from the next try on, also to questions that already wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Mapping

from agentrl.config.other_models import OtherModel
from agentrl.config.secrets import resolve_secret
from agentrl.errors import AgentrlError, ConfigError, UnknownNameError
from agentrl.other_models import dialects
from agentrl.other_models.dialects import Answer, Question
from agentrl.other_models.ledger import LONGEST_KEPT, Ledger, OtherModelCall
from agentrl.other_models.service_calls import ServiceCalls, ServiceFailedError
from agentrl.other_models.service_health import Health

log = logging.getLogger("other_models")
LOOK_EVERY_S = 1.0
"""How long a question waits at a time before it looks whether the configuration has changed."""
MINUTE_S = 60.0
CHECK = "Answer with the one word yes."
"""The question that tests whether a model that was away answers again."""
Services = Mapping[str, tuple[OtherModel, ...]]


class ModelAwayError(AgentrlError):
    """No service of a model answered in time. It may later."""


class ModelRefusedError(AgentrlError):
    """Every service of a model refuses this question."""


class OtherModels:
    """All models of a run besides its own."""

    def __init__(self, services: Services, ledger: Ledger) -> None:
        self._services = dict(services)
        self._ledger = ledger
        self._health: dict[str, Health] = {}
        self._works: set[str] = set()
        """Services that the ledger lists as working for this process. What an earlier process noted may be out of
        date."""
        self._at_work: Counter[str] = Counter()
        self._under_way: dict[str, asyncio.Task[Answer]] = {}
        self._calls = ServiceCalls()
        self.counts: Counter[str] = Counter()
        """Since this process began: calls, failures of services, answers found in the ledger, and unanswered
        questions."""
        self.cost = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._services)

    @property
    def waiting(self) -> int:
        """Questions that have no answer yet."""
        return len(self._under_way)

    def configure(self, services: Services) -> None:
        """Take a new configuration. Services that failed are tried again at once, because the change may have repaired
        them."""
        if dict(services) != self._services:
            self._services = dict(services)
            self._health.clear()

    async def ask(
        self,
        name: str,
        question: Question,
        *,
        purpose: str = "",
        record: str = "",
        patience_s: float,
    ) -> Answer:
        """Raises ModelAwayError, ModelRefusedError, or UnknownNameError."""
        key = question.key(name, self._of(name))
        call = OtherModelCall(id=uuid.uuid4().hex, record=record, purpose=purpose, model=name, request=key)
        if (found := await self._ledger.find(key)) is not None:
            self.counts["kept"] += 1
            call.outcome, call.service = "kept", "an earlier answer"
            await self._ledger.keep(call)
            return Answer(found)
        # The first caller may give up while others wait, so the question has a task of its own.
        if (asked := self._under_way.get(key)) is None:
            asked = asyncio.create_task(self._ask(call, question, patience_s), name=f"ask {name}")
            self._under_way[key] = asked
            asked.add_done_callback(lambda done: self._over(key, done))
        return await asyncio.shield(asked)

    async def answers(self, name: str, *, patience_s: float) -> bool:
        """Whether a service of the model answers a very cheap question within this time.

        Returns True for a model that the run file no longer names, because nothing needs to wait for it.
        """
        question = Question([{"role": "user", "content": CHECK}], salt=uuid.uuid4().hex)
        try:
            await self.ask(name, question, purpose="check", patience_s=patience_s)
        except UnknownNameError:
            return True
        except AgentrlError:
            return False
        return True

    async def close(self) -> None:
        for asked in list(self._under_way.values()):
            asked.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        await self._calls.close()

    # ---- one question ----

    def _over(self, key: str, done: asyncio.Task[Answer]) -> None:
        self._under_way.pop(key, None)
        if not done.cancelled():
            done.exception()  # Marks the exception as retrieved: there may be no caller left to do it.

    def _of(self, name: str) -> tuple[OtherModel, ...]:
        try:
            return self._services[name]
        except KeyError:
            known = ", ".join(self._services) or "none"
            raise UnknownNameError(
                f"There is no other model {name!r}.", hint=f"`models` of the run file names: {known}."
            ) from None

    async def _ask(self, call: OtherModelCall, question: Question, patience_s: float) -> Answer:
        began = time.monotonic()
        try:
            async with asyncio.timeout(patience_s):
                service, answer = await self._until_answered(call, question)
        except TimeoutError:
            call.outcome = "away"
            error = f"The model {call.model} did not answer within {patience_s:g} s: {call.error or 'its limits'}."
            raise ModelAwayError(error) from None
        except ModelRefusedError as refused:
            call.outcome, call.error = "refused", refused.message
            raise
        else:
            call.outcome, call.error, call.service = "ok", "", service.name
            call.tokens_in, call.tokens_out = answer.tokens_in, answer.tokens_out
            call.cost = (answer.tokens_in * service.price_in + answer.tokens_out * service.price_out) / 1e6
            call.answer = answer.text if len(answer.text) <= LONGEST_KEPT else ""
            if not call.answer:
                call.request = ""
            self.cost += call.cost
            return answer
        finally:
            call.latency_s = round(time.monotonic() - began, 4)
            self.counts["calls"] += 1
            self.counts["unanswered"] += call.outcome != "ok"
            await self._ledger.keep(call)

    async def _until_answered(self, call: OtherModelCall, question: Question) -> tuple[OtherModel, Answer]:
        while True:
            services = self._of(call.model)
            refused = []
            for service in services:
                if not await self._take_turn(service):
                    continue
                try:
                    return service, await self._try(call, service, question)
                except ServiceFailedError as failed:
                    call.error = f"{service.name}: {failed}"
                    self.counts["failures"] += 1
                    if failed.verdict == "refused":
                        refused.append(call.error)
            if len(refused) == len(services):
                raise ModelRefusedError(f"The model {call.model} refuses the question: {refused[-1]}.")
            await asyncio.sleep(self._pause_s(services))

    async def _take_turn(self, service: OtherModel) -> bool:
        """Whether the service may be asked now. If so, it counts as busy until `_try` ends."""
        health = self._health_of(service)
        if self._at_work[service.identity] >= service.at_once or health.not_before > time.monotonic():
            return False
        # Counted before the limit per minute is read, because other questions run during that read.
        self._at_work[service.identity] += 1
        admitted = False
        try:
            admitted = await self._in_this_minute(service, health)
        finally:
            self._at_work[service.identity] -= not admitted
        return admitted

    async def _in_this_minute(self, service: OtherModel, health: Health) -> bool:
        if not service.per_minute:
            return True
        now = time.time()
        if await self._ledger.admitted(service.identity, int(now // MINUTE_S), service.per_minute):
            return True
        health.not_before = time.monotonic() + MINUTE_S - now % MINUTE_S
        return False

    def _pause_s(self, services: tuple[OtherModel, ...]) -> float:
        """The time until the first of these services may be asked, plus jitter, so that not all questions go out at
        once."""
        rests = [self._health_of(service).not_before - time.monotonic() for service in services]
        return min(max(min(rests, default=0.0), 0.05), LOOK_EVERY_S) * (1 + random.random() / 4)

    def _health_of(self, service: OtherModel) -> Health:
        return self._health.setdefault(service.identity, Health())

    async def _try(self, call: OtherModelCall, service: OtherModel, question: Question) -> Answer:
        """Asks the service, and ends the turn that `_take_turn` took."""
        health = self._health_of(service)
        call.tries += 1
        try:
            key = "" if service.key is None else resolve_secret(service.key)
            request = dialects.request_of(service, question, key)
            answer = await self._calls.answer(request, within_s=service.timeout_s)
            if not answer.text:
                raise ServiceFailedError("its answer has no text")
        except ConfigError as missing:
            failed = ServiceFailedError(missing.message)
        except ServiceFailedError as broken:
            failed = broken
        else:
            health.worked()
            if service.identity not in self._works:
                self._works.add(service.identity)
                await self._ledger.works(service.identity)
            return answer
        finally:
            self._at_work[service.identity] -= 1
        if failed.verdict != "refused":
            health.failed(time.monotonic(), random.random(), failed.asked_for)
            self._works.discard(service.identity)
            rest_s = health.not_before - time.monotonic()
            await self._ledger.rests(service.identity, health.failures, rest_s, str(failed))
        raise failed

"""The tool calls of one episode: in parallel, each once, each with a deadline.

Invariants: a call is durable before it is sent, unless its server is declared safe to call again; the toolbox knows a
call by its id, so a repeated request (a broken connection, another sampler) joins the call instead of running it twice,
and no two calls have the same id; a failure that the policy did not cause ends the episode and is never shown to the
model; an open circuit breaker, or a toolbox that is full or away, parks the episode, and its clock stands still;
results are in the order of their calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from agentrl.chat.tool_call_parsers import Call
from agentrl.chat.tool_specs import ToolSpec
from agentrl.formatting.amounts import counted
from agentrl.images.processing import ImageError
from agentrl.policies import fork_rules
from agentrl.policies.outcomes import Outcome
from agentrl.policies.replay_verdicts import (
    CallResult,
    EarlierCall,
    ToolEffect,
    is_same,
    lost_its_session,
    merged_effects,
)
from agentrl.policies.result_diff import compare
from agentrl.policies.status_tables import ToolCallStatus
from agentrl.rollout.episode_errors import EndedError, HandedOverError
from agentrl.rollout.episode_recorder import Recorder
from agentrl.rollout.model_calls import Wait
from agentrl.rollout.service_directory import ServiceDirectory
from agentrl.rollout.shown_images import EpisodeImages
from agentrl.store.documents import ToolCall, storable
from agentrl.toolbox.api_messages import (
    BadRequestError,
    CallAnswer,
    Opened,
    QuotaError,
    SessionError,
    ToolboxError,
    ToolboxGoneError,
    ToolInfo,
    UnavailableError,
    UnknownToolError,
)
from agentrl.toolbox.client import ToolboxClient
from agentrl.toolservers.user_names import HIDDEN_TOOLS
from agentrl.tracing import spans

T = TypeVar("T")
log = logging.getLogger("tools")
TOOLBOX_WITHIN_S = 60.0
"""How long a call waits for a toolbox that does not answer. A toolbox that died is replaced sooner."""
PARKED_AT_MOST_S = 1800.0
RESERVED_WITHIN_S = 30.0
REBUILD_TRIES = 3
"""How many sessions a fork opens if calls of its trunk are lost while they rebuild the session."""
RETRY_S = 0.5
MOST_RETRY_S = 5.0
RETRIES_APART = 1000
"""More than the calls of a turn, so a call that is made again keeps its place in the turn."""
CLOSED_WITHIN_S = 5.0


class Offer(NamedTuple):
    """The tools of an episode, under the names that the model uses."""

    specs: tuple[ToolSpec, ...]
    places: dict[str, tuple[str, str]]
    """Name -> server, tool. `shop.lookup` is always valid, `lookup` only if a single server has that tool."""
    hidden: dict[str, tuple[str, str]]
    """The same for tools that only agentrl calls, by their full names."""


def offer(tools: Sequence[ToolInfo], servers: Sequence[str]) -> Offer:
    mine = [tool for tool in tools if tool.server in servers and tool.name not in HIDDEN_TOOLS]
    names = [tool.name for tool in mine]
    specs: list[ToolSpec] = []
    places: dict[str, tuple[str, str]] = {}
    for tool in mine:
        full = f"{tool.server}.{tool.name}"
        name = tool.name if names.count(tool.name) == 1 else full
        specs.append(ToolSpec(name=name, description=tool.description, schema=tool.schema))
        places[name] = places[full] = (tool.server, tool.name)
    own = [tool for tool in tools if tool.server in servers and tool.name in HIDDEN_TOOLS]
    hidden = {f"{tool.server}.{tool.name}": (tool.server, tool.name) for tool in own}
    return Offer(tuple(specs), places, hidden)


class ToolCalls:
    """Made for one episode; `close` ends its session."""

    def __init__(
        self,
        directory: ServiceDirectory,
        recorder: Recorder,
        servers: Sequence[str],
        *,
        repeatable: Collection[str],
        effects: Mapping[str, Mapping[str, ToolEffect]],
        images: EpisodeImages,
        tool_s: float,
        wait_s: float,
        stateless: bool,
        wait: Wait,
        parked: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`repeatable` servers may run a call again for another sampler. `effects`: what the run file declares for the
        tools of servers that keep state in a session. `tool_s` is the limit of a call; 0 leaves it to the servers. A
        call takes at most `wait_s`, including all waiting around it. `stateless` sessions can be opened again in the
        middle. While `parked` is entered, the clock stands still."""
        self._directory = directory
        self._recorder = recorder
        self._servers = tuple(servers)
        self._repeatable = frozenset(repeatable)
        self._effects = effects
        self._images = images
        self._tool_s = tool_s
        self._wait_s = wait_s
        self._stateless = stateless
        self._wait = wait
        self._parked = parked
        self._session = recorder.record.id
        self._reserved = False
        self._opened = 0
        """How often the session was opened, because a toolbox forgets the calls of an earlier session."""
        self._leaving = asyncio.Event()
        self._asked = recorder.has_tool_calls
        """Whether the session has state that later calls build on."""
        self._numbers: Counter[int] = Counter()
        """How many calls each turn has made, so that calls made later in it have numbers of their own."""
        self.offer = Offer((), {}, {})

    async def prepare(self) -> None:
        """Reserve all servers at once and learn their tools."""
        if not self._servers:
            return
        try:
            tools = await self._patiently("list", self._learn)
            self.offer = offer(tools, self._servers)
            self._effects = {name: _effects(tools, name, found) for name, found in self._effects.items()}
            await self._patiently("reservation", self._reserve)
            await self._rebuild()
        except _InvalidError as refused:
            raise EndedError(Outcome.TOOL_SERVER_FAILED, str(refused)) from refused

    async def run(self, turn: int, calls: Sequence[Call], *, hidden: bool = False) -> list[str]:
        """Runs the calls and returns texts for the model, in the order of `calls`. `hidden`: agentrl itself calls
        hidden tools."""
        places = self.offer.hidden if hidden else self.offer.places
        stored = sorted(self._recorder.tool_calls_of(turn), key=lambda call: _number(call.id))
        first = self._numbers[turn]
        self._numbers[turn] += len(calls)
        jobs = [
            asyncio.create_task(self._one(turn, number, call, places.get(call.name), stored))
            for number, call in enumerate(calls, first)
        ]
        try:
            done = await self._all(jobs)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.wait(jobs)
        return done

    async def keep(self, turn: int, name: str, text: str) -> None:
        """Stores a text like the result of a tool that ran."""
        number = self._numbers[turn]
        self._numbers[turn] += 1
        if any(_number(one.id) % RETRIES_APART == number for one in self._recorder.tool_calls_of(turn)):
            return  # by the sampler that had the episode before
        document = await self._recorder.requested(
            turn, number, server="", tool=name, arguments={}, session=self._session, durable=False
        )
        self._recorder.tool_moved(document, ToolCallStatus.OK, CallAnswer(status="ok", content=text))

    def leave(self) -> None:
        """Stops waiting. Calls run on in the toolbox, and the next sampler joins them."""
        self._leaving.set()

    async def close(self) -> None:
        """The session ends with the episode. It stays open for another sampler that goes on with it."""
        if not self._reserved:
            return
        placed = self._directory.toolbox(self._servers, self._session)
        if placed is None:
            return
        try:
            async with asyncio.timeout(CLOSED_WITHIN_S):
                await placed.client.close(self._session)
        except (ToolboxError, TimeoutError) as failed:
            log.warning("the session of %s is left to its toolbox: %s", self._session, failed)

    # ---- the calls of a turn ----

    async def _all(self, jobs: list[asyncio.Task[str]]) -> list[str]:
        """Waits for all results. The first failure ends the wait, and so does leaving."""
        leaving = asyncio.create_task(self._leaving.wait(), name="leave")
        try:
            left = set(jobs)
            while left:
                done, _ = await asyncio.wait({*left, leaving}, return_when=asyncio.FIRST_COMPLETED)
                for job in [job for job in jobs if job in done]:
                    job.result()
                left -= done
                if leaving in done and left:
                    raise HandedOverError
        finally:
            leaving.cancel()
        return [job.result() for job in jobs]

    async def _one(
        self, turn: int, number: int, call: Call, place: tuple[str, str] | None, stored: Sequence[ToolCall]
    ) -> str:
        """Makes the call, or continues the call that was requested before under this number. `place`: server and
        tool."""
        before = [one for one in stored if _number(one.id) % RETRIES_APART == number]
        document = before[-1] if before else None
        if document is not None and document.status in _ANSWERED:
            if document.copied_from and not _is_for(call, place, document):
                why = f"in turn {turn} the loop calls {call.name} where the base called {document.tool}, or otherwise"
                raise EndedError(Outcome.NOT_REPRODUCIBLE, why)
            return await self._read(self._result_text(document, await self._recorder.whole_result(document)))
        if document is None or document.status == ToolCallStatus.LOST:
            server, tool = place or ("", call.name)
            document = await self._recorder.requested(
                turn,
                number + RETRIES_APART * len(before),
                server=server,
                tool=tool,
                arguments=call.arguments,
                session=self._session,
                durable=place is not None and server not in self._repeatable,
            )
        # The toolbox knows the call by its first id, so it does not run again what ran for a sampler that is gone.
        asked_as = before[0].id if before else document.id
        if place is None:
            return self._refuse(document, f"There is no tool {call.name}. {self._known()}")
        ask = self._asking(asked_as, place, call.arguments, asked_in=0 if before else None)
        return await self._ask(document, place, ask)

    def _asking(
        self, asked_as: str, place: tuple[str, str], arguments: dict[str, Any], *, asked_in: int | None
    ) -> Callable[[ToolboxClient], Awaitable[CallAnswer]]:
        """A request that may be repeated. `asked_in` is the session in which the call may have begun to run."""

        async def ask(box: ToolboxClient) -> CallAnswer:
            nonlocal asked_in
            reopened = False
            while asked_in in (None, self._opened):
                try:
                    return await box.call(self._session, asked_as, *place, arguments, timeout_s=self._tool_s)
                except ToolboxError as refused:
                    if _is_away(refused):
                        asked_in = self._opened
                    if not isinstance(refused, SessionError) or not self._stateless or reopened:
                        raise
                # The toolbox was replaced, and nothing of this session was kept in it.
                await self._open(box)
                reopened = True
            raise EndedError(Outcome.TOOL_SERVER_FAILED, "its toolbox is gone, and whether the call ran is not known")

        return ask

    async def _ask(
        self, document: ToolCall, place: tuple[str, str], ask: Callable[[ToolboxClient], Awaitable[CallAnswer]]
    ) -> str:
        self._asked = True
        if document.status == ToolCallStatus.REQUESTED:
            self._recorder.tool_runs(document)
        name = f"{place[0]}.{place[1]}"
        try:
            with spans.span(f"execute_tool {name}", kind="client", gen_ai__operation__name="execute_tool") as span:
                span.set(gen_ai__tool__name=name, gen_ai__tool__call__id=document.id)
                answer = await self._patiently(name, ask)
                span.set(agentrl__status=answer.status)
                if answer.error_class == "infrastructure":
                    span.fail(answer.status)
        except _InvalidError as refused:
            answer = CallAnswer(status="tool_error", error_class="policy", content=str(refused))
        except EndedError as ended:
            lost = CallAnswer(status="lost", error_class="infrastructure", content=ended.error)
            self._recorder.tool_moved(document, ToolCallStatus.LOST, lost)
            raise
        # Images are stored before the document that names them.
        content = await self._images.of_tool(answer.content, answer.images)
        answer = msgspec.structs.replace(answer, content=content, images={})
        self._recorder.tool_moved(document, ToolCallStatus(answer.status), answer)
        return await self._read(self._result_text(document, answer.content, free=answer.breaker_open))

    async def _read(self, text: str) -> str:
        """Returns the text, after loading its images for the next prompt."""
        try:
            await self._images.load(text)
        except ImageError as wrong:
            raise EndedError(Outcome.IMAGE_REFUSED, wrong.message) from wrong
        return text

    def _result_text(self, document: ToolCall, text: str, *, free: bool = False) -> str:
        """What the model reads of an ended call. Raises EndedError if the model must not see it."""
        if document.error_class == "infrastructure":
            timeout = document.status == ToolCallStatus.TIMEOUT
            outcome = Outcome.TOOL_TIMEOUT if timeout else Outcome.TOOL_SERVER_FAILED
            raise EndedError(outcome, f"{document.server}.{document.tool}: {text}"[:2000], free=free)
        if document.status == ToolCallStatus.LOST:
            # The tool declares crashes to be the policy's fault, and the state of the session is lost.
            raise EndedError(Outcome.TOOL_FAILURE, f"{document.server}.{document.tool}: {text}"[:2000])
        return text

    def _refuse(self, document: ToolCall, why: str) -> str:
        """Refuses a call: the model gets the reason, and no toolbox runs it."""
        refused = CallAnswer(status="tool_error", error_class="policy", content=why)
        self._recorder.tool_moved(document, ToolCallStatus.REFUSED, refused)
        return why

    def _known(self) -> str:
        names = ", ".join(spec.name for spec in self.offer.specs)
        return f"There are: {names}." if names else "There are no tools."

    # ---- a toolbox that may be busy, or away ----

    async def _learn(self, box: ToolboxClient) -> Sequence[ToolInfo]:
        tools = await box.tools()
        missing = set(self._servers) - {tool.server for tool in tools}
        if missing:
            names = ", ".join(sorted(missing))
            raise UnavailableError(f"the toolbox does not offer the tools of {names} now")
        return tools

    async def _reserve(self, box: ToolboxClient) -> None:
        opened = await self._open(box)
        self._reserved = True
        if self._stateless:
            return
        if opened.created and (self._recorder.has_own_tool_calls or (self._asked and not self._recorder.trunk_calls)):
            raise EndedError(Outcome.TOOL_SERVER_FAILED, "the state that the tools kept for this episode is gone")
        if not all(map(self._recorder.has_requested, opened.calls)):
            # Its sampler died between the call and the write.
            why = "the tools ran a call of this episode that was not stored, so their state does not fit"
            raise EndedError(Outcome.TOOL_SERVER_FAILED, why)

    async def _rebuild(self) -> None:
        """Bring the sessions of a fork to the end of its trunk. The calls have the ids of the trunk's calls, so a
        sampler that takes over gets the answers of calls that already ran, and runs the rest. If a call is lost, a
        fresh session is rebuilt."""
        places = self._recorder.trunk_calls
        if not places or self._recorder.has_own_tool_calls:
            return
        calls = fork_rules.rebuilding_trunk(list(places.values()), self._effects)
        lost = await self._rebuild_once(calls)
        for _ in range(REBUILD_TRIES - 1):
            if not lost:
                return
            log.warning("the session of %s is rebuilt again: %s", self._session, lost)
            await self._patiently("fresh session", self._reserve_again)
            lost = await self._rebuild_once(calls)
        if lost:
            why = f"{counted(REBUILD_TRIES, 'sessions')} could not be rebuilt: {lost}"
            raise EndedError(Outcome.TOOL_SERVER_FAILED, why[:2000])

    async def _reserve_again(self, box: ToolboxClient) -> None:
        await box.close(self._session, forget=True)
        await self._reserve(box)

    async def _rebuild_once(self, calls: Sequence[EarlierCall]) -> str:
        """Which call was lost and why; empty if all calls returned the recorded results."""
        for place in calls:
            call = self._recorder.tool_call(place.id)
            then = CallResult(call.status, await self._recorder.whole_result(call), call.error_class)
            at = (call.server, call.tool)
            ask = self._asking(call.id, at, call.arguments, asked_in=None)
            answer = await self._patiently(f"{call.server}.{call.tool} of the trunk", partial(_lost_with_session, ask))
            now = CallResult(answer.status, answer.content, answer.error_class)
            if lost_its_session(then, now) and not call.edited:
                return f"{call.copied_from} ({call.tool}) was lost: {answer.content}"
            if not call.edited and not is_same(then, now):
                changes = compare(then, now).changes
                where = f": {changes[0].path} was {changes[0].then}, is {changes[0].now}" if changes else ""
                why = f"{call.copied_from} ({call.tool}) returned something else{where}"
                raise EndedError(Outcome.NOT_REPRODUCIBLE, why[:2000])
        return ""

    async def _open(self, box: ToolboxClient) -> Opened:
        opened = await box.open(self._session, self._servers, wait_s=RESERVED_WITHIN_S)
        self._opened += opened.created
        return opened

    async def _patiently(self, what: str, act: Callable[[ToolboxClient], Awaitable[T]]) -> T:
        """Repeats a request until a toolbox takes it. Waiting for a breaker, a free place or a toolbox parks the
        episode."""
        began, retry_s = time.monotonic(), RETRY_S
        away_since: float | None = None
        while True:
            placed = self._directory.toolbox(self._servers, self._session)
            refusal: ToolboxError = ToolboxGoneError(f"no toolbox serves {', '.join(self._servers)}")
            unit = "toolbox"
            if placed is not None:
                unit = placed.unit
                try:
                    with self._wait(f"tool call {what}", unit, self._wait_s):
                        return await act(placed.client)
                except ToolboxError as refused:
                    refusal = refused
            now = time.monotonic()
            away_since = (away_since or now) if _is_away(refusal) else None
            self._refuse_for_good(refusal, waited_s=now - began, away_s=now - (away_since or now))
            with self._wait(f"{what}: {refusal.message}", unit, PARKED_AT_MOST_S), self._parked():
                await self._pause(min(max(refusal.retry_after_s, retry_s), MOST_RETRY_S))
            retry_s = min(2 * retry_s, MOST_RETRY_S)
            await self._directory.look_soon()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()
                raise HandedOverError

    @staticmethod
    def _refuse_for_good(refusal: ToolboxError, *, waited_s: float, away_s: float) -> None:
        """Raises unless a repeated request may succeed."""
        match refusal:
            case BadRequestError() | UnknownToolError():
                raise _InvalidError(refusal.message)
            case SessionError():
                raise EndedError(Outcome.TOOL_SERVER_FAILED, refusal.message)
            case QuotaError() | UnavailableError():
                if waited_s > PARKED_AT_MOST_S:
                    raise EndedError(Outcome.TOOL_SERVER_FAILED, refusal.message, free=True)
            case _ if away_s > TOOLBOX_WITHIN_S:
                raise EndedError(Outcome.TOOL_SERVER_FAILED, refusal.message)


def _is_away(refusal: ToolboxError) -> bool:
    """Whether the toolbox did not answer properly, so that it is unknown whether it ran the call."""
    return not isinstance(refusal, BadRequestError | UnknownToolError | SessionError | QuotaError | UnavailableError)


async def _lost_with_session(ask: Callable[[ToolboxClient], Awaitable[CallAnswer]], box: ToolboxClient) -> CallAnswer:
    """The answer; `lost` if the session of the call is gone."""
    try:
        return await ask(box)
    except SessionError as gone:
        return CallAnswer(status="lost", error_class="infrastructure", content=gone.message)


_ANSWERED = (
    ToolCallStatus.OK,
    ToolCallStatus.TOOL_ERROR,
    ToolCallStatus.TIMEOUT,
    ToolCallStatus.CANCELLED,
    ToolCallStatus.REFUSED,
)


def _effects(tools: Sequence[ToolInfo], server: str, run_file: Mapping[str, ToolEffect]) -> Mapping[str, ToolEffect]:
    return merged_effects({tool.name: tool.effect for tool in tools if tool.server == server}, run_file)


class _InvalidError(Exception):
    """The toolbox will never take this call; the model gets the reason."""


def _is_for(call: Call, place: tuple[str, str] | None, document: ToolCall) -> bool:
    """Whether a call of the loop equals the recorded call of the trunk."""
    named = place == (document.server, document.tool) if place else call.name == document.tool
    return named and storable(call.arguments) == document.arguments


def _number(call_id: str) -> int:
    return int(call_id.rpartition(".")[2])

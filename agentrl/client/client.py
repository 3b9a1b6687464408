"""The client itself: calls, waiting for operations, snapshots and following the feed.

Invariants: waiting follows the feed and asks only when the feed told nothing, was cut or is silent; a follower's view
is always a whole snapshot plus everything after it, or it is told to begin anew; a coordinator that is restarted costs
time and nothing else.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from agentrl.client.command_methods import CommandMethods
from agentrl.client.coordinator_connection import Answer, Session
from agentrl.client.discovery import Target, find, refuse_if_dead
from agentrl.client.feed_subscription import FeedTail
from agentrl.errors import NoCoordinatorError, ProtocolError, UnknownNameError, UsageError, WaitTimeoutError
from agentrl.protocol import wire
from agentrl.protocol.commands import COMMANDS, ShowOperation, Snapshot
from agentrl.protocol.effects import Consent
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages import Permission, Reply, Request, SnapshotEnd, Welcome
from agentrl.protocol.rows import AnyRow, OperationRow, short

T = TypeVar("T")

CONNECT_S = 5.0
ANSWER_S = 10.0
"""How long an answer may take if the caller does not say otherwise."""
PATIENCE_S = 60.0
"""How long `wait` and `follow` look for a coordinator that went away."""
ASK_EVERY_S = 1.0

RESET = "~reset"
"""Marker of `follow`: forget all rows, a whole snapshot follows."""
CAUGHT_UP = "~caught-up"
"""Marker of `follow`: the snapshot is complete, or a silence is over."""
SILENT = "~silent"
"""Marker of `follow`: the feed is silent; rows are as they were."""

_NIL = b"\xc0"


class View(msgspec.Struct, frozen=True):
    """All rows of one moment."""

    epoch: str
    seq: int
    rows: dict[str, AnyRow]


class Client(CommandMethods):
    """`async with Client.connect("name") as client:` and then, for example, `await client.scale("web", to=3)`."""

    def __init__(self, target: Target, *, timeout_s: float = CONNECT_S) -> None:
        self.target = target
        self._timeout_s = timeout_s
        self._session: Session | None = None

    @classmethod
    def connect(
        cls,
        run: str | None = None,
        *,
        key_file: Path | str | None = None,
        address: str | None = None,
        state_dir: Path | None = None,
        timeout_s: float = CONNECT_S,
    ) -> Self:
        """A client of the run of that name, of a key file's or address's coordinator, or of the only run that is up."""
        return cls(find(run, key_file=key_file, address=address, state_dir=state_dir), timeout_s=timeout_s)

    async def __aenter__(self) -> Self:
        refuse_if_dead(self.target)
        self._session = Session(self.target)
        self._session.start()
        try:
            await self._session.opened(self._timeout_s)
        except BaseException:
            self._session.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()
        self._session = None

    @property
    def connected(self) -> bool:
        """False while the coordinator is away; calls wait for it until their deadline."""
        return self._opened.connected

    @property
    def welcome(self) -> Welcome:
        """What the coordinator said of itself: run, version, our permission."""
        welcome = self._opened.welcome
        assert welcome
        return welcome

    @property
    def permission(self) -> Permission:
        return self.welcome.permission

    # ---- calls ----

    async def call(
        self,
        name: str,
        args: Args | Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        deadline_s: float | None = None,
        consent: Consent | None = None,
    ) -> Any:
        """The decoded answer to a command of the table. With the same `id` it is carried out only once.

        Raises EffectChangedError, and nothing is done, if the effect is not the one that `consent` was given for.
        """
        spec = COMMANDS.get(name)
        if spec is None:
            raise UnknownNameError(f"There is no command {name!r}.")
        if spec.result is None:
            raise UnknownNameError(f"The answer to {name!r} is a stream of rows.", hint="Use client.snapshot().")
        request = Request(id or uuid.uuid4().hex, name, wire.raw(_checked(spec.args, args)), consent=consent)
        return await self._reply(request, spec.result, deadline_s)

    async def preview(self, name: str, args: Args | Mapping[str, Any] | None = None) -> Consent:
        """What a command would do now; nothing is changed. Send it with the call as `consent`."""
        args = _checked(COMMANDS[name].args, args)
        return await self._reply(Request(uuid.uuid4().hex, name, wire.raw(args), dry_run=True), Consent)

    async def snapshot(self, kinds: Iterable[str] = (), *, deadline_s: float | None = None) -> View:
        """All rows of the given kinds (`unit`, `group`, `op`, ...: the first part of a key), or simply all."""
        end, rows = await self._ask(Request(uuid.uuid4().hex, "snapshot", wire.raw(Snapshot(tuple(kinds)))), deadline_s)
        if not isinstance(end, SnapshotEnd):
            raise ProtocolError("The coordinator answered a snapshot without closing it.")
        return View(end.epoch, end.seq, {key: wire.decode_row(value) for key, value in rows.items()})

    # ---- following ----

    async def wait(
        self,
        operation_id: str,
        on_change: Callable[[OperationRow], None] | None = None,
        timeout_s: float | None = None,
    ) -> OperationRow:
        """The operation once it has ended, well or not. Raises WaitTimeoutError if it goes on after `timeout_s`."""
        key = f"op/{operation_id}"
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        last: OperationRow | None = None
        async with FeedTail(self.target, wanted=lambda each: each == key) as tail:
            ask = True
            while True:
                heard_before = tail.live
                if ask:
                    tail.begin()
                    row: OperationRow | None = await self._operation(operation_id, deadline)
                else:
                    row = _operation_of(tail.take().get(key))
                if row and row != last:
                    last = row
                    if on_change:
                        on_change(row)
                    if row.state.ended:
                        return row
                left = ASK_EVERY_S if deadline is None else min(ASK_EVERY_S, deadline - time.monotonic())
                if left <= 0:
                    raise _unfinished(operation_id, timeout_s)
                await tail.changed(left)
                # What happened between the question and the first sign of life of the feed may be lost: ask again.
                ask = tail.stale or tail.silent or not (heard_before and tail.live) or _is_gone(tail.news.get(key))

    async def follow(
        self, kinds: Iterable[str] = (), *, on_heard: Callable[[], object] | None = None
    ) -> AsyncGenerator[tuple[str, AnyRow | None], None]:
        """All rows, then every change, for ever. A row that is None is gone.

        Between them stand markers: RESET before each snapshot (the first, and one after every loss), CAUGHT_UP after
        it, SILENT when the coordinator is not heard. A consumer that keeps a dict of rows clears it at RESET.

        `on_heard` is called at every sign of life of the feed, also where nothing changed.
        """
        wanted = frozenset(kinds)
        async with FeedTail(self.target, lambda key: not wanted or key.partition("/")[0] in wanted) as tail:
            while True:
                view = await self._snapshot_for(tail, wanted)
                yield RESET, None
                for key, row in view.rows.items():
                    yield key, row
                yield CAUGHT_UP, None
                async with aclosing(self._changes(tail, view.seq, on_heard)) as changes:
                    async for change in changes:
                        yield change

    async def _changes(
        self, tail: FeedTail, after: int, on_heard: Callable[[], object] | None
    ) -> AsyncGenerator[tuple[str, AnyRow | None], None]:
        """Until something was lost."""
        silent = False
        while not tail.stale:
            for key, (seq, value) in tail.take().items():
                if seq > after:
                    yield key, None if bytes(value) == _NIL else wire.decode_row(value)
            if await tail.changed(ASK_EVERY_S) and on_heard:
                on_heard()
            if tail.silent != silent:
                silent = tail.silent
                yield SILENT if silent else CAUGHT_UP, None

    async def _snapshot_for(self, tail: FeedTail, kinds: frozenset[str]) -> View:
        """A snapshot that the tail continues without a gap."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            if not tail.live:
                await tail.changed(ASK_EVERY_S)
            tail.begin()
            try:
                view = await self.snapshot(kinds)
            except (NoCoordinatorError, WaitTimeoutError):
                if time.monotonic() >= give_up:
                    raise
                continue
            if tail.live and not tail.stale and tail.epoch == view.epoch:
                return view
            if time.monotonic() >= give_up:
                raise NoCoordinatorError(
                    f"The coordinator of {self.target.what} answers, but its feed at {self.target.feed} is silent.",
                    hint="Over tcp the feed has the port after the coordinator's: is it reachable?",
                )
            # Both sides have to belong to the same life of the coordinator; its next beat tells.
            await tail.changed(ASK_EVERY_S)

    async def _operation(self, operation_id: str, deadline: float | None) -> OperationRow:
        """Asks, and goes on asking while a coordinator is being restarted."""
        give_up = time.monotonic() + PATIENCE_S if deadline is None else deadline
        while True:
            left = give_up - time.monotonic()
            request = Request(uuid.uuid4().hex, "show_operation", wire.raw(ShowOperation(operation_id)))
            try:
                return await self._reply(request, OperationRow, max(0.1, min(ANSWER_S, left)))
            except (NoCoordinatorError, WaitTimeoutError):
                if time.monotonic() >= give_up:
                    raise

    async def _reply(self, request: Request, kind: type[T], deadline_s: float | None = None) -> T:
        end, _ = await self._ask(request, deadline_s)
        if not isinstance(end, Reply):
            raise ProtocolError(f"The coordinator answered {request.name!r} with rows.")
        return wire.decode_as(kind, end.result)

    async def _ask(self, request: Request, deadline_s: float | None) -> Answer:
        return await self._opened.request(request, ANSWER_S if deadline_s is None else deadline_s)

    @property
    def _opened(self) -> Session:
        if self._session is None:
            raise UsageError("A client is used inside `async with`, not before it and not after it.")
        return self._session


def _checked(kind: type[Args], args: Args | Mapping[str, Any] | None) -> Args:
    if not isinstance(args, Args):
        try:
            args = msgspec.convert(args or {}, kind)
        except msgspec.ValidationError as broken:
            raise ProtocolError(f"The arguments do not fit: {broken}.") from broken
    elif not isinstance(args, kind):
        raise ProtocolError(f"{type(args).__name__} are not the arguments of this command.")
    if problem := args.problem():
        raise UsageError(problem)
    return args


def _operation_of(news: tuple[int, msgspec.Raw] | None) -> OperationRow | None:
    return None if news is None or _is_gone(news) else wire.decode_as(OperationRow, news[1])


def _is_gone(news: tuple[int, msgspec.Raw] | None) -> bool:
    return news is not None and bytes(news[1]) == _NIL


def _unfinished(operation_id: str, timeout_s: float | None) -> WaitTimeoutError:
    return WaitTimeoutError(
        f"The operation {short(operation_id)} was accepted but has not ended within {timeout_s:g} s; it goes on.",
        hint="`agentrl events --follow` shows how it goes on.",
    )

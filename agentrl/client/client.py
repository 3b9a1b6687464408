"""Implements the asynchronous client: calls, waits for operations, snapshots, and following the feed.

Invariants:
- `wait` follows the feed, and asks the coordinator only when the feed is silent or lost rows.
- The view of a follower is always a whole snapshot plus all changes after it, or the follower gets RESET.
- A restart of the coordinator costs a caller only time.
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

from agentrl.client.coordinator_connection import Answer, CoordinatorConnection
from agentrl.client.discovery import Target, find, refuse_if_dead
from agentrl.client.feed_subscription import FeedSubscription
from agentrl.client.notebook import NotebookMethods
from agentrl.errors import NoCoordinatorError, ProtocolError, UnknownNameError, UsageError, WaitTimeoutError
from agentrl.protocol import wire
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.control_commands import ShowOperation, Snapshot
from agentrl.protocol.effects import Consent
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages import Permission, Reply, Request, SnapshotEnd, Welcome
from agentrl.protocol.rows import KINDS, AnyRow, OperationRow, short

T = TypeVar("T")

CONNECT_S = 5.0
ANSWER_S = 10.0
"""How long an answer may take if the caller gives no deadline."""
PATIENCE_S = 60.0
"""How long `wait` and `follow` try to reach a coordinator that is gone."""
ASK_EVERY_S = 1.0

RESET = "~reset"
"""Marker of `follow`: forget all rows, a whole snapshot follows."""
CAUGHT_UP = "~caught-up"
"""Marker of `follow`: the snapshot is complete, or the feed works again."""
SILENT = "~silent"
"""Marker of `follow`: the feed is silent; the rows may be out of date."""

_NIL = b"\xc0"


class View(msgspec.Struct, frozen=True):
    """All rows of one moment."""

    epoch: str
    seq: int
    rows: dict[str, AnyRow]


class Client(NotebookMethods):
    """`async with Client.connect("name") as client:` and then, for example, `await client.scale("web", to=3)`."""

    def __init__(self, target: Target, *, timeout_s: float = CONNECT_S) -> None:
        self.target = target
        self._timeout_s = timeout_s
        self._session: CoordinatorConnection | None = None

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
        """A client of the named run, of a coordinator given by key file or address, or of the only run that is up."""
        return cls(find(run, key_file=key_file, address=address, state_dir=state_dir), timeout_s=timeout_s)

    async def __aenter__(self) -> Self:
        refuse_if_dead(self.target)
        self._session = CoordinatorConnection(self.target)
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
        """The answer to our hello: the run, the version of the coordinator, our permission."""
        welcome = self._opened.welcome
        assert welcome
        return welcome

    @property
    def run_name(self) -> str:
        return self.welcome.run_name

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
        """The present effect of a command; nothing is changed. Send it with the call as `consent`."""
        args = _checked(COMMANDS[name].args, args)
        return await self._reply(Request(uuid.uuid4().hex, name, wire.raw(args), dry_run=True), Consent)

    async def snapshot(self, kinds: Iterable[str] = (), *, deadline_s: float | None = None) -> View:
        """All rows, or those of the given kinds (`unit`, `group`, `op`, ...: the first part of a key)."""
        args = wire.raw(Snapshot(tuple(sorted(_known(kinds)))))
        end, rows = await self._ask(Request(uuid.uuid4().hex, "snapshot", args), deadline_s)
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
        """The operation after its end, in any state. Raises WaitTimeoutError if it still runs after `timeout_s`."""
        key = f"op/{operation_id}"
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        last: OperationRow | None = None
        async with FeedSubscription(self.target, wanted=lambda each: each == key) as feed:
            ask = True
            while True:
                received_before = feed.live
                if ask:
                    feed.begin()
                    row: OperationRow | None = await self._operation(operation_id, deadline)
                else:
                    row = _operation_of(feed.take().get(key))
                if row and row != last:
                    last = row
                    if on_change:
                        on_change(row)
                    if row.state.ended:
                        return row
                left = ASK_EVERY_S if deadline is None else min(ASK_EVERY_S, deadline - time.monotonic())
                if left <= 0:
                    raise _unfinished(operation_id, timeout_s)
                await feed.changed(left)
                # Rows between the answer and the first message of the feed may be lost, so this queries again.
                ask = feed.stale or feed.silent or not (received_before and feed.live) or _is_gone(feed.news.get(key))

    async def follow(
        self, kinds: Iterable[str] = (), *, on_message: Callable[[], object] | None = None
    ) -> AsyncGenerator[tuple[str, AnyRow | None], None]:
        """All rows, then every change, without an end. A row that is None was removed.

        Markers stand between the rows: RESET before each snapshot (the first one, and one after every loss), CAUGHT_UP
        after it, SILENT when the feed is silent. A consumer that keeps a dict of rows clears it at RESET.

        `on_message` is called for every message of the feed, even if nothing changed.
        """
        wanted = _known(kinds)
        async with FeedSubscription(self.target, lambda key: not wanted or key.partition("/")[0] in wanted) as feed:
            while True:
                view = await self._snapshot_for(feed, wanted)
                yield RESET, None
                for key, row in view.rows.items():
                    yield key, row
                yield CAUGHT_UP, None
                async with aclosing(self._changes(feed, view.seq, on_message)) as changes:
                    async for change in changes:
                        yield change

    async def _changes(
        self, feed: FeedSubscription, after: int, on_message: Callable[[], object] | None
    ) -> AsyncGenerator[tuple[str, AnyRow | None], None]:
        """Changes until a row is lost."""
        silent = False
        while not feed.stale:
            for key, (seq, value) in feed.take().items():
                if seq > after:
                    yield key, None if bytes(value) == _NIL else wire.decode_row(value)
            if await feed.changed(ASK_EVERY_S) and on_message:
                on_message()
            # A message of another lifetime ends the silence, but not the age of the rows: the next marker is RESET.
            if feed.silent != silent and not feed.stale:
                silent = feed.silent
                yield SILENT if silent else CAUGHT_UP, None

    async def _snapshot_for(self, feed: FeedSubscription, kinds: frozenset[str]) -> View:
        """A snapshot that the subscription continues without a gap."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            if not feed.live:
                await feed.changed(ASK_EVERY_S)
            feed.begin()
            try:
                view = await self.snapshot(kinds)
            except (NoCoordinatorError, WaitTimeoutError):
                if time.monotonic() >= give_up:
                    raise
                continue
            if feed.live and not feed.stale and feed.epoch == view.epoch and feed.complete_after <= view.seq:
                return view
            if time.monotonic() >= give_up:
                raise NoCoordinatorError(
                    f"The coordinator of {self.target.what} answers, but its feed at {self.target.feed} is silent.",
                    hint="Over tcp the feed has the port after the coordinator's: is it reachable?",
                )
            # Snapshot and feed must come from the same lifetime of the coordinator; its next beat shows which lifetime
            # that is.
            await feed.changed(ASK_EVERY_S)

    async def _operation(self, operation_id: str, deadline: float | None) -> OperationRow:
        """Queries the operation, and repeats the query while the coordinator is being restarted."""
        give_up = time.monotonic() + PATIENCE_S if deadline is None else deadline
        while True:
            left = give_up - time.monotonic()
            request = Request(uuid.uuid4().hex, "show_operation", wire.raw(ShowOperation(operation_id)))
            try:
                within_s = ANSWER_S if self.connected else ASK_EVERY_S
                return await self._reply(request, OperationRow, max(0.1, min(within_s, left)))
            except (NoCoordinatorError, WaitTimeoutError):
                refuse_if_dead(self.target)
                if time.monotonic() >= give_up:
                    raise

    async def _reply(self, request: Request, kind: type[T], deadline_s: float | None = None) -> T:
        end, _ = await self._ask(request, deadline_s)
        if not isinstance(end, Reply):
            raise ProtocolError(f"The coordinator answered {request.name!r} with rows.")
        return wire.decode_as(kind, end.result, finite=False)

    async def _ask(self, request: Request, deadline_s: float | None) -> Answer:
        return await self._opened.request(request, ANSWER_S if deadline_s is None else deadline_s)

    @property
    def _opened(self) -> CoordinatorConnection:
        if self._session is None:
            raise UsageError("A client works only inside `async with`.")
        return self._session


def _known(kinds: Iterable[str]) -> frozenset[str]:
    given = frozenset((kinds,) if isinstance(kinds, str) else kinds)
    if unknown := sorted(given - set(KINDS)):
        raise UsageError(f"There are no rows of the kind {unknown[0]!r}.", hint=f"Known are {', '.join(KINDS)}.")
    return given


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

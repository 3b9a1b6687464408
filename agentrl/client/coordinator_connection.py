"""Keeps the connection of a client to the coordinator, with hello, requests and answers, through reconnections and
restarts.

Invariants:
- A request keeps its id when it is sent again after a reconnection, so the coordinator carries it out once.
- Every request ends at its deadline.
- A refusal carries its reason.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import socket
import time
from collections.abc import Callable

import msgspec

from agentrl import __version__
from agentrl.client.discovery import Target, what_to_do
from agentrl.errors import (
    AgentrlError,
    NoCoordinatorError,
    ProtocolError,
    VersionMismatchError,
    WaitTimeoutError,
    error_for,
)
from agentrl.protocol import wire
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.effects import EffectChangedError
from agentrl.protocol.messages import (
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    ClientHello,
    ErrorReply,
    FromCoordinator,
    Refused,
    Reply,
    Request,
    SnapshotEnd,
    SnapshotRow,
    Welcome,
    WhoAreYou,
)
from agentrl.transport.dealer import Dealer

RETRY_S = 0.05

Answer = tuple[Reply | SnapshotEnd, dict[str, msgspec.Raw]]
_log = logging.getLogger(__name__)


class _Pending:
    """A request that has no answer yet."""

    def __init__(self, request: Request, expires: float, answer: asyncio.Future[Answer]) -> None:
        self.request = request
        self.expires = expires
        self.answer = answer
        self.rows: dict[str, msgspec.Raw] = {}
        self.sent = False


class CoordinatorConnection:
    """One per client. Call `start`, await `opened`, call `request` any number of times, then `close`."""

    def __init__(self, target: Target, *, on_welcome: Callable[[Welcome], None] | None = None) -> None:
        self.target = target
        self.welcome: Welcome | None = None
        """The newest answer to our hello; it stays while the connection is lost."""
        self._on_welcome = on_welcome
        self._greeted = False
        self._greeted_at = 0.0
        self._refusal: AgentrlError | None = None
        self._changed = asyncio.Event()
        self._pending: dict[str, _Pending] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._dealer = Dealer(
            target.address,
            key=target.key,
            on_message=self._on_message,
            on_connected=self._say_hello,
            on_disconnected=self._on_disconnected,
            on_refused=self._on_key_refused,
        )

    @property
    def connected(self) -> bool:
        """Whether the coordinator answered our hello on the present connection."""
        return self._greeted

    def start(self) -> None:
        self._dealer.start()

    async def opened(self, timeout_s: float) -> Welcome:
        """The answer to our hello. Raises the error of the refusal, or NoCoordinatorError."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._greeted:
                    if self._refusal:
                        raise self._refusal
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise self._no_answer(timeout_s) from None
        assert self.welcome
        return self.welcome

    async def request(self, request: Request, timeout_s: float) -> Answer:
        """The answer to a request, with its deadline filled in. Raises the error that the coordinator sends."""
        if self._refusal:
            raise self._refusal
        loop = asyncio.get_running_loop()
        pending = _Pending(request, time.monotonic() + timeout_s, loop.create_future())
        if request.id in self._pending:
            raise ProtocolError(f"A request with the id {request.id} is under way already.")
        self._pending[request.id] = pending
        try:
            self._send_pending()
            async with asyncio.timeout(timeout_s):
                return await pending.answer
        except TimeoutError:
            raise self._too_late(pending, timeout_s) from None
        finally:
            del self._pending[request.id]

    def close(self) -> None:
        self._greeted = False
        if self._retry:
            self._retry.cancel()
        self._dealer.close()
        self._fail(NoCoordinatorError("The client was closed before the answer came."))

    # ---- hello ----

    def _say_hello(self) -> None:
        self._greeted = False
        self._dealer.send(
            wire.encode(
                ClientHello(PROTOCOL_MAJOR, PROTOCOL_MINOR, run=self.target.run, who=who_am_i(), version=__version__)
            )
        )

    def _on_welcome_message(self, welcome: Welcome) -> None:
        self.welcome = welcome
        self._greeted, self._greeted_at = True, time.monotonic()
        self._refusal = None
        for pending in self._pending.values():
            pending.sent = False
        self._changed.set()
        if self._on_welcome:
            self._on_welcome(welcome)
        self._send_pending()

    def _on_disconnected(self) -> None:
        self._greeted = False
        self._changed.set()

    def _on_key_refused(self, sentence: str) -> None:
        self._refuse(self.target.refused(sentence))

    def _refuse(self, why: AgentrlError) -> None:
        self._greeted = False
        self._refusal = why
        self._changed.set()
        self._fail(why)

    # ---- requests ----

    def _send_pending(self) -> None:
        if self._retry:
            self._retry.cancel()
            self._retry = None
        if not self._greeted or not self.welcome:
            return
        for pending in self._pending.values():
            if pending.sent or pending.answer.done():
                continue
            now = time.monotonic()
            # The deadline on the clock of the coordinator, which sent its time in the welcome.
            deadline_ct = self.welcome.now_ct + (now - self._greeted_at) + max(0.0, pending.expires - now)
            frame = wire.encode(msgspec.structs.replace(pending.request, deadline_ct=deadline_ct))
            pending.rows.clear()
            pending.sent = self._dealer.send(frame)
            if not pending.sent:
                self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._send_pending)
                return

    def _fail(self, why: AgentrlError) -> None:
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(why)

    def _on_message(self, frame: bytes) -> None:
        try:
            message = wire.decode_from_coordinator(frame)
        except ProtocolError as broken:
            if self._greeted:
                _log.warning("%s sent a message that this version cannot read: %s", self.target.what, broken)
            else:
                self._refuse(self._unreadable(broken))
            return
        self._handle(message)

    def _handle(self, message: FromCoordinator) -> None:
        match message:
            case Welcome():
                self._on_welcome_message(message)
            case Refused():
                self._refuse(error_for(message.code, message.message, message.hint))
            case WhoAreYou():
                # The coordinator sends one such request for each message from an unknown peer; one hello answers all of
                # them.
                if self._greeted:
                    self._say_hello()
            case SnapshotRow():
                if pending := self._pending.get(message.id):
                    pending.rows[message.key] = message.value
            case Reply() | SnapshotEnd():
                pending = self._pending.get(message.id)
                if pending and not pending.answer.done():
                    pending.answer.set_result((message, pending.rows))
            case ErrorReply():
                pending = self._pending.get(message.id)
                if pending and not pending.answer.done():
                    pending.answer.set_exception(_error_of(message))
            case _:
                _log.debug("%s sent %s, which is not for clients", self.target.what, type(message).__name__)

    # ---- errors ----

    def _no_answer(self, timeout_s: float) -> NoCoordinatorError:
        return NoCoordinatorError(
            f"The coordinator of {self.target.what} does not answer within {timeout_s:g} s.",
            hint=what_to_do(self.target),
        )

    def _too_late(self, pending: _Pending, timeout_s: float) -> AgentrlError:
        if not pending.sent or not self._greeted:
            return self._no_answer(timeout_s)
        verb = COMMANDS[pending.request.name].cli
        return WaitTimeoutError(
            f"The coordinator did not answer `agentrl {verb}` within {timeout_s:g} s; it may still execute it.",
            hint="`agentrl events` shows whether it did.",
        )

    def _unreadable(self, broken: ProtocolError) -> VersionMismatchError:
        return VersionMismatchError(
            f"The coordinator of {self.target.what} sent a message that protocol {PROTOCOL_MAJOR}.{PROTOCOL_MINOR} "
            f"(agentrl {__version__}) cannot read: {broken.message}",
            hint="Use the same version of agentrl on both sides.",
        )


def _error_of(reply: ErrorReply) -> AgentrlError:
    if reply.consent is not None:
        return EffectChangedError(reply.message, hint=reply.hint, consent=reply.consent)
    return error_for(reply.code, reply.message, reply.hint)


def who_am_i() -> str:
    """user@host, for the audit."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"

"""The embedded engine: the slot engine in a separate thread, with an asynchronous interface.

Invariants:
- only that thread uses the slot engine; other code sends it orders, which it executes between two steps;
- if the thread fails, every call fails and `failure` has the reason: an engine in an unknown state is replaced, not
  repaired;
- weights are read and checked outside of the thread, which goes on generating meanwhile.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from agentrl.engines import manifest as manifests
from agentrl.engines.canary import Agreement
from agentrl.engines.embedded.adapted_weights import KeptBase
from agentrl.engines.embedded.generation_request import Request, problem_of
from agentrl.engines.embedded.model_loading import load_verified, read_unpublished
from agentrl.engines.embedded.seen_images import SeenImages
from agentrl.engines.embedded.served_model import NO_IMAGES, ServedModel
from agentrl.engines.embedded.slot_scheduler import SlotEngine
from agentrl.engines.interface import (
    NO_BYTES,
    CallRefusedError,
    EngineCall,
    EngineError,
    EngineGoneError,
    Generated,
    Load,
    OnProgress,
    PauseMode,
)
from agentrl.engines.manifest import Manifest
from agentrl.images.patches import Patches
from agentrl.images.processing import ImageError

log = logging.getLogger("engine")
T = TypeVar("T")
CLOSE_WITHIN_S = 5.0
ORDER_WITHIN_S = 60.0
"""An order waits for one step at most; a longer step is a hang."""


class _Order(NamedTuple):
    """Work for the thread. It is done even if its caller no longer waits."""

    act: Callable[[], None]
    fail: Callable[[EngineError], None]

    def execute(self) -> None:
        try:
            self.act()
        except EngineError as refused:
            self.fail(refused)
        except BaseException as broken:
            self.fail(EngineGoneError(f"The engine does not run: {broken}."))
            raise


class EmbeddedEngine:
    """Implements `Engine` within the process. Its methods are called from one event loop.

    A round of computing costs nearly as much for few sequences as for many. While less than half of the slots are
    taken, rounds begin at least `gather_s` apart, so that calls which arrive one by one are computed together.
    """

    def __init__(self, *, slots: int, context: int, gather_s: float = 0.0, device: str = "cpu") -> None:
        self._device = device
        self._slots = SlotEngine(slots=slots, context=context)
        self._gather_s = gather_s
        self._next_round_at = 0.0
        self._orders: list[_Order] = []
        self._news = threading.Condition()
        self._closing = False
        self._updating = asyncio.Lock()
        self._base = KeptBase()
        self._seen = SeenImages()
        self.failure: BaseException | None = None
        """The error that ended the thread, if it ended."""
        self.steps = 0
        """Rounds of computing so far; a watchdog detects a hang by it."""
        self.agreement: Agreement | None = None
        """The canary result of the weights that serve."""
        self._thread = threading.Thread(target=self._work, name="engine-loop", daemon=True)

    # ---- start and end ----

    def start(self) -> None:
        self._thread.start()

    async def close(self) -> None:
        """Ends the thread; calls in flight end as aborted."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, CLOSE_WITHIN_S)

    @property
    def busy(self) -> bool:
        """Whether there is anything to compute; then `steps` grows."""
        return self._slots.busy and self.failure is None

    def check(self) -> None:
        """Raises the error that ended the thread, if it ended."""
        if self.failure is not None:
            raise self.failure

    # ---- the protocol ----

    async def generate(self, call: EngineCall, on_progress: OnProgress | None = None) -> Generated:
        """`on_progress` gets the output so far after every token, on the caller's loop."""
        began = time.monotonic()
        patches = await self._patches(call.images, call.version) if call.images else NO_IMAGES
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Generated] = loop.create_future()

        def end(request: Request) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, answer, request, began)

        def progress(request: Request) -> None:
            if on_progress is not None and not loop.is_closed():
                loop.call_soon_threadsafe(on_progress, _generated(request, began))

        request = Request(
            call.rid,
            list(call.ids),
            call.sampling,
            seed=secrets.randbits(63) if call.sampling.seed is None else call.sampling.seed,
            images=patches,
            on_token=None if on_progress is None else progress,
            on_end=end,
        )
        # An error of the order becomes the answer of the request, so the order itself is not awaited.
        if not self._hand_over(_Order(lambda: self._slots.submit(request, call.version), request.fail)):
            raise self._gone()
        try:
            done, _ = await asyncio.wait([answer], timeout=call.deadline_s)
            if not done:
                await self.abort(call.rid)
            return await answer
        except asyncio.CancelledError:
            self._hand_over(_Order(lambda: self._slots.abort(call.rid), lambda error: None))
            raise

    async def _patches(self, images: Mapping[int, bytes], version: int | None) -> Mapping[int, Patches]:
        """The patches of these images. Raises CallRefusedError for an image that the model cannot be shown, or whose
        number stands for another image."""
        how = (await self._order(lambda: self._slots.model_of(version))).processing
        if how is None:
            raise CallRefusedError("The model of this engine reads no images.")
        try:
            return await asyncio.to_thread(self._seen.patches, images, how)
        except ImageError as wrong:
            raise CallRefusedError(wrong.message) from wrong

    async def stream(self, call: EngineCall) -> AsyncIterator[Generated]:
        news: asyncio.Queue[Generated | None] = asyncio.Queue()
        generating = asyncio.create_task(self.generate(call, news.put_nowait))
        generating.add_done_callback(lambda _: news.put_nowait(None))
        try:
            while (sofar := await news.get()) is not None:
                yield sofar
            yield await generating
        finally:
            generating.cancel()

    async def score(
        self,
        ids: Sequence[int],
        *,
        deadline_s: float,
        version: int | None = None,
        images: Mapping[int, bytes] = NO_BYTES,
    ) -> list[float]:
        model = await self._order(lambda: self._slots.model_of(version))
        patches = await self._patches(images, version) if images else NO_IMAGES
        if len(ids) > self._slots.context or (ids and problem_of(ids, patches, model.vocabulary)):
            raise CallRefusedError(f"Only known ids can be scored, at most {self._slots.context} of them.")
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.to_thread(_score, model, list(ids), patches)
        except TimeoutError:
            raise EngineError(f"The sequence was not scored within {deadline_s:g} s.") from None

    async def abort(self, rid: str) -> None:
        await self._order(lambda: self._slots.abort(rid))

    async def pause(self, mode: PauseMode) -> None:
        await self._order(lambda: self._slots.pause(mode))

    async def resume(self) -> None:
        await self._order(self._slots.resume)

    async def release_memory(self) -> None:
        await self._order(self._slots.release_memory)

    async def restore_memory(self) -> None:
        await self._order(self._slots.restore_memory)

    async def update(self, path: str, version: int, manifest: Manifest | None = None) -> None:
        """Checks, loads and serves weights. `manifest` defaults to the directory's own. Raises WeightsRefusedError."""
        async with self._updating:
            directory = Path(path)
            model, agreement = await asyncio.to_thread(_load, directory, version, manifest, self._device, self._base)
            await self._order(lambda: self._slots.switch(model))
            self.agreement = agreement

    async def serve_unpublished(self, directory: Path, version: int) -> None:
        """Serves weights that no trainer published, so there is no canary to compare them with."""
        async with self._updating:
            model = await asyncio.to_thread(read_unpublished, directory, version, self._device)
            await self._order(lambda: self._slots.switch(model))

    async def pin(self, version: int, path: str = "") -> None:
        """Holds a version beside the current one, for calls that name it. Without `path` it must be held already."""
        async with self._updating:
            if not path:
                await self._order(lambda: self._slots.pin(self._slots.model_of(version)))
                return
            model, _ = await asyncio.to_thread(_load, Path(path), version, None, self._device, self._base)
            await self._order(lambda: self._slots.pin(model))

    async def unpin(self) -> None:
        await self._order(lambda: self._slots.pin(None))

    async def health(self) -> bool:
        return self.failure is None and self._thread.is_alive()

    async def load(self) -> Load:
        def look() -> Load:
            slots = self._slots
            return Load(
                version=None if slots.current is None else slots.current.version,
                versions_loaded=slots.versions_loaded,
                slots=len(slots.slots),
                running=len(slots.running),
                waiting=len(slots.waiting),
                context=slots.context,
                paused=slots.paused,
                generated_tokens=slots.generated_tokens,
            )

        return await self._order(look)

    # ---- between the loop and the thread ----

    async def _order(self, act: Callable[[], T]) -> T:
        """Lets the thread do the work between two steps, and returns the result."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        # A running future cannot be cancelled from the waiting side, so the thread can always set it.
        done.set_running_or_notify_cancel()
        if not self._hand_over(_Order(lambda: done.set_result(act()), done.set_exception)):
            raise self._gone()
        try:
            async with asyncio.timeout(ORDER_WITHIN_S):
                return await asyncio.wrap_future(done)
        except TimeoutError:
            raise EngineError(f"The engine's thread did not answer within {ORDER_WITHIN_S:g} s.") from None

    def _hand_over(self, order: _Order) -> bool:
        with self._news:
            if self._closing or self.failure is not None:
                return False
            self._orders.append(order)
            self._news.notify()
            return True

    def _work(self) -> None:
        """The main function of the thread."""
        try:
            with torch.inference_mode():
                while self._next_round():
                    self._slots.step()
                    self.steps += 1
        except Exception as broken:
            log.exception("the engine's thread ends")
            self.failure = broken
        finally:
            self._end_all()

    def _next_round(self) -> bool:
        """Executes orders until the next round is due; waits if there is nothing else to do. Returns False when the
        engine ends."""
        while self._next_orders():
            now = time.monotonic()
            if self._slots.busy and (now >= self._next_round_at or self._slots.half_taken):
                self._next_round_at = now + self._gather_s
                return True
        return False

    def _next_orders(self) -> bool:
        """Executes the orders; waits if there is neither an order nor a due round. Returns False when the engine
        ends."""
        with self._news:
            if not (self._orders or self._closing):
                self._news.wait(self._until_next_round())
            orders, self._orders = self._orders, []
            if self._closing:
                self._orders = orders
                return False
        for place, order in enumerate(orders):
            try:
                order.execute()
            except BaseException:
                # The thread ends with this error; the remaining orders get it too.
                self._orders = [*orders[place + 1 :], *self._orders]
                raise
        return True

    def _until_next_round(self) -> float | None:
        """Seconds until the next round is due; None if there is nothing to compute."""
        if not self._slots.busy:
            return None
        return 0.0 if self._slots.half_taken else max(0.0, self._next_round_at - time.monotonic())

    def _end_all(self) -> None:
        with self._news:
            self._closing = True
            orders, self._orders = self._orders, []
        if self.failure is None:
            for order in orders:
                order.execute()
            self._slots.abort("")
            return
        for order in orders:
            order.fail(self._gone())
        self._slots.fail_all(self._gone())

    def _gone(self) -> EngineGoneError:
        return EngineGoneError(f"The engine does not run: {self.failure or 'it was closed'}.")


def _load(
    directory: Path, version: int, manifest: Manifest | None, device: str, kept: KeptBase
) -> tuple[ServedModel, Agreement]:
    return load_verified(directory, version, manifest or manifests.read(directory), device, kept)


@torch.inference_mode()
def _score(model: ServedModel, ids: Sequence[int], images: Mapping[int, Patches]) -> list[float]:
    return model.scores([ids], images)[0]


def _generated(request: Request, began: float) -> Generated:
    return Generated(
        ids=list(request.output),
        log_probs=list(request.log_probs),
        versions=list(request.versions),
        finish=request.finish or "abort",
        cached_tokens=request.cached_tokens,
        seconds=time.monotonic() - began,
    )


def _settle(answer: asyncio.Future[Generated], request: Request, began: float) -> None:
    if answer.done():  # the caller was cancelled
        return
    if request.error is not None:
        answer.set_exception(request.error)
    else:
        answer.set_result(_generated(request, began))

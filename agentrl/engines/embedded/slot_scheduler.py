"""The slot engine: decides which sequence has which row of the cache, and what is computed next. One thread owns it.

Invariants:
- the cache of a row is that of its first `cached` ids under the row's weights; with new weights, sequences in flight
  are computed again;
- a row belongs to one request at a time;
- waiting requests are admitted in order, except that one may wait while a prompt that it shares is being computed;
- every request ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from agentrl.engines.embedded.generation_request import Request, problem_of
from agentrl.engines.embedded.served_model import Kept, Run, ServedModel
from agentrl.engines.embedded.token_sampling import sample
from agentrl.engines.interface import (
    CallRefusedError,
    EngineBusyError,
    EngineError,
    PauseMode,
    VersionNotServedError,
    WeightsRefusedError,
)

MAX_PROMPT_TOKENS = 1024
"""The most prompt tokens of one step. It limits how long generating requests wait for prompts."""
MIN_SHARED = 16
"""A shared prefix shorter than this is computed again: copying or waiting for it costs more."""
MAX_WAITING = 4096


@dataclass(slots=True, eq=False)
class Slot:
    """One row of the cache."""

    row: int
    request: Request | None = None
    model: ServedModel | None = None
    """The weights that its cache was computed with."""
    length: int = 0
    """The number of ids that it holds. They stay after the request has ended, for the next turn of the conversation."""
    cached: int = 0
    conversation: str = ""
    used_at: int = 0

    @property
    def pending(self) -> int:
        return self.length - self.cached

    def forget(self) -> None:
        self.model, self.length, self.cached, self.conversation = None, 0, 0, ""


class SlotEngine:
    """`step` computes one round; everything else happens between two rounds."""

    def __init__(self, *, slots: int, context: int) -> None:
        self.context = context
        self.slots = [Slot(row) for row in range(slots)]
        self.waiting: deque[Request] = deque()
        self.paused = False
        self.released = False
        """Whether the memory of its cache is released."""
        self.current: ServedModel | None = None
        self.pinned: ServedModel | None = None
        self.generated_tokens = 0
        self._kept: Kept | None = None
        """The cache. The first weights set its shape; before them nothing is computed."""
        # The last column differs from every prompt, so each comparison of prefixes finds an end.
        self._ids = torch.full((slots, context + 1), -1, dtype=torch.int64)
        self._requests: dict[str, Request] = {}
        self._clock = 0

    # ---- requests and orders ----

    @property
    def running(self) -> list[Request]:
        return [slot.request for slot in self.slots if slot.request is not None]

    @property
    def busy(self) -> bool:
        """Whether a step would compute anything."""
        return not self.paused and not self.released and bool(self._requests)

    @property
    def half_taken(self) -> bool:
        """Whether there are sequences for half of the slots, including waiting ones."""
        return 2 * len(self._requests) >= len(self.slots)

    @property
    def versions_loaded(self) -> tuple[int, ...]:
        held = [*(request.pinned for request in self._requests.values()), self.pinned, self.current]
        return tuple(sorted({model.version for model in held if model is not None}))

    def model_of(self, version: int | None) -> ServedModel:
        """The weights of a version; None is the current one. Raises an error if they are not held."""
        if self.current is None:
            raise EngineBusyError("The engine has no weights yet.")
        if version is None:
            return self.current
        for model in (self.current, self.pinned):
            if model is not None and model.version == version:
                return model
        raise VersionNotServedError(
            f"Version {version} is not held here; held are {', '.join(map(str, self.versions_loaded))}."
        )

    def submit(self, request: Request, version: int | None = None) -> None:
        """Accepts a request. Raises an EngineError for one that cannot be served."""
        model = self.model_of(version)
        if problem := request.sampling.problem():
            raise CallRefusedError(f"{problem[0].upper()}{problem[1:]}.")
        if wrong := problem_of(request.prompt, request.images, model.vocabulary):
            raise CallRefusedError(wrong)
        if len(request.prompt) >= self.context:
            raise CallRefusedError(
                f"The prompt has {len(request.prompt)} tokens; with a context of {self.context} nothing could follow."
            )
        if request.rid in self._requests:
            raise CallRefusedError(f"The request {request.rid} is under way already.")
        if len(self.waiting) >= MAX_WAITING:
            raise EngineBusyError(f"{MAX_WAITING} requests wait already.")
        if request.sampling.max_new_tokens == 0:
            request.end("length")
            return
        request.pinned = None if version is None else model
        self._requests[request.rid] = request
        self.waiting.append(request)

    def abort(self, rid: str) -> None:
        """Ends one request, or all for an empty `rid`; they return the tokens that they have."""
        for request in [one for one in self._requests.values() if rid in ("", one.rid)]:
            self._release(request)
            request.end("abort")

    def fail_all(self, error: EngineError) -> None:
        for request in list(self._requests.values()):
            self._release(request)
            request.fail(error)

    def pause(self, mode: PauseMode) -> None:
        self.paused = True
        if mode == "abort":
            self.abort("")
        elif mode == "retract":
            self._retract()

    def resume(self) -> None:
        self.paused = False

    def release_memory(self) -> None:
        """Releases the memory of the cache. Requests that arrive meanwhile wait, as in a paused engine."""
        if self.running or (self._requests and not self.paused):
            raise EngineBusyError(f"{len(self._requests)} calls are under way; their cache cannot be released.")
        self.released = True
        for slot in self.slots:
            slot.forget()
        self._kept = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def restore_memory(self) -> None:
        if self.released and self.current is not None:
            self._kept = self.current.new_rows(len(self.slots), self.context)
        self.released = False

    def switch(self, model: ServedModel) -> None:
        """Sets the current weights. Requests in flight continue with them; pinned requests keep their version."""
        self._fit(model)
        former, self.current = self.current, model
        for slot in self.slots:
            if slot.request is not None and slot.request.pinned is None:
                slot.model, slot.cached = model, 0
            elif slot.request is None and slot.model is former and former is not self.pinned:
                slot.forget()

    def pin(self, model: ServedModel | None) -> None:
        """Holds these weights beside the current ones, for calls that name their version; None releases them."""
        if model is not None:
            self._fit(model)
        self.pinned = model

    def _fit(self, model: ServedModel) -> None:
        """Checks that the weights have the shape of the first ones, which the cache has."""
        if self.current is None:
            self._kept = model.new_rows(len(self.slots), self.context)
        elif not model.fits(self.current):
            raise WeightsRefusedError(f"Version {model.version} is of another architecture than this engine's.")

    # ---- one round ----

    def step(self) -> None:
        """Admits requests, computes, and samples one token for every sequence whose ids are all computed."""
        if self.paused or self.released:
            return
        self._admit()
        for model in self._models_at_work():
            self._advance(model, [slot for slot in self.slots if slot.request is not None and slot.model is model])

    def _models_at_work(self) -> list[ServedModel]:
        models: list[ServedModel] = []
        for slot in self.slots:
            if slot.request is not None and slot.model is not None and slot.model not in models:
                models.append(slot.model)
        return models

    def _advance(self, model: ServedModel, slots: list[Slot]) -> None:
        runs = _plan(slots)
        by_row = {slot.row: slot for slot in slots}
        complete: list[Slot] = []
        lasts: list[int] = []
        at = -1
        for run in runs:
            at += run.size
            slot = by_row[run.row]
            slot.cached += run.size
            if slot.pending == 0:
                complete.append(slot)
                lasts.append(at)
        tokens = torch.cat([self._ids[run.row, run.start : run.start + run.size] for run in runs])
        if self._kept is not None:
            shown = [slot.request.images for slot in slots if slot.request is not None]
            self._kept.show({number: one for images in shown for number, one in images.items()})
        values = model.next_logits(self._kept, runs, tokens, lasts)
        if complete:
            self._take_tokens(model, complete, values)

    def _take_tokens(self, model: ServedModel, slots: list[Slot], values: torch.Tensor) -> None:
        requests = [slot.request for slot in slots if slot.request is not None]
        tokens, log_probs = sample(values, [request.draw() for request in requests])
        self._ids[[slot.row for slot in slots], [slot.length for slot in slots]] = torch.tensor(tokens)
        self.generated_tokens += len(tokens)
        for slot, request, token, log_prob in zip(slots, requests, tokens, log_probs, strict=True):
            if not -1e30 < log_prob <= 0.0:
                self._release(request)
                slot.forget()
                request.fail(EngineError(f"Version {model.version} gives {log_prob}, which is not a log-prob."))
                continue
            slot.length += 1
            request.accept(token, log_prob, model.version)
            self._after_token(slot, request, token)

    def _after_token(self, slot: Slot, request: Request, token: int) -> None:
        if request.on_token is not None:
            request.on_token(request)
        if token in request.sampling.stop_token_ids:
            self._release(request)
            request.end("stop")
        elif len(request.output) >= request.sampling.max_new_tokens or slot.length >= self.context:
            self._release(request)
            request.end("length")

    # ---- assigning slots ----

    def _admit(self) -> None:
        free = sum(slot.request is None for slot in self.slots)
        passed_over: list[Request] = []
        while free and self.waiting:
            request = self.waiting.popleft()
            if self._place(request):
                free -= 1
            else:
                passed_over.append(request)
        self.waiting.extendleft(reversed(passed_over))

    def _place(self, request: Request) -> bool:
        """Give the request the slot whose cache has the most of its prompt. Returns False if waiting a step is
        better."""
        model = request.pinned or self.current
        kept = self._kept
        assert kept is not None, "released memory admits nothing"
        ids = torch.tensor(request.ids)
        length = len(request.ids)
        common = self._common_prefixes(ids)
        best, shared, promised = None, 0, 0
        for slot, prefix in zip(self.slots, common, strict=True):
            if slot.model is not model:
                continue
            usable = kept.reusable(min(prefix, slot.cached, length - 1), slot.cached)
            # Of slots with equal lengths, one that continues this conversation is better, because it needs no copy.
            if usable > shared or (usable == shared and usable and slot.conversation == request.conversation):
                best, shared = slot, usable
            if slot.request is not None and kept.shares_prefixes:
                promised = max(promised, min(prefix, slot.length, length - 1))
        if promised - shared >= MIN_SHARED:
            return False
        slot, shared = self._choose(best, shared, request.conversation)
        slot.request, slot.model, slot.conversation = request, model, request.conversation
        slot.length, slot.cached = length, shared
        self._ids[slot.row, :length] = ids
        self._touch(slot)
        if not request.begun:
            request.begun, request.cached_tokens = True, shared
        return True

    def _choose(self, best: Slot | None, shared: int, conversation: str) -> tuple[Slot, int]:
        """The slot to use, and how much of it is computed: in place for the same conversation, else by a copy."""
        if best is not None and best.request is None and best.conversation == conversation:
            return best, shared
        oldest = min((slot for slot in self.slots if slot.request is None), key=lambda slot: slot.used_at)
        if best is None or shared < MIN_SHARED:
            return oldest, 0
        if best is not oldest:
            assert self._kept is not None
            self._kept.copy_prefix(best.row, oldest.row, shared)
        return oldest, shared

    def _common_prefixes(self, ids: torch.Tensor) -> list[int]:
        """The number of `ids` with which each slot begins."""
        differs = self._ids[:, : len(ids) + 1] != torch.nn.functional.pad(ids, (0, 1), value=-2)
        first: list[int] = differs.to(torch.uint8).argmax(dim=1).tolist()
        return [min(first[slot.row], slot.length) for slot in self.slots]

    def _release(self, request: Request) -> None:
        """Remove the request from all lists; its cache stays in its slot."""
        self._requests.pop(request.rid, None)
        slot = self._slot_of(request)
        if slot is not None:
            slot.request = None
            self._touch(slot)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _retract(self) -> None:
        """Put requests back to the front of the queue, oldest first; their cache is not kept."""
        began: list[Request] = []
        for slot in self.slots:
            if slot.request is not None:
                began.append(slot.request)
                slot.request = None
            slot.forget()
        order = {rid: place for place, rid in enumerate(self._requests)}
        self.waiting.extendleft(sorted(began, key=lambda request: order[request.rid], reverse=True))

    def _slot_of(self, request: Request) -> Slot | None:
        return next((slot for slot in self.slots if slot.request is request), None)

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.used_at = self._clock


def _plan(slots: Iterable[Slot]) -> list[Run]:
    """The runs to compute now: every generating sequence, and prompts up to the limit, at least a part of one."""
    single, longer = [], []
    room = MAX_PROMPT_TOKENS
    for slot in slots:
        if slot.pending == 1:
            single.append(Run(slot.row, slot.cached, 1))
        elif room > 0:
            count = min(slot.pending, room)
            # A run of one token is sorted below among the single ones.
            longer.append(Run(slot.row, slot.cached, count))
            room -= count
    pieces: Iterator[Run] = (run for run in longer if run.size == 1)
    return [*single, *pieces, *(run for run in longer if run.size > 1)]

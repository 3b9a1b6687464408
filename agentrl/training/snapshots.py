"""The weights of one moment, for a publication that is written while training goes on.

Invariants:
- a snapshot has the weights of the moment when it was taken: it is copied during the computation of the next step, and
  everything that changes weights first waits for the copy;
- numbers are converted to the published type, except buffers, which engines need unchanged.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentrl.files.pieces import threads

Weights = dict[str, Tensor]


class Snapshot:
    """Safe for two threads: one that writes the snapshot, and one that changes the weights."""

    def __init__(
        self,
        weights: Weights,
        *,
        narrow: Iterable[str],
        dtype: torch.dtype,
        stored: Callable[[Weights], Weights] = lambda weights: weights,
    ) -> None:
        """`narrow` names the weights that are converted to the published type, and `stored` gives all of them the names
        and shapes of files."""
        self.dtype = dtype
        self._live: Weights | None = weights
        self._narrow = frozenset(narrow)
        self._stored = stored
        self._named: Weights = {}
        self._copied: Weights = {}
        self._lock = threading.Lock()

    def take(self) -> Weights:
        """The copy, by the names of files. The first caller makes it, and others wait for it."""
        with self._lock:
            if self._live is not None:
                # Training waits for the copy, or engines wait for its files: several threads make it.
                with ThreadPoolExecutor(max_workers=threads(), thread_name_prefix="snapshot") as pool:
                    copies = pool.map(self._copy, self._live, self._live.values())
                    self._named = dict(zip(self._live, copies, strict=True))
                self._copied = self._stored(self._named)
                self._live = None
            return self._copied

    def named(self) -> Weights:
        """The copy by the names of the model."""
        self.take()
        return self._named

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        dtype = self.dtype if name in self._narrow and tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(device="cpu", dtype=dtype, copy=True)


@contextlib.contextmanager
def rounded(parameters: Iterable[Tensor], dtype: torch.dtype) -> Iterator[None]:
    """In this context the weights are rounded as engines get them. After it they have the same bits as before."""
    with torch.no_grad():
        own = [parameter.to_local() if isinstance(parameter, DTensor) else parameter for parameter in parameters]
        before = [one.clone() for one in own]
        for one in own:
            one.copy_(one.to(dtype))
    try:
        yield
    finally:
        with torch.no_grad():
            for one, kept in zip(own, before, strict=True):
                one.copy_(kept)

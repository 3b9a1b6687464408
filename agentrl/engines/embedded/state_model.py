"""Any other causal model of transformers, whose layers carry a state, with a separate cache object for each row.

A state belongs to the last computed token and cannot go back, so a row is continued where it ended or begun again. Rows
are computed one after another.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor

from agentrl.engines.embedded.attention_model import shapes
from agentrl.engines.embedded.decoder import scores_of
from agentrl.engines.embedded.served_model import NO_IMAGES, Run
from agentrl.images.patches import Patches


class States:
    """The cache object of each row."""

    shares_prefixes = False

    def __init__(self, rows: int) -> None:
        self.of_rows: list[Any] = [None] * rows

    def reusable(self, shared: int, cached: int) -> int:
        return shared if shared == cached else 0

    def show(self, images: Mapping[int, Patches]) -> None:
        """Does nothing, because these models read only text."""

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        self.of_rows[target] = copy.deepcopy(self.of_rows[source])


class StateModel:
    """Implements `ServedModel`."""

    processing = None

    def __init__(self, version: int, model: transformers.PreTrainedModel) -> None:
        self.version = version
        self._model: Any = model
        takes = inspect.signature(model.forward).parameters
        self._cache = next(name for name in ("past_key_values", "cache_params") if name in takes)

    @property
    def vocabulary(self) -> int:
        return int(self._model.config.get_text_config().vocab_size)

    def fits(self, other: object) -> bool:
        return isinstance(other, StateModel) and shapes(self._model) == shapes(other._model)

    def new_rows(self, rows: int, positions: int) -> States:
        return States(rows)

    def next_logits(self, kept: States, runs: Sequence[Run], ids: Tensor, wanted: Sequence[int]) -> Tensor:
        found: list[Tensor] = []
        at = 0
        for run in runs:
            own = ids[at : at + run.size].to(self._model.device)
            before = kept.of_rows[run.row] if run.start else None
            answer = self._model(input_ids=own[None], use_cache=True, logits_to_keep=1, **{self._cache: before})
            kept.of_rows[run.row] = getattr(answer, self._cache)
            at += run.size
            if at - 1 in wanted:
                found.append(answer.logits[0, -1])
        return torch.stack(found) if found else torch.empty(0, self.vocabulary, device=self._model.device)

    def scores(
        self, sequences: Sequence[Sequence[int]], images: Mapping[int, Patches] = NO_IMAGES
    ) -> list[list[float]]:
        return [self._scores(ids) if len(ids) > 1 else [] for ids in sequences]

    def _scores(self, ids: Sequence[int]) -> list[float]:
        whole = torch.tensor(ids, device=self._model.device)
        return scores_of(self._model(input_ids=whole[None], use_cache=False).logits[0, :-1], ids)

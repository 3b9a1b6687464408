"""Metrics of Steps as TensorBoard reads them; nothing is written where TensorBoard is not installed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger("curves")


class Curves:
    def __init__(self, directory: Path) -> None:
        self._writer: Any = None
        try:
            module = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            log.info("TensorBoard is not installed; metrics are in the Step documents only")
            return
        self._writer = module.SummaryWriter(str(directory), flush_secs=5)

    def add(self, step: int, metrics: Mapping[str, float], *, prefix: str = "train") -> None:
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(f"{prefix}/{name}", value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

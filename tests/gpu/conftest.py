"""Tests that need a GPU: `make test-gpu`, never part of `make test`. On a machine without a GPU they fail instead of
being skipped."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _there_is_one() -> None:
    assert torch.cuda.is_available(), "make test-gpu needs a GPU that torch can use"

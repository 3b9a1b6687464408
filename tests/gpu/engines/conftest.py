"""The engines on a GPU: SGLang with its own kernels, from an environment of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tests.engines.conftest import first, second  # noqa: F401 # fixtures are found by their names
from tests.engines.contract.fixtures import address, embedded_url, server, sglang_url, subject  # noqa: F401


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """The Python of an environment with SGLang for GPUs, installed as its documentation describes."""
    found = os.environ.get("SGLANG_PYTHON", "")
    assert found, "SGLANG_PYTHON must name the Python of an environment that SGLang is installed in"
    return found


@pytest.fixture(scope="session")
def sglang_arguments() -> Sequence[str]:
    """SGLang's own kernels, in float32; not all kernels support that."""
    kernels = ("--dtype", "float32", "--attention-backend", "triton")
    return (*kernels, "--mem-fraction-static", "0.3", "--enable-memory-saver")


@pytest.fixture(scope="session")
def tolerance() -> float:
    """GPU kernels add in another order than the reference."""
    return 1e-3

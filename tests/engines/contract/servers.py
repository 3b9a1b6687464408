"""A real SGLang server on processors, for tests."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
ON_PROCESSORS = (
    *("--device", "cpu", "--dtype", "float32", "--max-total-tokens", "20000"),
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-cuda-graph", "--disable-overlap-schedule"),
)
UP_WITHIN_S = 600.0
"""The server needs about 20 s on an idle machine."""


def python() -> str:
    """The Python of SGLang's environment. It must exist: a skipped comparison proves nothing."""
    assert PYTHON.exists(), f"{PYTHON} does not exist: run `make sglang-cpu`"
    return str(PYTHON)

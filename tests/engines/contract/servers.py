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
"""A third of a minute on a machine that has nothing else to do."""


def python() -> str:
    """That of the environment, which has to be there: a comparison that is skipped compares nothing."""
    assert PYTHON.exists(), f"{PYTHON} is not there: make sglang-cpu"
    return str(PYTHON)

"""The arguments of an SGLang server for a version of the weights. Pure."""

from __future__ import annotations

from typing import Literal

from agentrl.config.engines import Engines
from agentrl.config.server_arguments import gpus_of, ranks_of, value_of
from agentrl.engines.adapters import AdapterConfig


def arguments(
    engines: Engines, *, context: int, path: str, version: int, adapters: AdapterConfig | None = None
) -> list[str]:
    """The arguments of a server. `engines.args` only adds arguments; the configuration refuses those that the run
    decides. `adapters`: their configuration, if versions are adapters beside the model in `path`."""
    return [
        *(() if adapters is None else _for_adapters(adapters, on_processors=gpus_of(engines.kind, engines.args) == 0)),
        *("--model-path", path, "--weight-version", str(version)),
        *("--context-length", str(context), "--max-running-requests", str(engines.slots)),
        # Samplers send and receive ids; the canary serves as warm-up; a line per batch would be too much for a log.
        *("--skip-tokenizer-init", "--skip-server-warmup", "--log-level", "warning"),
        *engines.args,
    ]


def _for_adapters(adapters: AdapterConfig, *, on_processors: bool) -> list[str]:
    """All versions have adapters of the same rank and layers. One is in use, and the next one is loaded beside it."""
    return [
        # Only these of SGLang's kernels for adapters need no GPU.
        *(("--lora-backend", "torch_native") if on_processors else ()),
        *("--enable-lora", "--max-lora-rank", str(adapters.r), "--max-loras-per-batch", "2"),
        *("--lora-target-modules", *adapters.target_modules),
    ]


Way = Literal["files", "group", "ipc"]
"""How weights get into a running server: it reads their files, or gets them by a process group or by CUDA IPC."""


def way_of(engines: Engines) -> Way:
    """The way for this server. `auto` uses the proven way: the group for a server on processors, files for others."""
    if engines.weights != "auto":
        return engines.weights
    alone = gpus_of(engines.kind, engines.args) == 0 and ranks_of(engines.args) is not None
    return "group" if alone and not value_of(engines.args, "--quantization") else "files"

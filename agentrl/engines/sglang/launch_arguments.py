"""How an SGLang server is started for a version of the weights, and how exact it can be. Pure."""

from __future__ import annotations

import msgspec

from agentrl.config.data_plane import Engines
from agentrl.config.sglang_arguments import value_of
from agentrl.engines.manifest import MEAN_LIMIT, MEAN_LIMIT_HALF


def arguments(engines: Engines, *, context: int, path: str, version: int) -> list[str]:
    """What the run decides comes first; `engines.args` can only add to it, which the configuration takes care of."""
    return [
        *("--model-path", path, "--weight-version", str(version)),
        *("--context-length", str(context), "--max-running-requests", str(engines.slots)),
        # Samplers send and take ids; the canary is the warm-up; a line per batch is too much for a log.
        *("--skip-tokenizer-init", "--skip-server-warmup", "--log-level", "warning"),
        *engines.args,
    ]


class _Numbers(msgspec.Struct):
    """What `config.json` says of the numbers that a model is stored in."""

    dtype: str = ""
    torch_dtype: str = ""
    vocab_size: int | None = None
    text_config: _Numbers | None = None
    """Of a model that also sees or hears."""


def vocabulary(config: bytes) -> int | None:
    """How many ids a model has; None if its configuration does not say."""
    stored = msgspec.json.decode(config, type=_Numbers)
    return (stored.text_config or stored).vocab_size


def canary_limit(engines: Engines, config: bytes) -> float:
    """What the canary may differ by, given the numbers that the server computes with."""
    stored = msgspec.json.decode(config, type=_Numbers)
    asked = value_of(engines.args, "--dtype") or "auto"
    dtype = (stored.dtype or stored.torch_dtype) if asked == "auto" else asked
    return MEAN_LIMIT if dtype in ("float", "float32") else MEAN_LIMIT_HALF

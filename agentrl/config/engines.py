"""Defines the section `engines`: the programs that sample, and how they get weights.

Invariant: settings that a kind of engine does not support are refused when the file is read.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agentrl.config.field_types import Command, Flag, Gpus, Number, Positive, Seconds, Secret, Section, read_by


class Engines(Section):
    """Inference."""

    count: Positive = 1
    """How many engine units there are."""
    kind: Annotated[Literal["embedded", "sglang", "vllm", "openai"], read_by("trainer", "engine")] = "embedded"
    """`embedded` runs small models on processors, or on a GPU in float32; `sglang` and `vllm` start such servers on
    GPUs; `openai` calls a server that other people run, for evaluation only."""
    slots: Positive = 64
    """How many sequences one engine decodes at once."""
    threads: Positive = 1
    """Processor threads of one embedded engine."""
    gather_s: Annotated[Number, Field(ge=0, le=1)] = 0.0
    """How long an embedded engine waits for more calls between two rounds while less than half of its slots are used.
    Fewer rounds save processor time for the rest of the run, but each token takes longer by this time."""
    load_s: Seconds = 600.0
    """How long an engine may take to load a version, or a server to start with one; then it is replaced."""
    weights: Literal["auto", "files", "group", "ipc"] = "auto"
    """How a running SGLang server gets weights: it reads their files (`files`); or the weights are read and checked
    before calls are paused, and then sent by a process group (`group`) or on its GPUs (`ipc`). `auto`: `group` on
    processors, `files` on GPUs."""
    at_update: Literal["retract", "in_place", "abort"] = "retract"
    """What an SGLang server does with calls under way when it gets weights. `retract`: they go on after their state is
    computed again with the new weights. `in_place`: they go on with the state that the old weights computed, so their
    log-probs are not exact. `abort`: they end, and samplers continue them."""
    python: str = "{python}"
    """The Python of the environment that SGLang or vLLM is installed in; `{python}` is the Python of the run."""
    gpus: Gpus | None = None
    """GPUs of one server. Empty: as many as `args` require; none for an embedded engine, which can use one. A share
    such as 0.5 leaves the rest of the GPU to others."""
    takes_turns: Annotated[Flag, read_by("trainer", "engine")] = False
    """The engines release their device when the trainer has a batch, and take it back when the trainer waits for one.
    This is for one GPU that has no room for both at the same time."""
    args: Command = ()
    """More arguments of an SGLang or vLLM server. They may change how it computes, but not what it serves or to
    whom."""
    url: str = ""
    """With `kind: openai`: the address of an OpenAI-compatible API with `/completions`, such as `https://HOST/v1`."""
    token: Secret = None
    """With `kind: openai`: a reference to its key, `env:NAME` or `file:PATH`."""
    model: str = ""
    """With `kind: openai`: the name of the model in that API."""

"""Defines the section `engines`: the programs that sample, and how they get weights.

Invariant: settings that a kind of engine does not support are refused when the file is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from agentrl.config import server_arguments
from agentrl.config.field_types import Command, Flag, Gpus, Number, Positive, Seconds, Secret, Section, read_by

if TYPE_CHECKING:
    from agentrl.config.training import Training

Problem = tuple[tuple[str, ...], str]


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


def problems_of(engines: Engines, training: Training) -> Iterator[Problem]:
    """Contradictions between keys of this section, and with the trainer."""
    if problem := server_arguments.problem_of(engines.kind, engines.args):
        yield ("engines", "args"), problem
    elif engines.weights in ("group", "ipc") and server_arguments.ranks_of(engines.args) is None:
        yield (
            ("engines", "weights"),
            f"is {engines.weights}, which servers with --dp-size or --pp-size cannot: use files",
        )
    elif engines.kind in server_arguments.ALLOWED and (given := engines.gpus) is not None:
        wanted = server_arguments.gpus_of(engines.kind, engines.args)
        if given != wanted and not (wanted == 1 and 0 < given < 1):
            yield ("engines", "gpus"), f"is {given:g}, but the server computes on {wanted}: change its --tp-size"
    elif engines.kind == "embedded" and (engines.gpus or 0) > 1:
        yield ("engines", "gpus"), f"is {engines.gpus:g}: an embedded engine computes on one GPU, or on a share of one"
    saver = {"sglang": "--enable-memory-saver", "vllm": "--enable-sleep-mode"}.get(engines.kind, "")
    if engines.takes_turns and engines.kind == "openai":
        yield ("engines", "takes_turns"), "is for engines of this run; those of the kind openai are elsewhere"
    elif engines.takes_turns and saver and saver not in engines.args:
        yield ("engines", "takes_turns"), f"needs args: {saver}, with which a server can release its memory"
    elif engines.takes_turns and training.parallel.ranks > 1:
        yield ("engines", "takes_turns"), "is for a trainer of one process; training.parallel has several"
    if engines.kind != "openai":
        if engines.url or engines.token or engines.model:
            yield ("engines",), "has url, token or model, which are for kind: openai"
    elif not engines.url:
        yield ("engines", "url"), "is missing: kind: openai needs the address of a server, such as https://HOST/v1"
    elif not training.frozen:
        yield (
            ("engines", "kind"),
            "is openai: its answers have neither token ids nor log-probs, so nothing can be trained on them; "
            "set training.frozen: true to evaluate only",
        )

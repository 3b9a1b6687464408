"""Lists the arguments of an SGLang or vLLM server that a run file may add.

Invariants:
- The list has no argument that changes what is served, to whom, or the meaning of log-probabilities, because the run
  decides these.
- A new argument is added only after its effect is known.
"""

from __future__ import annotations

from collections.abc import Sequence

_SGLANG = frozenset(
    {
        # The number of devices of the server. The coordinator chooses the devices.
        *("--device", "--numa-node"),
        *("--tp-size", "--tensor-parallel-size", "--pp-size", "--dp-size", "--data-parallel-size", "--ep-size"),
        *("--enable-dp-attention", "--disable-custom-all-reduce", "--enable-p2p-check", "--nccl-port"),
        # Number formats and kernels.
        *("--dtype", "--quantization", "--kv-cache-dtype", "--enable-fp32-lm-head", "--enable-tf32-matmul"),
        *("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend", "--sampling-backend"),
        *("--enable-deterministic-inference", "--random-seed", "--lora-backend", "--max-lora-chunk-size"),
        # Memory and batches.
        *("--mem-fraction-static", "--max-total-tokens", "--max-queued-requests", "--max-prefill-tokens"),
        "--enable-memory-saver",
        *("--chunked-prefill-size", "--page-size", "--disable-radix-cache", "--radix-eviction-policy"),
        *("--schedule-policy", "--schedule-conservativeness", "--enable-mixed-chunk", "--disable-overlap-schedule"),
        *("--num-continuous-decode-steps", "--cuda-graph-max-bs", "--cuda-graph-bs", "--disable-cuda-graph"),
        *("--cuda-graph-backend-decode", "--cuda-graph-backend-prefill", "--enable-torch-compile"),
        # Logging and metrics.
        *("--log-level", "--enable-metrics", "--watchdog-timeout", "--soft-watchdog-timeout", "--decode-log-interval"),
    }
)
_VLLM = frozenset(
    {
        # The number of devices of the server. The coordinator chooses the devices.
        *("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--enable-expert-parallel"),
        "--disable-custom-all-reduce",
        # Number formats and kernels.
        *("--dtype", "--quantization", "--kv-cache-dtype", "--attention-backend", "--enforce-eager", "--seed"),
        # Memory and batches.
        *("--gpu-memory-utilization", "--max-num-batched-tokens", "--block-size", "--cpu-offload-gb"),
        *("--enable-prefix-caching", "--no-enable-prefix-caching", "--enable-chunked-prefill", "--async-scheduling"),
        *("--enable-sleep-mode", "--kv-cache-memory-bytes"),
    }
)
ALLOWED = {"sglang": _SGLANG, "vllm": _VLLM}
_PIPELINE = ("--pp-size", "--pipeline-parallel-size")
_COUNTS = (*_PIPELINE, "--tp-size", "--tensor-parallel-size", "--dp-size", "--data-parallel-size")


def problem_of(kind: str, arguments: Sequence[str]) -> str:
    """Why these arguments are not allowed in `engines.args` of engines of this kind; empty if they are."""
    allowed = ALLOWED.get(kind, frozenset())
    for argument in arguments:
        name = argument.partition("=")[0]
        if argument.startswith("-") and name not in allowed and not _is_number(argument):
            known = f"known are {', '.join(sorted(allowed))}" if allowed else "there are none"
            return f"{name} is not an argument that a run file may give engines of the kind {kind}; {known}"
    for name in _COUNTS:
        value = value_of(arguments, name)
        if value and not (value.isdecimal() and int(value) > 0):
            return f"{name} must be a whole number above 0, not {value!r}"
    return ""


def value_of(arguments: Sequence[str], name: str) -> str:
    """The last value of this argument; empty if it is missing."""
    found = ""
    for place, argument in enumerate(arguments):
        key, joined, value = argument.partition("=")
        if key == name:
            found = value if joined else next(iter(arguments[place + 1 : place + 2]), "")
    return found


def gpus_of(kind: str, arguments: Sequence[str]) -> int:
    """The number of GPUs of one engine."""
    if kind not in ALLOWED or value_of(arguments, "--device") == "cpu":
        return 0
    tensor = value_of(arguments, "--tp-size") or value_of(arguments, "--tensor-parallel-size") or "1"
    pipeline = next(filter(None, (value_of(arguments, name) for name in _PIPELINE)), "1")
    count = int(tensor) * int(pipeline)
    data = int(value_of(arguments, "--dp-size") or value_of(arguments, "--data-parallel-size") or "1")
    # With data-parallel attention the ranks share the GPUs of the tensor-parallel group.
    return count if "--enable-dp-attention" in arguments else count * data


def ranks_of(arguments: Sequence[str]) -> int | None:
    """The ranks that hold parts of the weights; None if a process group cannot reach all of them."""
    several = ("--pp-size", "--dp-size", "--data-parallel-size")
    if any(value_of(arguments, name) not in ("", "1") for name in several):
        return None
    return int(value_of(arguments, "--tp-size") or value_of(arguments, "--tensor-parallel-size") or "1")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

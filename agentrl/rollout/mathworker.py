"""A process that decides whether mathematical answers are equal: `python -m agentrl.rollout.mathworker`.

Invariants: one question a line in, one answer a line out, in order; a question gets a bounded amount of processor time
and memory, after which the process ends, so that whether a question can be decided does not depend on how busy the
host is. It ends when its standard input does.
"""

from __future__ import annotations

import json
import resource
import signal
import sys

from agentrl.rollout import mathematics

UNREADABLE, EQUAL, DIFFERENT = "unreadable", "equal", "different"
MEMORY_BYTES = 2 << 30
_OPEN_END = resource.RLIM_INFINITY


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its sampler decides when it ends
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        _limit_processor_time(question["processor_s"])
        print(json.dumps({"verdict": verdict(question["left"], question["right"])}), flush=True)


def verdict(left: str, right: str) -> str:
    """What can be said about two answers. What is too deep or too large for this process is unreadable."""
    try:
        return EQUAL if mathematics.same(mathematics.read(left), mathematics.read(right)) else DIFFERENT
    except Exception as wrong:  # noqa: BLE001 - the boundary: sympy raises whatever its many parts raise
        print(f"not decided: {type(wrong).__name__}: {str(wrong)[:200]}", file=sys.stderr, flush=True)
        return UNREADABLE


def _limit_processor_time(seconds: int) -> None:
    """From now on. The limit counts whole seconds of the whole process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, _OPEN_END))


if __name__ == "__main__":
    main()

"""The seed that one model call is sampled with.

Invariants:
- the seed depends only on the place of the call, so a run can be repeated;
- two calls of a run at different places have different seeds, so members of a group do not sample the same text;
- a call that continues a partial one does not repeat its random numbers.
"""

from __future__ import annotations

import hashlib

SEED_BITS = 53
"""Every JSON reader keeps a seed of this size exactly, also readers that use doubles."""


def sampling_seed(run_seed: int, *, task: str, round: int, seat: int, attempt: int, call: int, kept: int = 0) -> int:
    """`call` is the index of the call in its record, `kept` the number of tokens of the partial call."""
    # No number contains the separator, and the free text is last, so different places give different texts.
    place = "|".join(str(part) for part in (run_seed, round, seat, attempt, call, kept, task))
    digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - SEED_BITS)

"""The seed that one model call is sampled with.

Invariants: it depends on where the call stands and on nothing else, so a run can be repeated; two calls of a run that
differ in any of these coordinates have different seeds (members of a group must not sample the same text), and a call
that continues a partial one does not repeat its random numbers.
"""

from __future__ import annotations

import hashlib

SEED_BITS = 53
"""A seed survives every JSON reader, also those that keep numbers as doubles."""


def sampling_seed(run_seed: int, *, task: str, round: int, seat: int, attempt: int, call: int, kept: int = 0) -> int:
    """`call` is the index of the call within its record, `kept` the tokens that a partial call already gave."""
    # Separated by a character that no number has, with the free text last: different places give different texts.
    place = "|".join(str(part) for part in (run_seed, round, seat, attempt, call, kept, task))
    digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - SEED_BITS)

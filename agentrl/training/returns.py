"""Advantages and returns of single tokens, from the values of a critic and the rewards of the environment.

The columns hold the trained tokens of all records, record after record, each in the order of time.

Invariants:
- nothing passes from one record to another;
- the value after the last token of a record is 0, because its episode is over, even if it ended at a limit;
- the work grows with the logarithm of the longest record, not with a loop over its tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.policies.loss_settings import CriticRule


def generalised_advantages(values: Tensor, rewards: Tensor, record: Tensor, rule: CriticRule) -> Tensor:
    """GAE: the sum of later surprises, each weighed by (discount * trace) to the power of its distance in tokens."""
    surprise = rewards + rule.discount * _later(values, record, 1) - values
    # Each round doubles the distance that is summed over.
    distance, share = 1, rule.discount * rule.trace
    longest = int(torch.bincount(record).max()) if len(record) else 0
    while distance < longest:
        surprise = surprise + share * _later(surprise, record, distance)
        distance, share = 2 * distance, share * share
    return surprise


def _later(values: Tensor, record: Tensor, distance: int) -> Tensor:
    """The value of the token that comes `distance` later in the same record; 0 if there is none."""
    found = torch.zeros_like(values)
    same = record[distance:] == record[:-distance]
    found[:-distance] = torch.where(same, values[distance:], 0.0)
    return found

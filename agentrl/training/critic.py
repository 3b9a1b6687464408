"""The critic of PPO: a second model that predicts, before each token, the return of the rest of the record.

It has the policy's architecture with one number in place of the logits and its own learning rate, and begins as a copy
of the policy with all values 0.

Advantages and returns of single tokens follow from its values and the rewards of the environment. Columns hold the
trained tokens of all records, record after record, each in the order of time.

Invariants:
- a value belongs to a (record, token) pair and depends on the tokens before it alone, so packing changes nothing;
- values and returns of a batch are those of the critic before the first optimizer step;
- saved state is whole tensors by name, whatever the plan of parallelism is;
- nothing passes from one record to another;
- the value after the last token of a record is 0, because its episode is over, even if it ended at a limit;
- the work grows with the logarithm of the longest record, not with a loop over its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.policies.loss_settings import CriticRule
from agentrl.training.corrections import SumOverProcesses
from agentrl.training.micro_batch import MicroBatch
from agentrl.training.optimizers import OptimizerSet
from agentrl.training.scorers import Scorer
from agentrl.training.spread_tensors import like
from agentrl.training.step_parts import Facts


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


_WEIGHTS = "weights/"
_OPTIMIZER = "optimizer/"


class Valued(NamedTuple):
    values: Tensor
    """Before each pair's token."""


class ValueScorer(Scorer[Valued]):
    """Computes the value of each pair."""

    columns = Valued

    def scored(self, batch: MicroBatch) -> Valued:
        hidden = self.decoded(batch)[batch.asked_row, batch.asked_at]
        model: Any = self.model
        head = model.get_output_embeddings()
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = head(hidden.to(head.weight.dtype))[:, 0]
        return Valued(values[batch.asked])


def as_critic(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """The model with one number instead of logits, which is 0 at first. Changes it in place."""
    model.config.tie_word_embeddings = False
    untyped: Any = model
    head = torch.nn.Linear(model.config.get_text_config().hidden_size, 1, dtype=model.dtype, device=model.device)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    untyped.set_output_embeddings(head)
    return model


class Targets(NamedTuple):
    """Columns of pairs, one tensor for each micro-batch."""

    advantage: list[Tensor]
    value: list[Tensor]
    """The values before the step."""
    returns: list[Tensor]
    """The returns that the values should have predicted."""


class ValueLoss(NamedTuple):
    loss: Tensor
    """The loss of each pair."""
    held: Tensor
    """Where the clip removed the gradient."""


def value_loss(values: Tensor, before: Tensor, returns: Tensor, rule: CriticRule) -> ValueLoss:
    """Half the squared error, or that of the value clipped to within `clip` of the one before the step, whichever is
    larger."""
    free = 0.5 * (values - returns) ** 2
    if not rule.clip:
        return ValueLoss(free, torch.zeros_like(values, dtype=torch.bool))
    near = before + (values - before).clamp(-rule.clip, rule.clip)
    bound = 0.5 * (near - returns) ** 2
    return ValueLoss(torch.maximum(free, bound), (bound > free).detach())


def targets_of(
    values: Sequence[Tensor],
    penalty: Sequence[Tensor] | None,
    places: Sequence[tuple[Tensor, Tensor]],
    facts: Facts,
    rule: CriticRule,
    summed: SumOverProcesses,
) -> Targets:
    """`values` and `penalty` are columns of pairs; the penalty is taken from the reward of its token. `places`: the
    record and the order of each pair."""
    index = [facts.first[record] + order for record, order in places]
    record = torch.repeat_interleave(
        torch.arange(len(facts.first), device=facts.first.device), facts.pairs_of_record.long()
    )
    expected = _in_time(values, index, len(record))
    rewards = facts.rewards if penalty is None else facts.rewards - _in_time(penalty, index, len(record))
    advantages = generalised_advantages(expected, rewards.to(expected.dtype), record, rule)
    returns = advantages + expected
    if rule.normalise:
        advantages = _normalised(advantages, summed)
    advantages = torch.where(facts.capped[record], advantages.clamp(max=0.0), advantages)
    return Targets([advantages[one] for one in index], list(values), [returns[one] for one in index])


def _in_time(columns: Sequence[Tensor], index: Sequence[Tensor], length: int) -> Tensor:
    found = torch.zeros(length, dtype=columns[0].dtype, device=columns[0].device)
    for column, places in zip(columns, index, strict=True):
        found[places] = column
    return found


def _normalised(values: Tensor, summed: SumOverProcesses) -> Tensor:
    """With mean 0 and deviation 1 over the optimizer step."""
    count, total, squares = summed(torch.stack([values.new_tensor(len(values)), values.sum(), (values**2).sum()]))
    mean = total / count.clamp(min=1)
    deviation = (squares / count.clamp(min=1) - mean**2).clamp(min=0).sqrt()
    tensor: Tensor = (values - mean) / (deviation + 1e-8)
    return tensor


def required(critic: Critic | None) -> Critic:
    if critic is None:
        raise ConfigError(
            "The loss wants the advantages of a critic, and the trainer has none.", hint="Set training.advantage: gae."
        )
    return critic


class Critic:
    """The scorer with its optimizers. `scorer` may be wrapped; `model` is what is inside."""

    def __init__(self, scorer: Scorer[Valued], model: transformers.PreTrainedModel, optimizers: OptimizerSet) -> None:
        self.scorer = scorer
        self.model = model
        self.optimizers = optimizers

    def copy_policy(self, policy: Mapping[str, Tensor]) -> None:
        """Begins again as a copy of the policy with these weights, whose values are 0."""
        own = dict(self.model.named_parameters())
        heads = {id(parameter) for parameter in self._head.parameters()}
        with torch.no_grad():
            for name, tensor in policy.items():
                if name in own and id(own[name]) not in heads:
                    own[name].copy_(tensor)
            for parameter in self._head.parameters():
                parameter.zero_()

    @property
    def _head(self) -> torch.nn.Module:
        untyped: Any = self.model
        head: torch.nn.Module = untyped.get_output_embeddings()
        return head

    def tensors(self) -> dict[str, Tensor]:
        """Weights and state of the optimizers, as spread over the ranks."""
        weights = {f"{_WEIGHTS}{name}": one.detach() for name, one in self.model.named_parameters()}
        return weights | {f"{_OPTIMIZER}{name}": one for name, one in self.optimizers.tensors().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores whole tensors. Raises ConfigError if they are those of another model."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if parameter.is_meta:
                    continue
                whole = tensors.get(f"{_WEIGHTS}{name}")
                if whole is None or whole.shape != parameter.shape:
                    raise ConfigError(f"The critic of the checkpoint belongs to another model: {name} does not fit.")
                parameter.copy_(like(parameter, whole))
        length = len(_OPTIMIZER)
        state = {name[length:]: one for name, one in tensors.items() if name.startswith(_OPTIMIZER)}
        self.optimizers.load(state)

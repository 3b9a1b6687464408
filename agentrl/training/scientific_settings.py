"""The settings that decide what a step learns. The weights before each change of them are kept.

Settings of the sampler (limits on the time and turns of an episode), of single environments and of stages are not
included, because they are not stored with a task or a record. A rollback finds them in the history of the knobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentrl.protocol.knob import KnobValue, plain_value
from agentrl.store.documents import Task
from agentrl.training.trainer_knobs import Plan

Settings = dict[str, KnobValue]
_OF_SAMPLING = {"temperature": "temperature", "max_tokens": "max_tokens_per_call"}
"""Knobs, and their names in a task."""


def settings_of(plan: Plan, tasks: Iterable[Task]) -> Settings:
    """The settings of a step: its plan, and how the newest of its groups was sampled and closed."""
    settings: Settings = {
        "learning_rate": plan.learning_rate,
        "groups": plan.groups,
        "optimizer_steps": plan.optimizer_steps,
        "clip_low": plan.loss.clip_low,
        "clip_high": plan.loss.clip_high,
        "strategy": plan.freshness.strategy,
        "intervened_share": plan.intervened_share,
        "normalise": plan.normalise,
        "balance": plan.balance,
    }
    if plan.loss.decay is not None:
        decay = plan.loss.decay
        settings |= {"decay_epsilon": decay.epsilon, "decay_extra": decay.extra, "decay_cap": decay.cap}
        settings["decay_out_of_date_decay"] = decay.out_of_date_decay
    # The number of samples of a fork is not a setting.
    usual = [task for task in tasks if task.fork is None]
    newest = max(usual, key=lambda task: task.admitted_order, default=None)
    if newest is not None:
        settings["n"] = newest.n
        settings |= {name: newest.sampling[kept] for name, kept in _OF_SAMPLING.items() if kept in newest.sampling}
        settings |= newest.closing
    return settings


def change(before: Mapping[str, KnobValue], after: Mapping[str, KnobValue]) -> str:
    """`learning_rate 0.0005 -> 0.05`; empty if nothing changed. A setting that was not known before has not changed."""
    changed = [name for name in before if name in after and after[name] != before[name]]
    return ", ".join(f"{name} {plain_value(before[name])} -> {plain_value(after[name])}" for name in changed)

"""The settings that decide what a step learns, so that the weights before each change of them are kept.

Not those of the sampler (how long an episode may take, and its turns): they are not stored with a task or a record. A
rollback finds them in the history of the knobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentrl.store.documents import Task
from agentrl.training.trainer_knobs import Plan

Settings = dict[str, float | str]
_OF_SAMPLING = ("temperature", "max_tokens")


def settings_of(plan: Plan, tasks: Iterable[Task]) -> Settings:
    """Of a step: the plan, and how the newest of its groups was sampled."""
    found: Settings = {
        "learning_rate": plan.learning_rate,
        "groups": plan.groups,
        "optimizer_steps": plan.optimizer_steps,
        "clip_low": plan.loss.clip_low,
        "clip_high": plan.loss.clip_high,
        "strategy": plan.freshness.strategy,
        "intervened_share": plan.intervened_share,
    }
    if plan.loss.decay is not None:
        decay = plan.loss.decay
        found |= {"decay_epsilon": decay.epsilon, "decay_extra": decay.extra, "decay_cap": decay.cap}
        found["decay_out_of_date_decay"] = decay.out_of_date_decay
    # How often a fork is sampled is no setting.
    usual = [task for task in tasks if task.fork is None]
    newest = max(usual, key=lambda task: task.admitted_order, default=None)
    if newest is not None:
        found["n"] = newest.n
        found |= {name: newest.sampling[name] for name in _OF_SAMPLING if name in newest.sampling}
    return found


def change(before: Mapping[str, float | str], after: Mapping[str, float | str]) -> str:
    """`learning_rate 0.0005 -> 0.05`; empty if nothing changed. A setting that was not known before has not changed."""
    changed = [name for name in before if name in after and after[name] != before[name]]
    return ", ".join(f"{name} {before[name]} -> {after[name]}" for name in changed)

"""The settings of the steward: the configuration with the present values of knobs.

Invariant: settings can always be followed: the largest group can be admitted and can close.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.config import policy_rules
from agentrl.config.reward_watch import RewardWatch
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.images.run_images import limits_of
from agentrl.images.sources import USUAL, Limits
from agentrl.policies import admission_capacity, curriculum, group_closing, outcomes
from agentrl.policies.admission_capacity import Plan
from agentrl.policies.curriculum import Stage, Window
from agentrl.policies.group_closing import GroupRule
from agentrl.policies.sampling_rule import SamplingRule
from agentrl.store.documents import Task

ROUNDS_MAX = 3
KEPT_BY_GROUPS = frozenset(GroupRule().kept())
"""Knobs whose values a group keeps from its admission on."""
OF_ROWS = ("difficulty_least", "difficulty_most")
"""Knobs that each environment has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    weight: float = 1.0
    epochs: int = 1
    shuffle: int = 0
    agent: str = "tool_agent"
    scorer: str = "exact"
    answer_schema: str = "answer"
    servers: tuple[str, ...] = ()
    window: Window | None = None
    watchers: tuple[str, ...] = ()

    def with_knobs(self, values: Mapping[str, float]) -> EnvironmentSettings:
        """Settings with `difficulty_least` or `difficulty_most` changed, or both. Raises ConfigError if no row could be
        in the window."""
        if values.keys().isdisjoint(OF_ROWS):
            return self  # These knobs belong to a stage of the same name.
        window = self.window or Window(0.0, 1.0)
        window = Window(
            float(values.get("difficulty_least", window.least)), float(values.get("difficulty_most", window.most))
        )
        if window.least >= window.most:
            raise ConfigError(f"No row has a mean score from {window.least:g} to {window.most:g}.")
        return replace(self, window=window)


@dataclass(frozen=True, slots=True, kw_only=True)
class StewardSettings:
    environments: Mapping[str, EnvironmentSettings]
    n: int = 8
    temperature: float = 1.0
    max_tokens: int = 1024
    context: int = 8192
    max_in_flight: int = 256
    bound: int = 2
    bounds: Mapping[str, int] = field(default_factory=dict)
    """Staleness bounds of environments that have one of their own."""
    groups: int = 8
    publish_every: int = 1
    frozen: bool = False
    """True if nothing is trained, so sampling does not wait for a trainer."""
    group_s: float = 1800.0
    """How long after its admission a group waits for records that samplers have begun."""
    episode_s: float = 600.0
    call_s: float = 120.0
    """How long one model call may take."""
    tools_s: Mapping[str, float] = field(default_factory=dict)
    """How long one call may take, by tool server."""
    rounds_max: int = ROUNDS_MAX
    group_rule: GroupRule = field(default_factory=GroupRule)
    max_trained_count: int = 1
    retrain_after_s: float = 0.0
    """How long after a task was trained it may train again."""
    evaluation_samples: int = 1
    evaluation_rule: SamplingRule = field(default_factory=lambda: SamplingRule(temperature=0.0))
    evaluation_tasks: int = 64
    details_s: float = 0.0
    data_max_bytes: int = 0
    disk_reserve_bytes: int = 0
    images: Limits = USUAL
    """The limits on images of tasks."""
    stages: tuple[Stage, ...] = ()
    """The stages of the curriculum."""
    reward_watch: RewardWatch = field(default_factory=RewardWatch)
    stage: int = 0
    """The stage that the curriculum has reached."""
    hold: str = ""
    """Why nothing may be admitted, in words."""

    def __post_init__(self) -> None:
        group_closing.refuse_impossible(self.n, self.group_rule)
        if not self.frozen:
            admission_capacity.refuse_impossible(self.plan({}), [self.n])

    def plan(self, reported: Mapping[str, Any], environment: str = "") -> Plan:
        """The numbers of the admission formula. What the trainer reported overrides the file."""
        bounds = reported.get("bounds", self.bounds)
        return Plan(
            bound=int(bounds.get(environment, reported.get("bound", self.bound))),
            batch=admission_capacity.batch_records(int(reported.get("groups", self.groups)), [self.n]),
            max_concurrent=self.max_in_flight,
            publish_every=int(reported.get("publish_every", self.publish_every)),
        )

    @property
    def weights(self) -> dict[str, float]:
        """The weights of the environments in the present stage of the curriculum; 0 for those that it leaves out."""
        usual = {name: environment.weight for name, environment in self.environments.items()}
        return curriculum.weights(curriculum.stage_at(self.stages, self.stage), usual)

    def scorer_of(self, task: Task) -> str:
        """The scorer of a task that is admitted now. A fork is scored like its base."""
        if task.fork is not None or task.scorer_of_row:
            return task.scorer
        own = self.environments[task.environment].scorer if task.environment in self.environments else task.scorer
        return curriculum.scorer_of(self.stages, self.stage, task.environment, own, task.scorer)

    def sampling(self) -> dict[str, Any]:
        """The sampling settings that a Task keeps from its admission for training."""
        return {
            "temperature": self.temperature,
            "top_p": 1.0,
            "max_tokens_per_call": self.max_tokens,
            "context": self.context,
        }

    def sampling_of_evaluation(self) -> dict[str, Any]:
        return self.sampling() | self.evaluation_rule.kept()

    def with_knobs(self, values: Mapping[str, Any]) -> StewardSettings:
        """Settings with these values of knobs. Raises ConfigError if they could not be followed."""
        of_groups = {name: value for name, value in values.items() if name in KEPT_BY_GROUPS}
        of_parts: dict[str, dict[str, float]] = defaultdict(dict)
        for name, value in values.items():
            part, dot, key = name.rpartition(".")
            if dot:
                of_parts[part][key] = value
        return self.changed(
            group_rule=self.group_rule.with_kept(of_groups),
            environments={
                name: each.with_knobs(of_parts[name]) if name in of_parts else each
                for name, each in self.environments.items()
            },
            stages=tuple(
                each.ending_at(float(of_parts[part]["score"])) if (part := f"stage_{number}") in of_parts else each
                for number, each in enumerate(self.stages, 1)
            ),
            **{name: value for name, value in values.items() if name not in KEPT_BY_GROUPS and "." not in name},
        )

    def changed(self, **changes: Any) -> StewardSettings:
        """The changed settings. Raises ConfigError if they could not be followed."""
        return replace(self, **changes)


def from_config(config: RunConfig) -> StewardSettings:
    training, evaluation = config.training, config.evaluation
    freshness = policy_rules.freshness(config)
    return StewardSettings(
        environments={
            name: EnvironmentSettings(
                weight=float(environment.weight),
                epochs=environment.epochs,
                shuffle=environment.shuffle,
                agent=environment.agent,
                scorer=environment.scorer,
                answer_schema=environment.answer_schema,
                servers=tuple(environment.tools),
                window=policy_rules.window(environment),
                watchers=tuple(environment.watchers),
            )
            for name, environment in config.environments.items()
        },
        n=config.sampling.n,
        temperature=float(config.sampling.temperature),
        max_tokens=config.sampling.max_tokens,
        context=config.sampling.context,
        max_in_flight=config.rollout.max_in_flight,
        bound=freshness.oldest,
        bounds={name: own.oldest for name, own in freshness.of_environments.items()},
        groups=training.groups,
        publish_every=training.publish_every,
        frozen=training.frozen,
        # Attempts follow one another, and each may take the time of a whole episode.
        group_s=outcomes.longest_group_s(float(config.rollout.episode_s)),
        episode_s=float(config.rollout.episode_s),
        call_s=float(config.rollout.call_s),
        tools_s={name: float(server.timeout_s) for name, server in config.tools.items()},
        group_rule=policy_rules.group_rule(config),
        max_trained_count=training.max_trained_count,
        retrain_after_s=float(training.retrain_after_s),
        evaluation_samples=evaluation.samples,
        evaluation_rule=SamplingRule.of({name: getattr(evaluation, name) for name in SamplingRule.__struct_fields__}),
        evaluation_tasks=evaluation.tasks,
        details_s=float(config.retention.details_s),
        data_max_bytes=config.retention.data_max,
        disk_reserve_bytes=config.retention.disk_reserve,
        images=limits_of(config),
        stages=policy_rules.stages(config),
        reward_watch=config.reward_watch,
    )

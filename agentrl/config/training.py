"""Defines the section of the trainer, except the keys of its loss.

Invariant: a key of the trainer has the same name here and in the rule that is made from it (`policy_rules`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agentrl.config.curves import CurvesSettings
from agentrl.config.field_types import (
    LONGEST_S,
    NEXT_STEP,
    NO_UNIT,
    OF_BATCHES,
    OF_GROUPS,
    SCIENTIFIC_STEP,
    Bytes,
    Flag,
    Gpus,
    Least,
    Natural,
    Number,
    Positive,
    Section,
    Share,
    named,
    read_by,
)
from agentrl.config.lora import Lora
from agentrl.config.loss_keys import DecaySettings, LossKeys
from agentrl.config.parallel import Parallel
from agentrl.policies.freshness import Strategy
from agentrl.policies.learning_rates import ScheduleKind
from agentrl.policies.outcomes import LimitRule

_AT_CLOSING = read_by("steward", "sampler")
"""Settings that decide when groups close, and with which advantages."""
_OF_A_JOB = NO_UNIT
"""Settings of `agentrl train` on demonstrations."""
_Rate = Annotated[Number, Field(gt=0, le=10)]


class RecordedEpisodes(Section):
    """Scored records of a run on this host, whose own tokens are trained. Its MongoDB must be up."""

    filter: str = ""
    """A query for the records, in the query language of lists, such as `score >= 1 and review = golden`; empty: no
    records."""
    run: str = ""
    """The name of the run; empty: this one."""
    most: Positive = 10_000
    """The most records; the newest ones are taken."""


Roles = Annotated[tuple[Literal["assistant", "tool", "user"], ...], Field(min_length=1)]


class Warmup(Section):
    """Supervised steps before the first publication, on demonstrations."""

    dataset: str = ""
    """Demonstrations (rows with `messages`), in any format of datasets; empty: none."""
    recorded: RecordedEpisodes = RecordedEpisodes()
    """Records of another run with the same tokenizer, mixed with the demonstrations."""
    roles: Roles = ("assistant",)
    """The roles whose messages train in demonstrations."""
    steps: Natural = 0
    """How many steps."""
    batch: Positive = 64
    """Demonstrations of one step."""
    learning_rate: _Rate = 4e-3
    """Learning rate of these steps."""


class AdamWSettings(Section):
    """How AdamW averages gradients."""

    beta1: Annotated[Number, Field(ge=0, lt=1)] = 0.9
    """How slowly the average of gradients changes."""
    beta2: Annotated[Number, Field(ge=0, lt=1)] = 0.95
    """How slowly the average of their squares changes."""
    eps: Annotated[Number, Field(gt=0, le=1)] = 1e-8
    """Added to the root of the squares."""


class ScheduleSettings(Section):
    """How the learning rate changes with the steps."""

    kind: ScheduleKind = "constant"
    """`constant`, or falling to its lowest share along a line or half a cosine."""
    rise: Natural = 0
    """Steps in which the rate rises evenly to the full one."""
    steps: Natural = 0
    """The step at which the rate reaches its lowest share; 0: `training.steps`."""
    lowest: Share = 0.0
    """The share of the learning rate that is left from that step on."""


class OverlongSettings(Section):
    """The penalty on the score of a record that generated almost too many tokens."""

    begins: Natural = 0
    """A record with at most this many generated tokens has no penalty."""
    full: Natural = 0
    """A record with at least this many generated tokens has the whole penalty; between the two limits it grows
    evenly."""
    penalty: Annotated[Least, named("overlong_penalty", OF_GROUPS)] = 0.0
    """How much of its score a record with `overlong.full` tokens or more loses; 0: nothing."""


class CriticSettings(Section):
    """The critic: a second model that predicts the reward of the rest of a record."""

    learning_rate: Annotated[Number, Field(ge=0, le=10)] = 0.0
    """Its learning rate; 0: the value of `learning_rate` at the start."""
    discount: Share = 1.0
    """The factor by which a reward counts less for each token that it comes later."""
    trace: Share = 0.95
    """How far an advantage looks beyond the next value (λ): 0: not at all; 1: to the end of the record."""
    clip: Least = 0.2
    """How far a value may move within a step before its gradient is cut; 0: any distance."""
    normalise: Flag = True
    """Advantages get mean 0 and deviation 1 over the tokens of an optimizer step."""
    alone: Natural = 0
    """Steps at the beginning in which only the critic learns."""


class PublicationSettings(Section):
    """How weights are published to engines."""

    precision: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """The precision of published weights. `auto`: bfloat16, or float16 if `training.precision` is float16; float32 for
    the model of `build`."""
    adapters: Literal["auto", "merged", "apart"] = "auto"
    """With `lora`: versions are whole weights (`merged`), or only the adapters, beside a base that engines get once
    (`apart`). `auto`: `apart` for embedded engines, `merged` for servers."""
    shard: Annotated[Bytes, Field(ge=1 << 20)] = 512 << 20
    """The most bytes of one file, unless a single tensor is larger."""
    delta: Literal["auto", "always", "never"] = "auto"
    """Whether the difference to the previous version is written too, for hosts that have that version. `auto`: only if
    the run is on hosts that do not share its directory."""


class Training(LossKeys):
    """The trainer."""

    frozen: Annotated[Flag, read_by("steward", "trainer")] = False
    """True: nothing is trained. The trainer publishes the initial weights and ends."""
    steps: Natural = 0
    """Steps after which the run is complete; 0 means until the end of the data."""
    groups: Annotated[Positive, OF_BATCHES, read_by("steward", "trainer")] = 8
    """Groups of one step."""
    optimizer_steps: Annotated[Positive, SCIENTIFIC_STEP] = 1
    """Optimizer steps of one step, each over a part of its groups. A batch with fewer groups than that takes one
    optimizer step for each group."""
    demonstrations: Annotated[str, _OF_A_JOB] = ""
    """With `sft`: demonstrations (rows with `messages`), in any format of datasets; relative to the run file."""
    recorded: Annotated[RecordedEpisodes, _OF_A_JOB] = RecordedEpisodes()
    """With `sft`: records to learn from, alone or mixed with `demonstrations`."""
    roles: Annotated[Roles, _OF_A_JOB] = ("assistant",)
    """With `sft`: the roles whose messages train in demonstrations. In records, the model's own text trains."""
    batch: Annotated[Positive, _OF_A_JOB] = 64
    """With `sft`: demonstrations and records of one step."""
    advantage: Annotated[Literal["grpo", "leave-one-out", "gae"], read_by("steward", "sampler", "trainer")] = "grpo"
    """The baseline of scores: the mean of the group (`grpo`), the mean of the others in it (`leave-one-out`), or the
    prediction of a critic for each token (`gae`)."""
    critic: CriticSettings = CriticSettings()
    """The critic of `gae`."""
    divide_by_std: Annotated[Flag, _AT_CLOSING] = True
    """Advantages of `grpo` are divided by the standard deviation of their group."""
    normalise: Annotated[Flag, OF_BATCHES] = False
    """Advantages are normalised again over the trained tokens of each environment in a batch."""
    balance: Annotated[Flag, OF_BATCHES] = False
    """The positive or the negative advantages of a batch shrink, until both have the same sum over the tokens; after
    `normalise`."""
    limits: Annotated[LimitRule, OF_GROUPS, _AT_CLOSING] = "cap"
    """The advantage of a record that reached a limit (turns, tokens, repetition): at most 0 (`cap`), none (`mask`), or
    unchanged (`keep`)."""
    min_range: Annotated[Least, OF_GROUPS, _AT_CLOSING] = 0.0
    """A group whose scores span no more than this has no signal."""
    sign_clip: Annotated[Flag, OF_GROUPS, _AT_CLOSING] = False
    """Records that score at most 0.5 never get a positive advantage, and others never a negative one."""
    cap_malformed: Annotated[Flag, OF_GROUPS, _AT_CLOSING] = False
    """Records that continued after malformed calls never get a positive advantage."""
    overlong: Annotated[OverlongSettings, _AT_CLOSING] = OverlongSettings()
    """A soft penalty for records that are almost too long, before the baseline of their group."""
    turn_spread: Annotated[Share, OF_GROUPS, _AT_CLOSING] = 0.0
    """How much the number of turns adds to the scores of a group, from the best to the worst; 0: nothing."""
    turn_discount: Annotated[Share, _AT_CLOSING] = 1.0
    """If scorers give rewards to turns: the factor by which a reward counts less for each turn that it comes later."""
    lora: Lora = Lora()
    """Adapters that are trained instead of all weights."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` trains the inner matrices of the network with Muon, and the rest with AdamW."""
    adamw: AdamWSettings = AdamWSettings()
    """How AdamW averages gradients."""
    weight_decay: Annotated[Number, Field(ge=0, le=10)] = 0.0
    """How fast weights shrink, times the learning rate."""
    decay_all: Flag = False
    """The weights of norms, biases and embeddings shrink too."""
    schedule: ScheduleSettings = ScheduleSettings()
    """How the learning rate changes with the steps."""
    learning_rate: Annotated[Number, Field(ge=0, le=10), SCIENTIFIC_STEP] = 1e-6
    """Learning rate."""
    intervened_share: Annotated[Share, SCIENTIFIC_STEP] = 0.05
    """The greatest share of forks among the records that recent steps trained."""
    max_gradient_norm: Annotated[Number, Field(gt=0, le=1_000)] = 1.0
    """A gradient with a larger norm is scaled down."""
    bound: Annotated[Natural, NEXT_STEP, read_by("steward", "trainer")] = 2
    """How many publications old the oldest trained token of a record may be."""
    strategy: Annotated[Strategy, SCIENTIFIC_STEP, read_by("steward", "trainer")] = "drop"
    """What happens at the bound: records are dropped, waited for, or trained with tighter clips."""
    hard_bound: Annotated[Natural, NEXT_STEP, read_by("steward", "trainer")] = 0
    """Under `decay`: the bound that applies instead of `bound`; 0: `bound` itself."""
    wait_limit_s: Annotated[Number, Field(ge=0, le=LONGEST_S), NEXT_STEP, read_by("steward", "trainer")] = 300.0
    """Under `wait`: how long a step is held back for records that it would make too old."""
    decay: DecaySettings = DecaySettings()
    """The bounds under `decay`."""
    publish_every: Annotated[Positive, NEXT_STEP, read_by("steward", "trainer")] = 1
    """Steps between two publications."""
    publication: PublicationSettings = PublicationSettings()
    """How weights are published to engines."""
    checkpoint_every: Annotated[Positive, NEXT_STEP] = 50
    """Steps between two checkpoints."""
    keep_checkpoints: Annotated[Positive, NEXT_STEP] = 3
    """Unpinned checkpoints that are kept."""
    dumps: Natural = 0
    """How many of the newest batches are kept in `RUN_DIR/dumps`; `agentrl train --from-dump` trains them again."""
    curves: CurvesSettings = CurvesSettings()
    """Where the metrics of steps and evaluations are written to, besides the Step documents."""
    max_trained_count: Annotated[Positive, read_by("steward", "trainer")] = 1
    """How often a task may be trained, as long as a record of it is within the bound."""
    retrain_after_s: Annotated[Number, Field(ge=0, le=86_400), read_by("steward")] = 0.0
    """Seconds between two trainings of a task."""
    min_valid: Annotated[int, Field(strict=True, ge=0, le=1_024), _AT_CLOSING] = 0
    """Scored members that a group needs; 0 means half of it, at least 2."""
    threads: Positive = 1
    """Processor threads of the trainer."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """The precision in which a step is computed. Weights and optimizer state stay in float32. With `float16` the loss
    is scaled by a factor that adapts itself."""
    recompute: Literal["none", "selective", "full"] = "none"
    """What the backward pass computes again to save memory: norms and activation functions (`selective`: little extra
    work), or whole layers (`full`: a third more work)."""
    gpus: Annotated[Gpus | None, NO_UNIT] = None
    """GPUs of the trainer, for all its ranks together. Empty: one for each rank if the engines compute on GPUs. 0.5 is
    half a GPU."""
    compile: Flag = False
    """On GPUs: compile the layers. The first steps take a minute longer, later ones less."""
    parallel: Parallel = Parallel()
    """How the trainer is spread over processes."""
    gather: Literal["float32", "bfloat16"] = "float32"
    """The precision in which ranks send their parts of weights to each other; gradients are always summed in
    float32."""
    offload: Flag = False
    """On GPUs: weights, gradients and optimizer state stay in the memory of the host, and one layer after the other is
    moved to the GPU."""
    tokens_per_batch: Positive = 16_384
    """Packed tokens of one forward pass."""
    random: Annotated[Natural, read_by("sampler", "trainer")] = 0
    """The seed of initial weights and sampling."""
    warmup: Warmup = Warmup()
    """Supervised steps before the first publication."""

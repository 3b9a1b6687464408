"""Contains the table of built-in alert rules: metric or condition, threshold, clear value, hold time, severity, repair
command.

Invariants:
- A healthy run raises no alert.
- Every finding has evidence and an `agentrl` command that repairs the cause or shows more.
- A condition that needs more than a threshold is a function in `rule_functions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agentrl.control.alerts import builtin_conditions as functions
from agentrl.control.alerts import reward_conditions
from agentrl.control.alerts.builtin_conditions import end_evidence, reason, units_at_work
from agentrl.control.alerts.rule_types import Condition, Measured, OutOfBand, Rule, RunSnapshot, Threshold, trainers
from agentrl.formatting.amounts import counted, size
from agentrl.formatting.row_text import clock_text
from agentrl.formatting.sentences import ended
from agentrl.protocol.rows import HostRow, RunRow, Severity, UnitRow, UnitState
from agentrl.telemetry import learning_metrics as of
from agentrl.telemetry.data_plane_metrics import CANARY_LARGEST, CANARY_OVER_LIMIT, CHECKPOINTS_DAMAGED, WARMUP_UNUSED

GIB = 1 << 30
LAST_LINE_CHARS = 300
REWARD_GAIN = 0.05
"""If the reward rises by more than this, lower entropy and longer records are the result of learning: no alert."""
LOWER_RATE = "agentrl tune learning_rate"
PAUSE = "agentrl pause {unit}"
STARTING = (UnitState.STARTING, UnitState.STOPPING, UnitState.BACKOFF)


def default_rules(disable: Iterable[str] = (), *, memory_window_s: float = 3600.0) -> list[Rule]:
    """All built-in rules except the disabled ones, in the order of `BUILT_IN_RULES` of the configuration."""
    # Half a window (half an hour): for some minutes the end of a warm-up looks like a leak.
    memory = Condition("unit-memory-grows", functions.memory_grows, hold_s=memory_window_s / 2)
    rules = (*UNIT_RULES, memory, *HOST_RULES, *RUN_RULES, *DATA_RULES, *LEARNING_RULES, *REWARD_RULES)
    return [rule for rule in rules if rule.name not in set(disable)]


# ---- units ----


def _units(snapshot: RunSnapshot) -> Mapping[str, UnitRow]:
    return snapshot.units


def _log_of_the_end(found: Measured[UnitRow]) -> str:
    """The command that shows the log of the incarnation that ended. A unit that was never started has no log."""
    unit, run = found.row, found.snapshot.run
    if unit.could_not_start:
        # A missing program is a fault of the run file; a host without room is not.
        temporary = unit.state is UnitState.BACKOFF or run is None
        return "agentrl doctor" if temporary else f"agentrl config check --run {run.name if run else ''}"
    started_again = unit.state not in (UnitState.FATAL, UnitState.BACKOFF)
    return f"agentrl logs {found.name}{' --previous' if started_again else ''}"


def _last_line(found: Measured[UnitRow]) -> str:
    """The last line that the dead incarnation logged. Most programs write the error there."""
    incident = found.snapshot.incidents.get(f"{found.name}.{found.row.incarnation}")
    lines = [line.strip() for line in incident.tail if line.strip()] if incident else []
    return f"last line of its log: {lines[-1][:LAST_LINE_CHARS]}" if lines else ""


def _end_and_state(found: Measured[UnitRow]) -> Iterator[str]:
    yield from end_evidence(found.row)
    yield f"now: {found.row.state}, {reason(found.row)}"


UNIT_RULES = (
    Threshold(
        "unit-fatal",
        subjects=_units,
        value=lambda unit: unit.state is UnitState.FATAL,
        sentence=lambda found: f"{found.name} is fatal and will not be started again: {ended(reason(found.row))}",
        evidence=lambda found: (
            *end_evidence(found.row),
            _last_line(found),
            f"After the cause is removed: agentrl restart {found.name}",
        ),
        cure=_log_of_the_end,
        severity=Severity.PAGE,
        ends_at_once=True,
    ),
    Threshold(
        "unit-restarting",
        subjects=_units,
        value=lambda unit: unit.deaths_in_window if unit.desired and unit.state is not UnitState.FATAL else None,
        above=2,
        clear=1,
        sentence="{subject} keeps dying: {value} deaths in the restart window.",
        evidence=_end_and_state,
        cure=_log_of_the_end,
    ),
    Threshold(
        "unit-never-ready",
        subjects=_units,
        value=lambda unit: (
            unit.attempts if unit.desired and unit.state in STARTING and unit.deaths_in_window == 0 else None
        ),
        above=2,
        sentence="{subject} was started {value} times and never became ready.",
        evidence=_end_and_state,
        cure=_log_of_the_end,
        hold_s=20.0,
    ),
    Threshold(
        "unit-lost",
        subjects=_units,
        value=lambda unit: unit.state is UnitState.LOST,
        sentence=lambda found: f"{found.name} is lost: its host {found.row.host or '(unknown)'} does not answer.",
        evidence=lambda found: (
            f"{found.name}.{found.row.incarnation}, pid {found.row.pid}: {reason(found.row)}",
            "It continues when its host answers again. Use the command only if you know that the process is dead.",
        ),
        cure="agentrl stop {subject} --force",
        hold_s=5.0,
        explained_by=lambda found: (found.row.host,),
    ),
    Threshold(
        "unit-hung",
        subjects=_units,
        value=lambda unit: unit.state is UnitState.SUSPECT,
        sentence=lambda found: f"{found.name} may hang: {ended(reason(found.row))}",
        evidence=lambda found: (
            f"its last report: {f'phase {found.row.phase}, ' if found.row.phase else ''}"
            f"progress {found.row.progress}, status {found.row.status or '(none)'}",
        ),
        cure="agentrl stacks",
        hold_s=30.0,
    ),
    Condition("unit-pending", functions.pending, hold_s=60.0),
    Condition("unit-problem", functions.problems, severity=Severity.PAGE),
    Condition("errors-repeat", functions.errors_repeat),
)

# ---- hosts ----


def _hosts(snapshot: RunSnapshot) -> Mapping[str, HostRow]:
    return snapshot.hosts


HOST_RULES = (
    Condition("host-lost", functions.host_lost, severity=Severity.PAGE),
    Threshold(
        "host-disk-low",
        subjects=_hosts,
        # 0 means that the agent has not reported yet; for a disk that is completely full `host-cannot-write` fires.
        value=lambda host: host.disk_free_bytes or None,
        below=2 * GIB,
        clear=3 * GIB,
        sentence="The disk of {subject} is nearly full: {value} left.",
        evidence=lambda found: (f"alert below {size(2 * GIB)}, ends at {size(3 * GIB)}",),
        cure="agentrl doctor",
        in_words=size,
        hold_s=10.0,
    ),
    Condition("host-disk-fills", functions.disk_fills),
    Threshold(
        "host-cannot-write",
        subjects=_hosts,
        value=lambda host: bool(host.disk_full),
        sentence="The host agent of {subject} cannot write to its disk, so it starts no units.",
        evidence=lambda found: (found.row.disk_full, f"{size(found.row.disk_free_bytes)} free"),
        cure="agentrl doctor",
        severity=Severity.PAGE,
    ),
    Threshold(
        "host-strays",
        subjects=_hosts,
        value=lambda host: len(host.strays),
        sentence=lambda found: (
            f"On {found.name} the run has {counted(len(found.row.strays), 'processes')} of no living unit."
        ),
        evidence=lambda found: (f"pid {stray.pid} {stray.command} ({stray.why})" for stray in found.row.strays[:10]),
        cure="agentrl events --kind incident",
        hold_s=30.0,
    ),
    Threshold(
        "host-clock",
        subjects=_hosts,
        value=lambda host: abs(host.clock_off_s),
        sentence=lambda found: f"{found.name}: {clock_text(found.row)}.",
        evidence=lambda found: ("No lease and no deadline depends on it, but times in logs and traces are wrong.",),
        cure="agentrl hosts show {subject}",
        hold_s=10.0,
    ),
)

# ---- the run ----


def _run(snapshot: RunSnapshot) -> Mapping[str, RunRow]:
    return {snapshot.run.name: snapshot.run} if snapshot.run is not None else {}


def _coordinator_cannot(name: str, field: str, sentence: str, severity: Severity = Severity.WARNING) -> Rule:
    """The coordinator cannot do something; a field of the run's row holds the reason."""
    return Threshold(
        name,
        subjects=_run,
        value=lambda run: bool(getattr(run, field)),
        sentence=sentence,
        evidence=lambda found: (getattr(found.row, field),),
        cure="agentrl doctor",
        severity=severity,
    )


RUN_RULES = (
    _coordinator_cannot(
        "journal-full",
        "journal_full",
        "The journal cannot be written, so commands are refused until it can.",
        Severity.PAGE,
    ),
    _coordinator_cannot(
        "not-listening",
        "not_listening",
        "Other hosts cannot reach the coordinator of {subject}; units on its own host are not affected.",
    ),
    _coordinator_cannot(
        "not-recording",
        "not_recording",
        "{subject} is not recorded now, so this time cannot be played back; the run itself is not affected.",
    ),
    _coordinator_cannot(
        "not-exporting",
        "not_exporting",
        "The metrics of {subject} are not served, so Prometheus sees nothing of it; the run itself is not affected.",
    ),
    # A unit that is only just past its deadline is about to be ended for that reason.
    Condition("no-progress", functions.no_progress, hold_s=15.0),
)

# ---- the data plane ----

DATA_RULES = (
    Condition("no-step", functions.no_step),
    Condition("engine-lags", functions.engine_lags, hold_s=60.0),
    Condition("version-rejected", functions.version_rejected),
    OutOfBand(
        "canary-differs",
        (CANARY_OVER_LIMIT,),
        "{unit} serves version {weights}, but its canary differs from the trainer's by {canary_largest} at one token. "
        "The mean difference is within the limit, so the version was not refused.",
        "agentrl versions list",
        (CANARY_LARGEST,),
        subjects=units_at_work("engine"),
    ),
    Condition("curves-not-written", functions.curves_not_written, hold_s=30.0),
    Condition("tool-server-left-alone", functions.breaker_open, hold_s=5.0),
    Condition("tool-fails", functions.tool_fails, hold_s=10.0),
    Condition("tool-memory", functions.tool_memory, hold_s=4.0),
    Condition("tool-restarts", functions.tool_restarts),
    Condition("tool-unhealthy", functions.tool_unhealthy),
    Condition("held-out-trained", functions.held_out_trained),
    Threshold(
        "warm-up-unused",
        subjects=trainers,
        metric=WARMUP_UNUSED.name,
        sentence="The run began without the warm-up of its run file, and continues from its checkpoint.",
        evidence=lambda found: (
            "A run of another name, or one that was wiped, starts with the warm-up.",
            "To end this alert, remove `training.warmup` from the run file.",
        ),
        cure="agentrl checkpoints list",
    ),
    Threshold(
        "checkpoint-damaged",
        subjects=trainers,
        metric=CHECKPOINTS_DAMAGED.name,
        sentence="{subject} passed over {value} damaged checkpoints and started from an older one.",
        evidence=lambda found: (
            "The files differ from what was written: the disk may be faulty. Steps since then are trained again.",
            "`agentrl checkpoints list` shows what is damaged. The alert ends when the trainer starts without damage.",
        ),
        cure="agentrl checkpoints list",
    ),
    Condition("learning-nothing", functions.nothing_trained),
    Condition("learning-collapsed", functions.collapsed, severity=Severity.PAGE),
)

# ---- learning: numbers of the trainer that leave their normal band ----


def _reward_rises(numbers: Mapping[str, float]) -> bool:
    return numbers.get(of.REWARD_GAIN.name, 0.0) > REWARD_GAIN


LEARNING_RULES = (
    OutOfBand(
        "learning-mismatch",
        (of.MISMATCH_OVER_LIMIT, of.MISMATCH_P99_OVER_LIMIT, of.MISMATCH_K3_OVER_LIMIT),
        "Engine and trainer disagree about the same tokens: {value} times the limit. This is a fault.",
        PAUSE,
        (of.MISMATCH_MEAN, of.MISMATCH_P99, of.MISMATCH_K3),
        severity=Severity.PAGE,
    ),
    OutOfBand(
        "learning-drift",
        (of.WEIGHT_MEAN, of.ESS, of.WEIGHT_STD, of.ACCEPTED),
        "The policy has moved far away from the one that its batches were sampled from.",
        "agentrl tune bound",
    ),
    OutOfBand(
        "learning-reference",
        (of.KL_REFERENCE,),
        "The KL of the policy to its reference is {value} per token.",
        LOWER_RATE,
        (of.REWARD, of.ENTROPY),
    ),
    OutOfBand(
        "learning-entropy",
        (of.ENTROPY_KEPT,),
        "The entropy of the policy is {value} of its value fifty steps ago, and the reward has not risen.",
        LOWER_RATE,
        (of.ENTROPY, of.REWARD_GAIN),
        unless=_reward_rises,
    ),
    OutOfBand(
        "learning-gradient",
        (of.GRADIENT_OVER_MEDIAN,),
        "The norm of the gradient is {value} times its usual value.",
        LOWER_RATE,
        (of.GRADIENT,),
    ),
    OutOfBand(
        "learning-no-signal",
        (of.ZERO_VARIANCE_LATELY,),
        "{groups_without_signal_lately} of the last {groups_lately} groups teach nothing: all records of a group score "
        "the same.",
        "agentrl tune temperature",
        (of.WITHOUT_SIGNAL_LATELY, of.GROUPS_LATELY, of.REWARD),
    ),
    OutOfBand(
        "learning-truncation",
        (of.TRUNCATION_RISE,),
        "More and more records are cut off at a limit.",
        "agentrl tune max_tokens",
        (of.TRUNCATION, of.LENGTH),
    ),
    OutOfBand(
        "learning-no-tools",
        (of.TOOL_CALLS_KEPT,),
        "The policy makes only {value} of its earlier tool calls, and the reward has not risen.",
        LOWER_RATE,
        (of.TOOL_CALLS, of.REWARD_GAIN),
        unless=_reward_rises,
    ),
    OutOfBand(
        "learning-tools-fail",
        (of.TOOL_FAILURES_RISE,),
        "A tool fails more often with each version, and the cause is infrastructure, not the policy.",
        "agentrl why",
        (of.INFRASTRUCTURE, of.TOOL_CALLS),
    ),
    OutOfBand(
        "learning-length",
        (of.LENGTH_JUMP,),
        "Records are {value} times as long as they were twenty steps ago, and the reward has not risen.",
        LOWER_RATE,
        (of.LENGTH, of.REWARD_GAIN),
        unless=_reward_rises,
    ),
    OutOfBand(
        "learning-not-finite",
        (of.NOT_FINITE,),
        "{value} batches in a row gave a loss that is not finite. After three the trainer ends.",
        LOWER_RATE,
        (of.GRADIENT,),
        severity=Severity.PAGE,
    ),
    OutOfBand(
        "learning-overfits",
        (of.EVALUATION_FALL,),
        "The evaluation is {value} below its best while the reward in training rises.",
        PAUSE,
        (of.EVALUATION, of.REWARD, of.REWARD_GAIN),
        unless=lambda numbers: not _reward_rises(numbers),
    ),
    OutOfBand(
        "learning-invalid",
        (of.VALID,),
        "Only {value} of the recent attempts are valid. The trainer takes no steps, because these are a biased sample.",
        "agentrl why",
        (of.INFRASTRUCTURE,),
        severity=Severity.PAGE,
    ),
)

# ---- signs that the reward is exploited: the steward measures them ----

REWARD_RULES = (
    Condition("reward-by-length", reward_conditions.longer_is_better),
    Condition("answers-repeat", reward_conditions.answers_repeat),
    Condition("groups-repeat", reward_conditions.groups_repeat),
    Condition("judge-votes-split", reward_conditions.votes_split),
    Condition("reward-watcher-falls", reward_conditions.watcher_falls),
)

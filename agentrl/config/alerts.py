"""Defines the configuration of alerts: the run's own rules, sinks, and the dead-man ping that shows that alerting
works.

Invariants:
- A rule has one threshold on one side, and its `clear` value lies on the good side of it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agentrl.config.field_types import Command, Number, Seconds, SecretOrUrl, Section, Words, problems_in_one_of
from agentrl.protocol.rows import Severity

BUILT_IN_RULES = (
    *("unit-fatal", "unit-restarting", "unit-never-ready", "unit-lost", "unit-hung", "unit-pending", "unit-problem"),
    *("errors-repeat", "unit-memory-grows"),
    *("host-lost", "host-disk-low", "host-disk-fills", "host-cannot-write", "host-strays", "host-clock"),
    *("journal-full", "not-listening", "not-recording", "not-exporting", "no-progress", "no-step"),
    *("engine-lags", "version-rejected", "canary-differs", "curves-not-written", "held-out-trained"),
    *("warm-up-unused", "checkpoint-damaged"),
    *("tool-server-left-alone", "tool-fails", "tool-memory", "tool-restarts", "tool-unhealthy"),
    *("learning-nothing", "learning-collapsed", "learning-mismatch", "learning-drift", "learning-reference"),
    *("learning-entropy", "learning-gradient", "learning-no-signal", "learning-truncation", "learning-no-tools"),
    *("learning-tools-fail", "learning-length", "learning-not-finite", "learning-overfits", "learning-invalid"),
    *("reward-by-length", "answers-repeat", "groups-repeat", "judge-votes-split", "reward-watcher-falls"),
)
"""The rules of every run. Each is declared in `agentrl/control/alerts/*_rules.py`."""


class Rule(Section):
    """An alert on a number that a unit reports or that is measured for it."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,59}$")]
    """Name of the rule: small letters, digits and dashes."""
    metric: Annotated[str, Field(min_length=1)]
    """Name of the metric."""
    of: Annotated[str, Field(min_length=1)]
    """A group or a unit. The units of a group are checked one by one."""
    above: Number | None = None
    """The alert is pending while the metric is above this."""
    below: Number | None = None
    """The alert is pending while the metric is below this."""
    clear: Number | None = None
    """The alert ends when the metric is back at this value; empty means the threshold itself."""
    for_s: Annotated[float, Field(strict=True, ge=0, le=604_800)] = 0.0
    """How long the threshold must be exceeded before the alert fires."""
    severity: Severity = Severity.WARNING
    """`info` is only shown; `warning` and `page` go to the sinks; a `page` is repeated."""
    sentence: str = ""
    """The message of the alert. `{subject}`, `{metric}`, `{value}` and `{threshold}` are replaced."""
    suggest: str = ""
    """A command that repairs the cause or shows more. `{subject}` is replaced."""

    @model_validator(mode="after")
    def _one_side(self) -> Rule:
        if problem := problems_in_one_of(self, ("above", "below")):
            raise ValueError(problem)
        if self.clear is not None:
            if self.above is not None and self.clear > self.above:
                raise ValueError(f"clear must be at most above, {self.above:g}, not {self.clear:g}")
            if self.below is not None and self.clear < self.below:
                raise ValueError(f"clear must be at least below, {self.below:g}, not {self.clear:g}")
        return self


class FileSink(Section):
    path: Annotated[str, Field(min_length=1)]
    """One line of JSON per notification is appended; relative to the run's directory."""


class WebhookSink(Section):
    url: SecretOrUrl
    """Notifications are posted there as JSON. A URL, or a reference to one: `env:NAME` or `file:PATH`."""


class ExecSink(Section):
    command: Annotated[Command, Field(min_length=1)]
    """A command that is started for each notification. It gets the notification as JSON on standard input, and its
    fields in the environment as AGENTRL_ALERT_SENTENCE, _SUGGEST, _SEVERITY and so on."""


class MailSink(Section):
    to: Annotated[Words, Field(min_length=1)]
    """Addresses."""
    sender: Annotated[str, Field(alias="from", min_length=1)]
    """The sender's address."""
    host: str = "127.0.0.1"
    """The SMTP server."""
    port: Annotated[int, Field(strict=True, ge=1, le=65_535)] = 25
    """Its port."""


class Sinks(Section):
    """Where notifications go. Every sink gets every notification."""

    file: FileSink | None = None
    """A file of JSON lines."""
    webhook: WebhookSink | None = None
    """An HTTP endpoint."""
    exec: ExecSink | None = None
    """A command."""
    mail: MailSink | None = None
    """Electronic mail."""


class DeadMan(Section):
    """A regular ping that stops when alerting stops, so that an outside monitor notices. Exactly one of the three."""

    exec: Command = ()
    """A command."""
    url: SecretOrUrl | None = None
    """A URL that is fetched, or a reference to one: `env:NAME` or `file:PATH`."""
    file: str = ""
    """A file that is touched; relative to the run's directory."""
    every_s: Seconds = 60.0
    """How often."""

    @model_validator(mode="after")
    def _one_way(self) -> DeadMan:
        if problem := problems_in_one_of(self, ("exec", "url", "file")):
            raise ValueError(problem)
        return self


class Alerts(Section):
    """Alerting."""

    disable: Words = ()
    """Names of built-in rules that are disabled."""
    rules: tuple[Rule, ...] = ()
    """Own rules."""
    sinks: Sinks = Sinks()
    """Where notifications go."""
    dead_man: DeadMan | None = None
    """A ping that proves that alerts would arrive."""
    permission: Literal["", "viewer", "operator", "admin"] = "viewer"
    """What the commands of `sinks.exec` and `dead_man.exec` may do with the run; empty: nothing. Caution: their input
    contains text of units and models."""
    repeat_s: Seconds = 3600.0
    """How often an unacknowledged page is sent again."""
    memory_window_s: Annotated[Seconds, Field(ge=1)] = 3600.0
    """The evidence for `unit-memory-grows`: it fires when the memory of a unit has grown for one and a half windows,
    after a warm-up of a sixth of a window that does not count. Six windows are kept."""
    disk_window_s: Annotated[Seconds, Field(ge=1)] = 1800.0
    """The evidence for the forecast of a full disk: for how long the disk must have filled up at the same rate."""

    @model_validator(mode="after")
    def _names_once(self) -> Alerts:
        seen: set[str] = set()
        for rule in self.rules:
            if rule.name in seen:
                raise ValueError(f"rules has two rules of the name {rule.name}")
            seen.add(rule.name)
        return self

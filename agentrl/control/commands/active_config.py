"""Holds the configuration in force, and the knobs of the coordinator itself.

Invariants:
- The configuration in force is in the journal, for the next coordinator.
- The supervision times are always the values of their knobs.
- The value in the run file changes the knob only if the file changed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config.knobs import supervision_knobs, times_with
from agentrl.config.paths import IN_FORCE
from agentrl.config.run import RunConfig
from agentrl.config.serialization import config_from_plain, config_to_plain
from agentrl.config.supervision_times import SupervisionTimes
from agentrl.control.context import Context
from agentrl.control.persistence.atomic_file import replace_file
from agentrl.control.state.knob_registry import KnobChange
from agentrl.control.state.operations import Goal, Operation
from agentrl.errors import ConfigError, ConflictError, DiskError
from agentrl.protocol import control_commands, messages
from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.wire import decode_as

log = logging.getLogger(__name__)

PREFIX = "supervision."


class StoredConfig(msgspec.Struct):
    plain: dict[str, Any]
    source: str = ""
    given: tuple[str, ...] = ()


class ActiveConfig:
    def __init__(self, context: Context, state_dir: Path) -> None:
        self._context = context
        self.state_dir = state_dir
        self.stored = StoredConfig({})
        self.on_config: list[Callable[[RunConfig], None]] = []
        self.on_times: Callable[[], None] = lambda: None
        """Called after the supervision times changed."""
        self.may_refuse: Callable[[RunConfig], None] = lambda config: None
        """Called to check a configuration: raises if it cannot work on this host now."""
        self._declare_own_knobs()

    # ---- configuration ----

    def config_of(self, args: control_commands.Apply) -> RunConfig:
        """The configuration in a command, validated again, because the caller may be older or hostile."""
        config = config_from_plain(
            {key: decode_as(object, value) for key, value in args.config.items()}, where=args.source
        )
        if config.name != self._context.run.name:
            raise ConflictError(
                f"This is the coordinator of run {self._context.run.name}, not of {config.name}.",
                hint="Each run has a coordinator of its own.",
            )
        self.may_refuse(config)
        return config

    def config_to_read(self) -> RunConfig:
        """The configuration in force, for a run that is brought up only for reading."""
        config = self._context.config
        if config is None or not config.environments:
            raise ConflictError(
                f"The run {self._context.run.name} has no store that could be read from.",
                hint="A run file with `environments:` that was up once has one.",
            )
        return config

    def adopt(self, config: RunConfig, args: control_commands.Apply, who: str) -> None:
        """Bring this configuration into force."""
        self.stored = StoredConfig(config_to_plain(config), args.source, args.given)
        self._context.executor.put("config", "", msgspec.msgpack.encode(self.stored))
        self._context.own_status.config_source = args.source
        now = self._context.clock.now()
        for knob in supervision_knobs():
            value = getattr(config.supervision, knob.name.removeprefix(PREFIX))
            self._context.knobs.apply_file_value(knob.name, value, who=who, at=now)
            self._knob_moved(knob.name)
        self._in_force(config)

    def restore(self) -> None:
        """Take over the configuration and the knobs of the last coordinator."""
        body = self._context.journal.get("config", "")
        for complaint in self._context.knobs.restore(self._context.journal.all("knob")):
            log.warning("%s", complaint)
        if body is not None:
            self.stored = decode_as(StoredConfig, body)
            self._context.own_status.config_source = self.stored.source
            try:
                self._in_force(config_from_plain(self.stored.plain, where="the journal"))
            except ConfigError as broken:
                log.error("The configuration in the journal does not fit this version: %s", broken)
        self._take_times()

    def _in_force(self, config: RunConfig) -> None:
        self._context.config = config
        if config.environments:
            self._show_units(config)
        self._take_times()
        for listener in self.on_config:
            listener(config)

    def _show_units(self, config: RunConfig) -> None:
        """Write the configuration for the units of the data plane, which read it at their start. It contains secrets
        only as references."""
        path = Path(self._context.run.run_dir) / IN_FORCE
        body = json.dumps(config_to_plain(config), indent=1, sort_keys=True).encode()
        try:
            if not path.exists() or path.read_bytes() != body:
                replace_file(path, body, mode=0o600)
        except (OSError, DiskError) as failed:
            log.error("The configuration cannot be written for the units: %s", failed)

    # ---- knobs ----

    def _declare_own_knobs(self) -> None:
        for knob in supervision_knobs():
            self._context.knobs.declare(knob, self._preview_of(knob.name))

    def _preview_of(self, name: str) -> Callable[[KnobValue], Effect]:
        def preview(value: KnobValue) -> Effect:
            times_with(self._context.supervisor.times, name, value)  # refuses times that contradict each other
            return Effect()

        return preview

    def _take_times(self) -> None:
        """Set the supervision times to the values of their knobs."""
        knobs = self._context.knobs
        plain = {name: knobs.value(PREFIX + name) for name in SupervisionTimes.model_fields}
        try:
            times = SupervisionTimes.model_validate(plain)
        except ValueError as contradiction:
            log.error("The supervision times contradict each other and stay as they were: %s", contradiction)
            return
        self._context.supervisor.times = times
        leases, hosts = self._context.leases, self._context.host_leases
        leases.suspect_after_s, leases.dead_after_s = times.suspect_after_s, times.dead_after_s
        hosts.suspect_after_s = hosts.dead_after_s = times.host_silent_after_s
        self.on_times()

    def knob_changed(self, operation: Operation, name: str, change: KnobChange | None) -> dict[str, Goal]:
        """Apply a knob that was tuned or undone."""
        if change is not None:
            self._knob_moved(name)
            owner = self._context.knobs.declaration(name).owner
            if not owner:
                self._take_times()
            for slot in self._context.state.of_group(owner) if owner else ():
                message = messages.SetKnob(name, change.new, change.revision)
                self._context.peers.send_to_unit(slot.unit, slot.incarnation, message)
            operation.result = {"old": change.old, "new": change.new, "revision": change.revision}
        return {}

    def _knob_moved(self, name: str) -> None:
        self._context.executor.put("knob", name, self._context.knobs.persisted(name))
        if not self._context.knobs.declaration(name).owner:
            self._context.knobs.report(name, self._context.knobs.value(name))
        self._context.show_knob(name)
        self._context.show_run()

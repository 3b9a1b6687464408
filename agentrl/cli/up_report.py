"""Prints the report of `up`: units kept, started, replaced and stopped, changed settings, and which units are up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from agentrl.cli import output
from agentrl.cli.execute import exit_code, say_end, unit_rows
from agentrl.cli.options import Cli
from agentrl.client import Client
from agentrl.errors import ExitCode
from agentrl.protocol.effects import Effect
from agentrl.protocol.rows import IncidentRow, OperationRow, UnitRow, UnitState

_NOT_UP_SHOWN = 10
_LINE_CHARS = 300
_UP = (UnitState.READY, UnitState.SUSPECT)


async def report(
    cli: Cli, client: Client, run: str, row: OperationRow, effect: Effect, *, since: float, line: bool
) -> ExitCode:
    """Print the report. A unit that became ready after `since` came up again; `line`: the JSON document is one line of
    several. Returns UNHEALTHY if a unit is not up.
    """
    # The present state of the units, because a unit that came up may have died since.
    wanted = {name: unit for name, unit in (await unit_rows(client)).items() if unit.desired}
    not_up = {name: unit for name, unit in wanted.items() if _why_not_up(unit)}
    last_lines = await _last_lines(client, not_up.values())
    warming_up = {name: unit.incomplete for name, unit in sorted(wanted.items()) if _warms_up(unit)}
    absent = {row.host: row.reason for row in (await client.status()).hosts if row.reason}
    by_role = Counter(unit.role for unit in wanted.values() if unit.state in _UP)
    code = exit_code(row)
    if code is ExitCode.OK and not_up:
        code = ExitCode.UNHEALTHY
    summary = _summary(wanted, effect, since)
    if cli.json:
        states = {
            name: {"state": unit.state, "reason": _why_not_up(unit), "last_line": last_lines.get(name, "")}
            for name, unit in sorted(not_up.items())
        }
        named = {word.replace(" ", "_"): names for word, names in summary.items()}
        about = {"up": by_role, "not_up": states, "warming_up": warming_up, "hosts_not_up": absent}
        (output.emit_line if line else output.emit)({"operation": row, "effect": effect, **named, **about})
        return code
    say_end(row, "up")
    for word, names in summary.items():
        if names:
            output.say(f"{word} {len(names)}: {'; '.join(names) if word == 'changed' else ', '.join(names)}")
    for note in effect.notes:
        output.say(note)
    if by_role:
        output.say(f"up now: {', '.join(f'{role} {count}' for role, count in sorted(by_role.items()))}")
    for host, reason in absent.items():
        output.note(f"agentrl: host {host} is not up: {reason}")
    _note_units_that_warm_up(cli, warming_up)
    _note_units_that_are_not_up(cli, run, list(not_up.values()), last_lines)
    return code


def _summary(wanted: Mapping[str, UnitRow], effect: Effect, since: float) -> dict[str, list[str]]:
    """What became of the units, and which settings changed."""
    kept = sorted(wanted.keys() - {*effect.starts, *effect.stops})
    # A unit that the coordinator counted as up may have been dead, for example after a power loss.
    came_up = {name for name in kept if wanted[name].ready_at > since}
    return {
        "kept": [name for name in kept if name not in came_up],
        "came up again": sorted(came_up),
        "started": [name for name in effect.starts if name not in effect.restarts],
        "replaced": sorted(effect.restarts),
        "stopped": sorted(effect.stops),
        "changed": list(effect.changes),
    }


def _warms_up(unit: UnitRow) -> bool:
    return unit.state in _UP and bool(unit.incomplete) and not unit.problems and not unit.done


def _why_not_up(unit: UnitRow) -> str:
    """The reason why the unit is not up; empty if it does its whole work, is still warming up, or was a job that is
    done."""
    if unit.done or _warms_up(unit):
        return ""
    if unit.state not in _UP:
        return unit.reason or unit.state.value
    faults = [f"{of}: {why}" for of, why in unit.problems.items()]
    return "; ".join([*faults, *([unit.incomplete] if unit.incomplete else [])])


def _note_units_that_warm_up(cli: Cli, units: dict[str, str]) -> None:
    for unit, incomplete in list(units.items())[:_NOT_UP_SHOWN]:
        output.note(f"agentrl: {unit} is still warming up: {incomplete}")
    if len(units) > _NOT_UP_SHOWN:
        output.note(f"agentrl: and {len(units) - _NOT_UP_SHOWN} more are still warming up")
    if units:
        output.note(cli.aimed("The run goes on. `agentrl status` shows it."))


async def _last_lines(client: Client, units: Iterable[UnitRow]) -> dict[str, str]:
    """The last line that each dead incarnation logged, by unit. Most programs write the error there."""
    dead = {(unit.unit, unit.incarnation) for unit in units if unit.state not in _UP}
    if not dead:
        return {}
    found: dict[str, str] = {}
    for row in (await client.snapshot(("incident",))).rows.values():
        if isinstance(row, IncidentRow) and (row.unit, row.incarnation) in dead:
            found[row.unit] = next((line.strip()[:_LINE_CHARS] for line in reversed(row.tail) if line.strip()), "")
    return found


def _note_units_that_are_not_up(cli: Cli, run: str, units: list[UnitRow], last_lines: Mapping[str, str]) -> None:
    for unit in units[:_NOT_UP_SHOWN]:
        state = "does not do its whole work" if unit.state in _UP else f"is not up now: {unit.state}"
        why = _why_not_up(unit)
        output.note(f"agentrl: {unit.unit} {state}{f', {why}' if why != unit.state else ''}")
        line = last_lines.get(unit.unit, "")
        if line and line not in why:
            output.note(f"    last line of its log: {line}")
    if len(units) > _NOT_UP_SHOWN:
        output.note(f"agentrl: and {len(units) - _NOT_UP_SHOWN} more are not up now")
    with_log = next((unit.unit for unit in units if not unit.could_not_start), "")
    if with_log:
        output.note(cli.aimed(f"`agentrl logs {with_log}` shows what it wrote, `agentrl status` how it goes on."))
    elif units:
        checks = f"`agentrl config check --run {run}`" if not cli.remote else "`agentrl config check RUN.yaml`"
        output.note(cli.aimed(f"{checks} looks for its program, `agentrl status` shows how it goes on."))

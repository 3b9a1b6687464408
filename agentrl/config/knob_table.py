"""Prints the table of docs/knobs.md: `python -m agentrl.config.knob_table`."""

from __future__ import annotations

from agentrl.config.knobs import unit_knobs
from agentrl.config.run import RunConfig
from agentrl.protocol.knob import Knob, plain_value
from agentrl.protocol.specs import Role

_COLUMNS = ("knob", "of", "what", "allowed", "default", "takes effect")
_SMALLEST = {"name": "defaults", "model": {"build": "tiny"}, "environments": {"one": {"dataset": "train.jsonl"}}}


def table() -> str:
    """The knobs of all groups of the data plane, in Markdown."""
    config = RunConfig.model_validate(_SMALLEST)
    lines = [_line(_COLUMNS), _line(("---",) * len(_COLUMNS))]
    for owner in (Role.STEWARD, Role.SAMPLER, Role.TRAINER):
        lines += [_line(_cells(knob)) for _, knob in sorted(unit_knobs(config, owner).items())]
    return "\n".join(lines) + "\n"


def _cells(knob: Knob) -> tuple[str, ...]:
    default = f"{knob.default:g}" if isinstance(knob.default, float) else plain_value(knob.default)
    when = f"{knob.boundary}, scientific" if knob.scientific else knob.boundary
    return f"`{knob.name}`", knob.owner, knob.help, knob.allowed, default, when


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table(), end="")

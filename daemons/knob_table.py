"""What can be changed about a run that trains: `python -m daemons.knob_table` prints the table of docs/knobs.md.

Invariant: it is made from the declarations of the units themselves, so a knob that is not in it does not exist.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from agentrl.config.knob import Knob
from agentrl.config.run import RunConfig
from agentrl.policies.admission import Counts
from agentrl.protocol.messages import KnobDeclaration
from agentrl.rollout.sampler_knobs import SamplerKnobs
from agentrl.steward import settings as steward_settings
from agentrl.steward.steward_knobs import StewardKnobs
from agentrl.training.trainer_knobs import Knobs
from agentrl.unit import Unit
from agentrl.unit.unit_environment import UnitEnvironment

COLUMNS = ("knob", "of", "what", "allowed", "default", "takes effect")


def declared(group: str, run_dir: Path) -> tuple[KnobDeclaration, ...]:
    """Of a unit of this group that goes by the defaults."""
    config = RunConfig.model_validate(
        {"name": "defaults", "model": {"build": "tiny"}, "environments": {"one": {"dataset": "train.jsonl"}}}
    )
    unit = Unit(UnitEnvironment(unit=f"{group}-0", group=group, slot=0, incarnation=1, run_dir=run_dir))
    match group:
        case "steward":
            StewardKnobs(
                unit, lambda: steward_settings.from_config(config), counts=Counts, on_change=lambda changed: None
            )
        case "sampler":
            SamplerKnobs(unit, config.rollout)
        case "trainer":
            Knobs(unit, config)
    return unit.knobs


def table() -> str:
    """In Markdown."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    with tempfile.TemporaryDirectory() as directory:
        for group in ("steward", "sampler", "trainer"):
            lines += [_line(_row(group, each)) for each in sorted(declared(group, Path(directory)), key=_name)]
    return "\n".join(lines) + "\n"


def _name(declaration: KnobDeclaration) -> str:
    return declaration.name


def _row(group: str, each: KnobDeclaration) -> tuple[str, ...]:
    knob = Knob(
        name=each.name,
        kind=each.kind,  # type: ignore[arg-type] # a string in messages, one of the kinds here
        default=each.default,
        help=each.help,
        unit=each.unit,
        minimum=each.minimum,
        maximum=each.maximum,
        choices=each.choices,
    )
    default = f"{each.default:g}" if isinstance(each.default, float) else str(each.default)
    when = f"{each.boundary}, scientific" if each.scientific else each.boundary
    return f"`{each.name}`", group, each.help, knob.allowed, default, when


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table(), end="")

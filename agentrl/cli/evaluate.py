"""Defines the commands of `eval`: evaluate models on environments without a run, and show results, including those of a
run.

Invariants:
- A finished attempt is in the file of results and is not made again, whenever the command is stopped.
- Results of `eval run` are read only from that file, so they can be shown anywhere; `vN` is a version of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli import run_evaluations, tried_environments
from agentrl.cli.adapted import FileOrWord, ModelName, WithArguments, WithPython
from agentrl.cli.child_program import at_hand, run_to_its_end
from agentrl.cli.options import Cli, add_command, group
from agentrl.cli.run_file import Sets
from agentrl.errors import ConfigError, ExitCode, UsageError
from agentrl.formatting.amounts import counted

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig
    from agentrl.evaluation.summaries import By, Summary
    from agentrl.protocol.evaluation_commands import Attempt

_MOST_MOVED = 5
Results = Annotated[
    Path,
    typer.Argument(
        metavar="RESULTS",
        help="A file that `eval run` wrote, or a version of the run, such as v12.",
        show_default=False,
    ),
]
Part = Annotated[str, typer.Option("--by", metavar="WHAT", help="environment, tag or difficulty.")]
Models = Annotated[
    list[str] | None, typer.Option("--model", metavar="NAME", help="One of those in the file.", show_default=False)
]


def register(app: typer.Typer) -> None:
    evaluations = group(app, "eval", "Evaluate models without a run, and read results.")
    add_command(evaluations, "run")(run)
    add_command(evaluations, "list", reads=True)(run_evaluations.list_)
    add_command(evaluations, "show", reads=True)(show)
    add_command(evaluations, "compare", reads=True)(compare)
    add_command(evaluations, "export")(export)


EvaluatedModels = Annotated[
    list[str] | None,
    typer.Option(
        "--model", metavar="[NAME=]DIR|URL", help="A directory or an OpenAI-compatible address.", show_default=False
    ),
]
Environments = Annotated[
    list[str] | None,
    typer.Option("--environment", metavar="NAME", help="Only this one; may be repeated.", show_default=False),
]
Attempts = Annotated[
    int | None, typer.Option("-k", "--attempts", metavar="NUMBER", help="At each task.", show_default=False)
]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="NUMBER", help="Of tasks; 0 takes all.", show_default=False)
]
AtOnce = Annotated[int, typer.Option("--at-once", metavar="NUMBER", help="Episodes side by side.")]
Out = Annotated[Path, typer.Option("--out", metavar="RESULTS", help="The file of results.")]


def run(
    cli: Cli,
    file: FileOrWord,
    models: EvaluatedModels = None,
    model_name: ModelName = "default",
    environments: Environments = None,
    attempts: Attempts = None,
    limit: Limit = None,
    at_once: AtOnce = 32,
    out: Out = Path("results.jsonl"),
    arguments: WithArguments = None,
    python: WithPython = None,
    sets: Sets = None,
) -> ExitCode:
    """Evaluate models on held-out tasks, without a run.

    Defaults are those of `evaluation` in the run file. The same command again goes on where it was stopped.
    """
    for name, value, least in (("-k", attempts, 1), ("--limit", limit, 0), ("--at-once", at_once, 1)):
        if value is not None and value < least:
            raise UsageError(f"{name} {value}: at least {least}.")
    named = [_named(model) for model in models or [""]]
    if repeated := {name for name, _ in named if [each for each, _ in named].count(name) > 1}:
        raise UsageError(f"There are two models {min(repeated)!r}.", hint="Name them: --model NAME=DIR.")
    without_score: list[str] = []
    for name, place in named:
        is_address = place.startswith(("http://", "https://"))
        directory = Path(place) if place and not is_address else None
        config = tried_environments.configured(file, arguments, directory, sets, python=python)
        asked = {
            "name": name or _own_name(config),
            "url": place if is_address else "",
            "directory": str(directory or (config.model.path if config.model else "")),
            "model_name": model_name if is_address else "",
            "environments": _chosen(config, environments or []),
            "attempts": attempts or config.evaluation.samples,
            "limit": config.evaluation.tasks if limit is None else limit,
            "at_once": at_once,
            "out": str(out),
            "replies": [],
        }
        if not is_address:
            _refuse_no_model(str(asked["directory"]))
        progress = _Progress(cli)
        code = run_to_its_end("daemons.evaluation", "The evaluation", at_hand(config, asked), progress.show)
        if code != ExitCode.OK:
            return code
        without_score += progress.without_score
    return show(cli, out) if not without_score else _shown_as_failed(cli, out, without_score)


def _shown_as_failed(cli: Cli, out: Path, models: Sequence[str]) -> ExitCode:
    from agentrl.cli import output

    show(cli, out)
    output.note(f"No attempt of {', '.join(models)} got a score. The same command makes failed attempts again.")
    return ExitCode.FAILED


def _refuse_no_model(directory: str) -> None:
    if not directory:
        raise ConfigError("The run file names no model to evaluate.", hint="Name one: --model DIR or --model URL.")
    if not Path(directory, "config.json").is_file():
        raise ConfigError(f"{directory} is no directory of a model: it has no config.json.")


def _named(model: str) -> tuple[str, str]:
    name, equals, place = model.partition("=")
    if equals and "/" not in name:
        return name, place
    if not model.startswith(("http://", "https://")):
        return Path(model.rstrip("/")).name, model
    # People share results, so passwords are removed from addresses in them.
    scheme, _, rest = model.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}", model


def _own_name(config: RunConfig) -> str:
    return Path(config.model.path).name if config.model and config.model.path else "default"


def _chosen(config: RunConfig, wanted: Sequence[str]) -> list[str]:
    return [tried_environments.chosen(config, name) for name in wanted] or list(config.environments)


class _Progress:
    """Shows each tenth of the progress on stderr; with `--json` nothing."""

    def __init__(self, cli: Cli) -> None:
        self._quiet = cli.json
        self._model, self._wanted, self._known, self._tenths = "", 0, 0, 0
        self._scores: list[float] = []
        self._failed = 0

    @property
    def without_score(self) -> list[str]:
        """The model, if attempts were made and none has a score."""
        return [self._model] if self._failed and not self._scores and not self._known else []

    def show(self, message: dict[str, Any]) -> None:
        from agentrl.cli import output

        match message["event"]:
            case "began":
                self._model, self._wanted, self._known = message["model"], message["attempts"], message["known"]
                there = f", {self._known} were made before" if self._known else ""
                if not self._quiet:
                    output.note(f"{self._model}: {counted(self._wanted, 'attempts')}{there}")
            case "ended":
                self._failed += message["score"] is None
                self._scores += [] if message["score"] is None else [message["score"]]
                self._show_tenth()

    def _show_tenth(self) -> None:
        from agentrl.cli import output

        done = len(self._scores) + self._failed
        tenths = 10 * done // max(1, self._wanted)
        if self._quiet or tenths == self._tenths:
            return
        self._tenths = tenths
        mean = f", mean {sum(self._scores) / len(self._scores):.3f}" if self._scores else ""
        failed = f", {self._failed} failed" if self._failed else ""
        output.note(f"{self._model}: {done} of {self._wanted}{mean}{failed}")


def show(cli: Cli, file: Results, by: Part = "environment", models: Models = None) -> ExitCode:
    """Show results: mean, its 95 % interval, and pass@k."""
    from agentrl.cli import output
    from agentrl.evaluation.summaries import summaries

    by_what = _by(by)
    found = summaries(_read(cli, file, models or []), by_what)
    if cli.json:
        output.emit(found)
        return ExitCode.OK
    output.show(
        output.table(*_table(found, by_what), right=("tasks", "attempts", "failed", "mean", "tokens", "turns")),
        cli.color,
    )
    return ExitCode.OK


def _table(found: Sequence[Summary], by: By) -> tuple[list[str], list[list[str]]]:
    from agentrl.evaluation import words

    ks = sorted({int(k) for one in found for k in one.passed})
    columns = ["model", by, "mean", "0 … 1", *(f"pass@{k}" for k in ks)]
    rows = [
        [
            one.model,
            one.part,
            words.with_margin(one.mean, one.margin),
            words.bar(one.mean),
            *(f"{one.passed[str(k)]:.3f}" if str(k) in one.passed else "" for k in ks),
            str(one.tasks),
            str(one.attempts),
            str(one.failed or ""),
            f"{one.turns:.3g}",
            f"{one.tokens:.0f}",
        ]
        for one in found
    ]
    return [*columns, "tasks", "attempts", "failed", "turns", "tokens"], rows


def compare(
    cli: Cli,
    file: Results,
    other: Annotated[
        Path | None, typer.Argument(metavar="[RESULTS]", help="The other file.", show_default=False)
    ] = None,
    by: Part = "environment",
    models: Models = None,
) -> ExitCode:
    """Compare two models, task by task.

    They are two in one file, or one in each of two; versions of the run are such as v12. The test asks how often equal
    models would differ as much.
    """
    from agentrl.cli import output
    from agentrl.evaluation import words
    from agentrl.evaluation.of_run import compared

    by_what = _by(by)
    (first, one), (second, another) = _two(cli, file, other, models or [])
    found = compared(one, another, by_what)
    if cli.json:
        output.emit({"first": first, "second": second, "parts": found})
        return ExitCode.OK
    for part in found:
        output.say(words.sentence(part, first, second))
        for task, difference in part.moved[:_MOST_MOVED]:
            output.say(f"    {difference:+.3g}  {task}")
    return ExitCode.OK


def export(
    cli: Cli,
    file: Results,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the logs are written.")],
    models: Models = None,
) -> ExitCode:
    """Write results as `.eval` logs, which the viewer of inspect opens."""
    from agentrl.cli import output
    from agentrl.evaluation import inspect_log

    if run_evaluations.version_of(file) is not None:
        hint = "`agentrl records export` has the trajectories of a run."
        raise UsageError(f"{file} is a version of the run, and logs are written of files.", hint=hint)
    try:
        written = inspect_log.write(_read(cli, file, models or []), to)
    except OSError as wrong:
        raise ConfigError(f"{to} cannot be written: {wrong.strerror}.") from wrong
    if cli.json:
        output.emit({"written": [str(each) for each in written]})
    else:
        output.say(f"Wrote {', '.join(map(str, written))}.")
    return ExitCode.OK


def _read(cli: Cli, file: Path, models: Sequence[str]) -> list[Attempt]:
    from agentrl.evaluation import results_file
    from agentrl.evaluation.summaries import models_of

    version = run_evaluations.version_of(file)
    found = results_file.counting(file) if version is None else run_evaluations.read(cli, version)
    if not found:
        hint = "`agentrl eval run` adds them." if version is None else "`agentrl eval list` shows how far it is."
        raise ConfigError(f"{file} has no results yet.", hint=hint)
    _refuse_unknown(file, models, models_of(found))
    return [one for one in found if not models or one.model in models]


def _refuse_unknown(file: Path, models: Sequence[str], known: Sequence[str]) -> None:
    for name in models:
        if name not in known:
            raise ConfigError(f"{file} has no results of {name!r}.", hint=f"It has those of {', '.join(known)}.")


def _two(cli: Cli, file: Path, other: Path | None, models: Sequence[str]) -> list[tuple[str, list[Attempt]]]:
    from agentrl.evaluation.summaries import models_of

    if other is not None:
        if models:
            raise UsageError("--model chooses among the models of one file.", hint="Give one file, or no --model.")
        found = [_read(cli, each, []) for each in (file, other)]
        for each, those in zip((file, other), found, strict=True):
            if len(models_of(those)) > 1:
                raise UsageError(f"{each} has several models: {', '.join(models_of(those))}.")
        names = [those[0].model for those in found]
        if names[0] == names[1]:
            names = [str(file), str(other)]
        return list(zip(names, found, strict=True))
    those = _read(cli, file, [])
    known = models_of(those)
    if chosen := list(dict.fromkeys(models)):
        _refuse_unknown(file, chosen, known)
    if len(chosen or known) != 2:
        hint = f"Choose two of {', '.join(known)} with --model." if len(known) > 1 else "Name the other file as well."
        has = (
            f"--model names {counted(len(chosen), 'models')}"
            if chosen
            else f"{file} has {counted(len(known), 'models')}"
        )
        raise UsageError(f"{has}, and two are compared.", hint=hint)
    return [(name, [one for one in those if one.model == name]) for name in chosen or known]


def _by(by: str) -> By:
    from agentrl.evaluation.summaries import BY

    for known in BY:
        if by == known:
            return known
    raise UsageError(f"--by {by}: it is one of {', '.join(BY)}.")

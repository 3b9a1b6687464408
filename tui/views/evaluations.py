"""Shows evaluations: those of the run's versions, and files that `agentrl eval run` wrote on this host.

Invariants:
- Without an answer of the steward the files are still shown, with the reason below.
- Files are read only if the console runs in a terminal: a browser page reads none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.client import Client, long_answers
from agentrl.config import typed_paths
from agentrl.errors import AgentrlError
from agentrl.evaluation import progress
from agentrl.evaluation.summaries import By, Compared
from agentrl.protocol.evaluation_commands import Attempt
from tui.dialogs.form import Field, Form, Question, Values
from tui.dialogs.rollback_form import ask_rollback
from tui.model import evaluation_tables
from tui.model.evaluation_tables import Evaluation, Source
from tui.model.styled_text import Line, Tone
from tui.model.table import Column
from tui.views.query_views import ANSWER_S, QueryPage, QueryTable, RecordLinksPage

USUAL_FILE = "results.jsonl"
"""The file that `agentrl eval run` writes if no other is named."""
VERSIONS = 50


class Evaluations(QueryTable):
    """Versions of the run and models of files; enter shows one by its parts."""

    name_in_registry = "evaluations"
    what = "evaluations"
    filled_by = "the trainer evaluates as `evaluation.every` says; f shows a file of `agentrl eval run`"
    filters_at_once = True
    follows_newest = True

    def __init__(self) -> None:
        super().__init__()
        self._away = ""
        """Why the versions of the run are not shown."""

    def columns(self) -> tuple[Column[Any], ...]:
        return evaluation_tables.columns()

    async def answered(self) -> dict[str, Any]:
        """The versions of the run, then the files; only the files if there is no answer."""
        self._away, rows = "", list[Evaluation]()
        try:
            rows = list((await super().answered()).values())
        except AgentrlError as error:
            self._away = str(error)
            of_files = await self._of_files(0)
            if not of_files:
                raise
            rows = of_files
        else:
            rows += await self._of_files(len(rows))
        return {row.key: row for row in rows}

    async def ask(self, client: Client) -> dict[str, Any]:
        found = await client.list_evaluations(VERSIONS, deadline_s=ANSWER_S)
        return {row.key: row for row in evaluation_tables.of_run(found)}

    async def _of_files(self, begin: int) -> list[Evaluation]:
        made = list[Evaluation]()
        for file in self._files():
            try:
                found = await self.actions.result_files.read(file)
            except AgentrlError as error:
                self._away = self._away or str(error)
                continue
            far = progress.read(Path(file))
            made += evaluation_tables.of_file(file, found.summaries, far, self.now(), begin + len(made))
        return made

    def _files(self) -> list[str]:
        if self.actions.settings.in_browser:
            return []
        usual = [USUAL_FILE] if Path(USUAL_FILE).is_file() else []
        return list(dict.fromkeys([*self.actions.result_files.opened, *usual]))

    def why_old(self) -> str:
        return super().why_old() or self._away

    def searched_text(self, row: Evaluation) -> str:
        return evaluation_tables.searched_text(row)

    def cli_line(self) -> tuple[str, ...]:
        return ("eval", "list")

    def open_row(self, row: Evaluation) -> None:
        self.actions.navigation.open_page(EvaluationPage(row.source))

    def do_evaluation_file(self) -> None:
        """Add a file of results."""
        if self.actions.settings.in_browser:
            self.actions.say("A browser page reads no files of this host. Open the console in a terminal.", Tone.WARN)
            return

        def wrong(values: Values) -> str:
            return "" if typed_paths.is_file(values[0].strip()) else "There is no such file."

        def then(values: Values | None) -> None:
            if values is not None:
                self.actions.result_files.opened.append(str(typed_paths.path_of(values[0].strip())))
                self._ask_now.set()

        field = Field("file", hint=USUAL_FILE)
        self.app.push_screen(Form(Question("Results of `agentrl eval run`", (), (field,), "show it", wrong)), then)

    def do_evaluation_compare(self) -> None:
        """Compare two marked rows, or the selected row with the row before it."""
        if (pair := self._pair()) is not None:
            self.actions.navigation.open_page(ComparisonPage(*pair))

    def _pair(self) -> tuple[Source, Source] | None:
        """Two rows, the older one first: the marked ones, or the selected one and the one before it."""
        model = self.table.model
        marked: list[Evaluation] = [each for key, each in model.rows if key in model.marked]
        sources = list(dict.fromkeys(each.source for each in sorted(marked, key=lambda each: -each.order)))
        if len(sources) == 2:
            return sources[0], sources[1]
        if marked:
            self.actions.say(f"Two models are compared, and {len(sources)} are marked.", Tone.WARN)
            return None
        row: Evaluation | None = self.selected()
        if row is None:
            return None
        rows: list[Evaluation] = sorted((each for _, each in model.rows), key=lambda each: each.order)
        before = next((each for each in rows if _comes_before(each, row)), None)
        if before is None:
            self.actions.say("Nothing comes before it. Mark two with space, then c.", Tone.WARN)
            return None
        return before.source, row.source

    def do_evaluation_rollback(self) -> None:
        """Go back to the checkpoint of the selected version."""
        row: Evaluation | None = self.selected()
        if row is None:
            return
        if row.checkpoint:
            ask_rollback(self.app, row.checkpoint, self.perform)
        else:
            self.actions.say(f"No complete checkpoint has the weights of {row.source.model}.", Tone.WARN)


def _comes_before(other: Evaluation, row: Evaluation) -> bool:
    return other.order > row.order and other.environment == row.environment and other.state == "done"


class _ResultsPage(QueryPage):
    """A page of attempts; attempts from files need no answer of the run."""

    async def answered(self) -> Any:
        if self.needs_run:
            return await super().answered()
        return await self.read(None)

    @property
    def needs_run(self) -> bool:
        raise NotImplementedError

    async def ask(self, client: Client) -> Any:
        return await self.read(client)

    async def read(self, client: Client | None) -> Any:
        raise NotImplementedError

    async def attempts_of(self, source: Source, client: Client | None) -> list[Attempt]:
        if source.version is None:
            those = await self.actions.result_files.read(source.file)
            return [one for one in those.attempts if one.model == source.model]
        assert client is not None
        return await long_answers.evaluated(client, source.version, deadline_s=ANSWER_S)


class EvaluationPage(_ResultsPage, RecordLinksPage):
    """One model: figures by environment, tag and difficulty, and its tasks; enter shows a record."""

    name_in_registry = "evaluation"

    def __init__(self, source: Source) -> None:
        super().__init__(f"evaluation of {source.model}", ("eval", "show", *source.words))
        self._source = source
        self._drawn: tuple[int, object, list[Line]] = (0, None, [])
        """The lines of an answer in a width."""

    @property
    def needs_run(self) -> bool:
        return self._source.version is not None

    async def read(self, client: Client | None) -> list[Attempt]:
        return await self.attempts_of(self._source, client)

    def content(self, width: int) -> list[Line]:
        """Kept, because a page is drawn at every round, and thousands of attempts are summed up for it."""
        of_width, answer, lines = self._drawn
        if of_width != width or answer is not self._answer:
            lines = evaluation_tables.of_attempts(self._answer, width)
            self._drawn = width, self._answer, lines
        return lines

    def records(self) -> Sequence[Mapping[str, Any]]:
        attempts: list[Attempt] = self._answer
        found = [one for one in attempts if one.record]
        worst = sorted(found, key=lambda one: -1.0 if one.score is None else one.score)
        return [{"id": one.record, "score": one.score, "outcome": one.outcome, "error": one.error} for one in worst]


class ComparisonPage(_ResultsPage):
    """Two models, task by task."""

    name_in_registry = "comparison"

    def __init__(self, first: Source, second: Source) -> None:
        same = first.file and first.file == second.file
        both = ("--model", first.model, "--model", second.model)
        words = (first.file, *both) if same else (first.file or first.model, second.file or second.model)
        super().__init__(f"{first.model} and {second.model}", ("eval", "compare", *words))
        self._sources = first, second

    @property
    def needs_run(self) -> bool:
        return any(source.version is not None for source in self._sources)

    async def read(self, client: Client | None) -> dict[By, list[Compared]]:
        first, second = [await self.attempts_of(source, client) for source in self._sources]
        return evaluation_tables.comparisons(first, second)

    def content(self, width: int) -> list[Line]:
        first, second = self._sources
        return evaluation_tables.of_comparison(first.model, second.model, self._answer, width)

"""The methods for notebooks: records and metrics as tables, one record as a page, and new steps as they are committed.

Invariants:
- They use the commands of the table, so permissions, filters and names are the same as everywhere else.
- Heavy packages are imported only when their result is made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agentrl.client import record_files, tables
from agentrl.client.command_methods import CommandMethods
from agentrl.client.long_answers import in_parts
from agentrl.errors import UnavailableError, UsageError
from agentrl.formatting.safe_text import sanitise
from agentrl.protocol.data_commands import Page, RecordStory
from agentrl.protocol.rows import FINISHED, AnyRow, RunRow, UnitRow

Row = Mapping[str, Any]
ANSWER_S = 60.0
ROWS_AT_ONCE = 200
"""This few, because a step has some hundred metrics and an answer must fit into a message."""
COMMITTED = "status=committed"
OF_STEP = ("step", "status", "lineage", "base_version", "committed_at", "duration_s")
_OVER = (FINISHED, "stopped", "stopping")


class RecordView:
    """One record, for a notebook: shown as a page in a frame, saved as a page or as a trace."""

    def __init__(
        self, story: RecordStory, images: Mapping[str, bytes], others: Sequence[Mapping[str, Any]], run: str
    ) -> None:
        self.story = story
        """All turns; texts have marks where images are."""
        self.images = images
        self.others = others
        """Calls of judges and other models that the record caused."""
        self._run = run

    def __repr__(self) -> str:
        score = self.story.record.get("score")
        return sanitise(f"<record {self.story.record['id']}: {self.story.ending['sentence']}, score {score}>")

    def _repr_html_(self) -> str:
        from agentrl.formatting import record_page

        return record_page.frame(self.html)

    @property
    def html(self) -> str:
        from agentrl.formatting import record_page

        return record_page.page(self.story, self.images, self.others, run=self._run)

    @property
    def trace(self) -> bytes:
        """JSON for Perfetto."""
        from agentrl.formatting import record_timeline

        return record_timeline.trace(self.story, self.others)

    def save(self, file: Path | str) -> Path:
        """Saves the record as a page (.html) or as a trace (.json)."""
        path = Path(file)
        if path.suffix not in (".html", ".json"):
            raise UsageError(f"{path} is of an unknown kind.", hint="A page ends in .html, a trace in .json.")
        record_files.write_new(path, self.html.encode() if path.suffix == ".html" else self.trace)
        return path


class NotebookMethods(CommandMethods):
    """The methods of `Client` for notebooks."""

    async def records(
        self, filter: str = "", *, sort: str = "", limit: int | None = 1000, form: tables.Form = "pandas"
    ) -> Any:
        """Records as a table, the newest first; `limit=None` for all. See `agentrl records list` for the filter."""
        tables.check(form)
        rows = await _rows(self.list_records, {"filter": filter, "sort": sort}, limit)
        return tables.table(rows, form, first=("id", "task", "environment", "status", "score"))

    async def metrics(
        self, *names: str, filter: str = "", limit: int | None = 1000, form: tables.Form = "pandas"
    ) -> Any:
        """Metrics of the newest committed steps as a table by step, the oldest first: all, or those of these names,
        such as `reward_mean` or `tools/*`."""
        tables.check(form)
        query = f"{COMMITTED} and ({filter})" if filter else COMMITTED
        found = await _rows(self.list_steps, {"filter": query}, limit)
        rows = [_metrics_of(row, names) for row in reversed(found)]
        return tables.table(rows, form, index="step", first=OF_STEP)

    async def record(self, id: str, *, chars: int = record_files.CHARS) -> RecordView:
        """One complete record; as the last line of a cell it is shown as a page."""
        story = await record_files.whole_story(self, id, chars=chars, marks=True)
        images = await record_files.images(self, story)
        return RecordView(story, images, await record_files.of_other_models(self, id), self.run_name)

    async def watch(self, *names: str) -> AsyncGenerator[dict[str, Any], None]:
        """The metrics of each step that is committed from now on, until the run ends."""
        last = await _rows(self.list_steps, {"filter": COMMITTED}, ROWS_AT_ONCE)
        seen = {str(row["id"]) for row in last}
        # After a rollback, steps with smaller numbers than `last` may be the newest that count.
        begun = max((row["committed_at"] for row in last), default=None)
        reported = 0.0
        async with aclosing(self.follow(("run", "unit"))) as changes:
            async for _, row in changes:
                over = isinstance(row, RunRow) and row.state in _OVER
                # After a rollback step numbers are used again, so a number only signals that there is a new step.
                if over or _step_of(row) not in (0.0, reported):
                    try:
                        newest = await _rows(self.list_steps, {"filter": COMMITTED}, ROWS_AT_ONCE)
                    except UnavailableError:
                        newest = []  # The steward has ended with the run, or it comes back and is asked again.
                    else:
                        reported = _step_of(row) or reported
                    for found in reversed(newest):
                        if found["id"] not in seen and (begun is None or found["committed_at"] > begun):
                            seen.add(str(found["id"]))
                            yield _metrics_of(found, names)
                if over:
                    return

    # ---- methods that the client provides ----

    @property
    @abstractmethod
    def run_name(self) -> str: ...

    @abstractmethod
    def follow(self, kinds: Iterable[str] = ()) -> AsyncGenerator[tuple[str, AnyRow | None], None]: ...


def _step_of(row: AnyRow | None) -> float:
    """The last step of a trainer; 0 for any other row."""
    return row.metrics.get("step", 0.0) if isinstance(row, UnitRow) and row.role == "trainer" else 0.0


def _metrics_of(row: Row, names: tuple[str, ...]) -> dict[str, Any]:
    chosen = {
        name: value
        for name, value in row["metrics"].items()
        if not names or any(fnmatchcase(name, pattern) for pattern in names)
    }
    return {**{name: row.get(name) for name in OF_STEP}, **chosen}


async def _rows(ask: Callable[..., Coroutine[Any, Any, Page]], query: Row, limit: int | None) -> list[Row]:
    """The rows of a list from as many pages as necessary."""

    async def page(after: str, most: int) -> tuple[Sequence[Row], str]:
        found = await ask(**query, after=after, limit=most, deadline_s=ANSWER_S)
        return found.rows, found.after

    return await in_parts(page, at_once=ROWS_AT_ONCE, limit=limit)

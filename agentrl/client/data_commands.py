"""The methods for what the steward serves: tasks, records, steps, checkpoints, versions.

Invariant: as in `agentrl.client.commands`. Rows have the fields of the documents, and times are datetimes in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from agentrl.client.calling import Calling
from agentrl.protocol.commands import Accepted
from agentrl.protocol.data_commands import (
    AccountReport,
    AddTasks,
    ExportPart,
    ExportRecords,
    ListRows,
    Page,
    PinCheckpoint,
    RecordStory,
    RecordTokens,
    RequeueTasks,
    ShowOne,
    ShowRecord,
    Staleness,
    StalenessReport,
    Story,
    TokenPart,
    ToolErrorGroup,
    ToolErrors,
    UnpinCheckpoint,
)


class DataMethods(Calling):
    async def list_tasks(
        self, *, filter: str = "", sort: str = "", after: str = "", limit: int = 100, deadline_s: float | None = None
    ) -> Page:
        """Rows of datasets and what became of them."""
        return await self._page("list_tasks", ListRows(filter, sort, after, limit), deadline_s)

    async def list_records(
        self, *, filter: str = "", sort: str = "", after: str = "", limit: int = 100, deadline_s: float | None = None
    ) -> Page:
        """Attempts, with what those under way are doing."""
        return await self._page("list_records", ListRows(filter, sort, after, limit), deadline_s)

    async def list_failed_calls(
        self, *, filter: str = "", sort: str = "", after: str = "", limit: int = 100, deadline_s: float | None = None
    ) -> Page:
        """Tool calls that failed, each for itself."""
        return await self._page("list_failed_calls", ListRows(filter, sort, after, limit), deadline_s)

    async def list_steps(
        self, *, filter: str = "", sort: str = "", after: str = "", limit: int = 100, deadline_s: float | None = None
    ) -> Page:
        """Trained batches with their metrics."""
        return await self._page("list_steps", ListRows(filter, sort, after, limit), deadline_s)

    async def list_checkpoints(
        self, *, filter: str = "", sort: str = "", after: str = "", limit: int = 100, deadline_s: float | None = None
    ) -> Page:
        """What was saved."""
        return await self._page("list_checkpoints", ListRows(filter, sort, after, limit), deadline_s)

    async def list_versions(
        self, *, filter: str = "", sort: str = "", after: str = "", limit: int = 100, deadline_s: float | None = None
    ) -> Page:
        """Published weights, and which engine serves them."""
        return await self._page("list_versions", ListRows(filter, sort, after, limit), deadline_s)

    async def staleness(self, *, deadline_s: float | None = None) -> StalenessReport:
        """How old what is ready and under way is, and what another bound would void."""
        return cast(StalenessReport, await self.call("staleness", Staleness(), deadline_s=deadline_s))

    async def show_task(self, id: str, *, deadline_s: float | None = None) -> Story:
        """One task with its attempts and the step that took it."""
        return cast(Story, await self.call("show_task", ShowOne(id), deadline_s=deadline_s))

    async def show_record(
        self, id: str, *, after_turn: int = -1, limit: int = 100, chars: int = 4000, deadline_s: float | None = None
    ) -> RecordStory:
        """One attempt, turn by turn; `chars` 0 leaves texts as long as they are."""
        args = ShowRecord(id, after_turn, limit, chars)
        return cast(RecordStory, await self.call("show_record", args, deadline_s=deadline_s))

    async def record_tokens(
        self, id: str, *, start: int = 0, limit: int = 5000, deadline_s: float | None = None
    ) -> TokenPart:
        """A part of an attempt's tokens; `agentrl.client.long_answers.tokens` puts the parts together."""
        return cast(TokenPart, await self.call("record_tokens", RecordTokens(id, start, limit), deadline_s=deadline_s))

    async def show_step(self, id: str, *, deadline_s: float | None = None) -> Story:
        """One step with the records that it trained."""
        return cast(Story, await self.call("show_step", ShowOne(id), deadline_s=deadline_s))

    async def show_checkpoint(self, id: str, *, deadline_s: float | None = None) -> Story:
        """One checkpoint with its files and the version that was published from it."""
        return cast(Story, await self.call("show_checkpoint", ShowOne(id), deadline_s=deadline_s))

    async def export_records(
        self, *, filter: str = "", after: str = "", offset: int = 0, limit: int = 0, deadline_s: float | None = None
    ) -> ExportPart:
        """A stretch of JSON lines, each a whole trajectory; go on with its `after` and `offset` until `end`."""
        args = ExportRecords(filter, after, offset, limit)
        return cast(ExportPart, await self.call("export_records", args, deadline_s=deadline_s))

    async def tool_errors(
        self, *, filter: str = "", limit: int = 50, deadline_s: float | None = None
    ) -> list[ToolErrorGroup]:
        """Errors of tools and calls that could not be read, grouped by what they say."""
        return cast(
            list[ToolErrorGroup], await self.call("tool_errors", ToolErrors(filter, limit), deadline_s=deadline_s)
        )

    async def accounting(self, *, deadline_s: float | None = None) -> AccountReport:
        """Every task, record, seat and step, and what does not agree."""
        return cast(AccountReport, await self.call("accounting", deadline_s=deadline_s))

    async def requeue_tasks(
        self, ids: Iterable[str], *, note: str = "", request_id: str | None = None, deadline_s: float | None = None
    ) -> Accepted:
        """Sample tasks again, in their next round."""
        return await self._act("requeue_tasks", RequeueTasks(tuple(ids), note), request_id, deadline_s)

    async def add_tasks(
        self, environment: str, file: str, *, request_id: str | None = None, deadline_s: float | None = None
    ) -> Accepted:
        """Rows of a file on the steward's host become tasks of an environment."""
        return await self._act("add_tasks", AddTasks(environment, file), request_id, deadline_s)

    async def pin_checkpoint(
        self, id: str, *, request_id: str | None = None, deadline_s: float | None = None
    ) -> Accepted:
        """Keep a checkpoint, whatever retention says."""
        return await self._act("pin_checkpoint", PinCheckpoint(id), request_id, deadline_s)

    async def unpin_checkpoint(
        self, id: str, *, request_id: str | None = None, deadline_s: float | None = None
    ) -> Accepted:
        """Leave a checkpoint to retention again."""
        return await self._act("unpin_checkpoint", UnpinCheckpoint(id), request_id, deadline_s)

    async def _page(self, name: str, args: ListRows, deadline_s: float | None) -> Page:
        return cast(Page, await self.call(name, args, deadline_s=deadline_s))

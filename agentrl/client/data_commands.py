"""The methods for what the steward serves: tasks, records, steps, checkpoints, versions.

Invariant: as in `agentrl.client.commands`. Rows have the fields of the documents, and times are datetimes in UTC.
"""

from __future__ import annotations

from typing import cast

from agentrl.client.calling import Calling
from agentrl.protocol.data import ListRows, Page


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

    async def _page(self, name: str, args: ListRows, deadline_s: float | None) -> Page:
        return cast(Page, await self.call(name, args, deadline_s=deadline_s))

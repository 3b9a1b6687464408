"""The account as it is told to people."""

from __future__ import annotations

import msgspec

from agentrl.protocol.data_commands import AccountReport
from agentrl.store import accounting
from agentrl.store.database import Database


async def report(database: Database, max_trained_count: int) -> AccountReport:
    account = await accounting.account(database, max_trained_count=max_trained_count)
    plain = msgspec.to_builtins(account)
    return msgspec.convert({**plain, "balanced": account.balanced}, AccountReport)

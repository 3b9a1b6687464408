"""How a method of the client asks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

from agentrl.protocol.commands import Accepted
from agentrl.protocol.effects import Consent
from agentrl.protocol.message_base import Args


class Calling(ABC):
    @abstractmethod
    async def call(
        self,
        name: str,
        args: Args | Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        deadline_s: float | None = None,
        consent: Consent | None = None,
    ) -> Any: ...

    async def _act(self, name: str, args: Args, request_id: str | None, deadline_s: float | None) -> Accepted:
        return cast(Accepted, await self.call(name, args, id=request_id, deadline_s=deadline_s))

"""Admitting and revoking keys.

Invariant: a revocation holds from the next message on, and ends every subscription on tcp; those whose key is still
good come back by themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from agentrl.control.commands.acts import Act
from agentrl.control.context import Context
from agentrl.control.state.operations import Goal, Operation
from agentrl.protocol import commands
from agentrl.protocol.effects import Effect


class KeyActs:
    def __init__(self, context: Context, rebind: Callable[[], None]) -> None:
        self._context = context
        self._rebind = rebind
        self.table: dict[str, Act] = {
            "add_key": Act(self._preview_add, self._add),
            "revoke_key": Act(self._preview_revoke, self._revoke),
        }

    def _preview_add(self, args: commands.AddKey) -> Effect:
        known = self._context.keyring.check(args.name, args.public, args.permission)
        return Effect() if known else Effect(changes=(f"the key {args.name} may act as {args.permission}",))

    def _preview_revoke(self, args: commands.RevokeKey) -> Effect:
        known = self._context.keyring.find(args.name)
        return Effect() if known.revoked_at else Effect(loses=(f"the key {args.name} is refused for good",))

    def _add(self, operation: Operation, args: commands.AddKey) -> dict[str, Goal]:
        self._context.keyring.add(args.name, args.public, args.permission, self._context.clock.now())
        return {}

    def _revoke(self, operation: Operation, args: commands.RevokeKey) -> dict[str, Goal]:
        self._context.keyring.revoke(args.name, self._context.clock.now())
        self._rebind()
        return {}

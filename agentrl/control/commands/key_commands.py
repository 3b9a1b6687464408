"""Executes commands that admit and revoke keys.

Invariants:
- A revocation holds from the next message on and ends every subscription over tcp.
- Peers with a valid key reconnect by themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from agentrl.control.commands.prepared import Prepare, Prepared
from agentrl.control.context import Context
from agentrl.control.state.operations import Operation
from agentrl.protocol import control_commands
from agentrl.protocol.effects import Effect


class KeyCommands:
    def __init__(self, context: Context, rebind: Callable[[], None]) -> None:
        self._context = context
        self._rebind = rebind
        self.table: dict[str, Prepare] = {"add_key": self._add, "revoke_key": self._revoke}

    def _add(self, args: control_commands.AddKey) -> Prepared:
        keyring = self._context.keyring
        known = keyring.check(args.name, args.public, args.permission)

        def execute(operation: Operation) -> None:
            keyring.add(args.name, args.public, args.permission, self._context.clock.now())

        change = f"the key {args.name} may act as {args.permission}"
        return Prepared(Effect() if known else Effect(changes=(change,)), execute)

    def _revoke(self, args: control_commands.RevokeKey) -> Prepared:
        keyring = self._context.keyring
        revoked = keyring.find(args.name).revoked_at

        def execute(operation: Operation) -> None:
            keyring.revoke(args.name, self._context.clock.now())
            self._rebind()

        return Prepared(Effect() if revoked else Effect(loses=(f"the key {args.name} is refused for good",)), execute)

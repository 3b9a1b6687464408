"""Carries out `keys rotate`: replaces the run's HTTP token and the authority of its tunnels while the run lives.

Invariants:
- Each step reaches every connected host before the next begins, so no call is refused: first the new secret is accepted
  as well, then it is used, and then only the new one is accepted.
- A coordinator that restarts during a rotation repeats the steps with the secrets that are already half replaced; it
  never makes a third one.
- A host that is away gets the present secrets when it comes back.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from pathlib import Path

from agentrl.config.http_token import TOKEN_FILE, generation, token_after, tokens_in_file
from agentrl.control.commands.prepared import Prepare, Prepared
from agentrl.control.context import Context
from agentrl.control.host_tunnels import HostTunnels
from agentrl.control.persistence.atomic_file import replace_file
from agentrl.control.state.operations import Operation
from agentrl.errors import AgentrlError, RefusedError
from agentrl.protocol.control_commands import RotateKeys
from agentrl.protocol.effects import Effect
from agentrl.protocol.rows import OperationState

log = logging.getLogger(__name__)

COMMAND = "rotate_keys"
STEP_S = 5.0
"""How long messages to hosts may take, and calls that read the secrets before the step."""


class Step(enum.IntEnum):
    ACCEPT = 0
    USE = 1
    DROP = 2


class KeyRotation:
    def __init__(self, context: Context, state_dir: Path, tunnels: HostTunnels) -> None:
        self._context = context
        self._state_dir = state_dir
        self._tunnels = tunnels
        self._next: dict[str, tuple[Step, float]] = {}
        """For each operation, its next step and the time of that step."""
        self.table: dict[str, Prepare] = {COMMAND: self._prepare}

    def _prepare(self, args: RotateKeys) -> Prepared:
        config = self._context.config
        if config is None or not (config.has_mongo or config.environments):
            raise RefusedError("This run has no secrets of its own to replace.", hint="`agentrl keys` has the others.")
        changes = ["the token of the HTTP listeners is replaced; calls go on"]
        if self._tunnels.needed:
            changes.append("the authority of the tunnels and the certificates of all hosts are replaced; calls go on")

        def execute(operation: Operation) -> None:
            operation.by_itself = True

        return Prepared(Effect(changes=tuple(changes)), execute)

    def tick(self, now: float) -> None:
        live = [op for op in self._context.operations.live() if op.command == COMMAND]
        # Rotations are done one after the other: two at a time would drop each other's secrets.
        for operation in live[:1]:
            step, at = self._next.get(operation.id, (Step.ACCEPT, now))
            if operation.state is not OperationState.RUNNING or now < at:
                continue
            try:
                self._take(step)
            except AgentrlError as failed:
                self._context.operations.finish(operation, OperationState.FAILED, now, str(failed))
                continue
            log.info("the secrets of the run are replaced: step %s", step.name.lower())
            if step is Step.DROP:
                self._next.pop(operation.id, None)
                self._context.operations.finish(operation, OperationState.SUCCEEDED, now)
            else:
                self._next[operation.id] = (Step(step + 1), now + STEP_S)
                self._context.operations.waits_for(operation, "the hosts to take the new secrets")

    def _take(self, step: Step) -> None:
        self._replace_token(step)
        if self._tunnels.needed:
            authority = self._tunnels.authority
            match step:
                case Step.ACCEPT:
                    authority.prepare_next()
                    self._tunnels.tell_all()
                case Step.USE:
                    authority.issue_by_next()
                    self._tunnels.issue_again()
                case Step.DROP:
                    authority.drop_former()
                    self._tunnels.tell_all()
            for host in self._context.peers.hosts():
                self._tunnels.send_secrets(host)

    def _replace_token(self, step: Step) -> None:
        tokens = tokens_after(step, tokens_in_file(self._state_dir))
        replace_file(self._state_dir / TOKEN_FILE, "\n".join(tokens).encode(), mode=0o600)


def tokens_after(step: Step, tokens: Sequence[str]) -> list[str]:
    """The accepted tokens, the one that clients send first. A step that is taken twice changes nothing more."""
    match step:
        case Step.ACCEPT:
            return list(tokens) if len(tokens) > 1 else [*tokens, token_after(tokens[0])]
        case Step.USE:
            return sorted(tokens, key=generation, reverse=True)
        case Step.DROP:
            return [max(tokens, key=generation)]

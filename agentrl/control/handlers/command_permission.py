"""Decides whether a client may execute a command.

Invariants:
- The permission is looked up for every request, so a revoked key is refused at its next one.
- An unknown command, a missing permission, an expired deadline and wrong arguments are refused before anything else
  happens.
"""

from __future__ import annotations

from typing import Any

from agentrl import __version__
from agentrl.control.context import Context
from agentrl.errors import AgentrlError, ExitCode, ProtocolError, UsageError
from agentrl.protocol.commands import COMMANDS, CommandSpec
from agentrl.protocol.messages import Permission, Request
from agentrl.protocol.wire import decode_as
from agentrl.transport.hub import Peer


def of_peer(peer: Peer, context: Context) -> Permission | None:
    """The permission of a connection: the permission of its key, or of the local process. A revoked key has none."""
    if peer.local:
        return context.local_peers.permission(peer)
    return context.keyring.permission(peer.key_name or "")


def admitted(request: Request, peer: Peer, *, context: Context) -> tuple[CommandSpec, Any]:
    """The command that a request names, and its arguments. Raises the error with which the request is refused."""
    spec = COMMANDS.get(request.name)
    if spec is None:
        raise _refusal(
            ExitCode.UNKNOWN,
            f"The coordinator (agentrl {__version__}) knows no command {request.name[:60]!r}.",
            "Use the same version on both sides.",
        )
    may = of_peer(peer, context)
    if may is None and peer.local:
        refused = context.local_peers.refusal_of_client(peer)
        raise _refusal(ExitCode.KEY_REFUSED, refused.message, refused.hint)
    if may is None:
        raise _refusal(ExitCode.KEY_REFUSED, f"The key {peer.key_name} was revoked.", "An admin can make another.")
    if not may.allows(spec.permission):
        raise _refusal(
            ExitCode.REFUSED,
            f"`agentrl {spec.cli}` needs the permission {spec.permission}; {_whose(peer, context)} is {may}.",
            f"Set `permission: {spec.permission}` of the sidecar in the run file."
            if peer.local
            else f"Ask an admin for a key: `agentrl keys new NAME --permission {spec.permission}`.",
        )
    now = context.clock.now()
    late = now - request.deadline_ct if request.deadline_ct is not None else 0.0
    if late > 0:
        raise _refusal(
            ExitCode.REFUSED,
            f"The command {spec.cli} came {late:.1f} s after its deadline; nothing was done.",
            "Send it again if you still want it.",
        )
    return spec, _arguments(spec, request)


def _whose(peer: Peer, context: Context) -> str:
    return f"that of {context.local_peers.owner(peer)}" if peer.local else f"the key {peer.key_name}"


def _arguments(spec: CommandSpec, request: Request) -> Any:
    try:
        args = decode_as(spec.args, request.args)
    except ProtocolError as broken:
        raise _refusal(ExitCode.USAGE, f"The arguments of {spec.cli} are wrong: {broken.message}", "") from broken
    if problem := args.problem():
        raise UsageError(problem)
    return args


def _refusal(code: ExitCode, message: str, hint: str) -> AgentrlError:
    failed = AgentrlError(message, hint=hint)
    failed.exit_code = code
    return failed

"""The environment of a rank of a gang: variables with torchrun's names, by which torch and accelerate find the other
ranks.

Invariants:
- A gang on one host stays on loopback. A gang on several hosts uses the private addresses that the run file names.
- No rank is started if the ranks could not connect: because the port is taken, or the private address does not belong
  to this host.
"""

from __future__ import annotations

import errno
import socket

import psutil

from agentrl.errors import ConfigError
from agentrl.protocol.specs import Rank

LOOPBACK = "127.0.0.1"
EPOCH = "AGENTRL_GANG_EPOCH"


def of_rank(rank: Rank) -> dict[str, str]:
    numbers = {
        "MASTER_PORT": rank.port,
        "WORLD_SIZE": rank.ranks,
        "RANK": rank.rank,
        "LOCAL_RANK": rank.local_rank,
        "LOCAL_WORLD_SIZE": rank.local_ranks,
        "GROUP_RANK": rank.node,
        "NODE_RANK": rank.node,
        "GROUP_WORLD_SIZE": rank.nodes,
        EPOCH: rank.epoch,
    }
    return {"MASTER_ADDR": rank.address or LOOPBACK, **{name: str(number) for name, number in numbers.items()}}


def interfaces(rank: Rank) -> dict[str, str]:
    """The interfaces on which gloo and NCCL listen and connect. Without them they would use the address of the
    hostname. Raises ConfigError."""
    name = _interface(rank.own_address or LOOPBACK)
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), name)


def _interface(address: str) -> str:
    for name, found in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in found):
            return name
    raise ConfigError(
        f"{address} is no address of this host.",
        hint="Correct `private` of the host in the run file, then `agentrl up`.",
    )


def port_taken(rank: Rank | None) -> str:
    """A sentence if the ranks could not connect to rank 0, which is about to start here. The next epoch gets another
    port."""
    if rank is None or rank.rank:
        return ""
    # The store of torch listens on all addresses.
    for family, any_address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family is socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.bind((any_address, rank.port))
        except OSError as failed:
            if failed.errno == errno.EADDRINUSE:
                return f"Port {rank.port}, where its gang was to meet, is taken."
    return ""

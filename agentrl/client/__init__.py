"""Provides the client of the coordinator for the command line, the console, scripts and notebooks.

Invariants:
- Every command of the table has a method.
- Every failure is one of `agentrl.errors`.
- A request is carried out at most once, even if it is sent several times.
- The package imports nothing heavy, because every quick command loads it.
"""

from agentrl.client.client import CAUGHT_UP, RESET, SILENT, Client, View
from agentrl.client.discovery import Target, find
from agentrl.transport.curve_keys import ClientKey, KeyPair, new_keypair

__all__ = [
    "CAUGHT_UP",
    "RESET",
    "SILENT",
    "Client",
    "ClientKey",
    "KeyPair",
    "Target",
    "View",
    "find",
    "new_keypair",
]

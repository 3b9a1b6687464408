"""agentrl: reinforcement learning of language-model agents, with a control plane for the person who runs it.

Importing this package is free: everything heavier is loaded when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.client.blocking import connect as connect

__version__ = "0.1.0"
__all__ = ["__version__", "connect"]


def __getattr__(name: str) -> object:
    if name == "connect":
        from agentrl.client.blocking import connect

        return connect
    raise AttributeError(f"module 'agentrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

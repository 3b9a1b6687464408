"""agentrl: reinforcement learning of language-model agents, with a control plane for the person who runs it.

Importing this package is free: everything heavier is loaded when it is first used.
"""

__version__ = "0.1.0"

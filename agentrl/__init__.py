"""agentrl: reinforcement learning of language-model agents, with a control plane for the person who runs it.

Importing this package is free: everything heavier is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.client.blocking import connect as connect
    from agentrl.client.client import Client as Client
    from agentrl.environments.conversation import Conversation as Conversation
    from agentrl.environments.conversation import Reply as Reply
    from agentrl.environments.environment import Environment as Environment
    from agentrl.environments.environment import agent as agent
    from agentrl.environments.episodes import Episode as Episode
    from agentrl.environments.episodes import ToolCall as ToolCall
    from agentrl.environments.judge import judge as judge
    from agentrl.environments.other_models import OtherModelError as OtherModelError
    from agentrl.environments.other_models import other_model as other_model
    from agentrl.environments.rubric import Score as Score
    from agentrl.environments.rubric import metric as metric
    from agentrl.environments.rubric import scorer as scorer
    from agentrl.environments.simulated_user import simulated_user as simulated_user
    from agentrl.toolservers.user_names import Image as Image
    from agentrl.toolservers.user_names import Session as Session
    from agentrl.toolservers.user_names import Task as Task
    from agentrl.toolservers.user_names import ToolError as ToolError
    from agentrl.toolservers.user_names import tool as tool

__version__ = "0.1.0"
_PLACES = {
    "Client": "client.client",
    "Conversation": "environments.conversation",
    "Environment": "environments.environment",
    "Episode": "environments.episodes",
    "OtherModelError": "environments.other_models",
    "Image": "toolservers.user_names",
    "Reply": "environments.conversation",
    "Score": "environments.rubric",
    "Session": "toolservers.user_names",
    "Task": "toolservers.user_names",
    "ToolCall": "environments.episodes",
    "ToolError": "toolservers.user_names",
    "agent": "environments.environment",
    "connect": "client.blocking",
    "judge": "environments.judge",
    "metric": "environments.rubric",
    "other_model": "environments.other_models",
    "scorer": "environments.rubric",
    "simulated_user": "environments.simulated_user",
    "tool": "toolservers.user_names",
}
"""The module that each public name is in. It is imported when the name is first used."""
__all__ = ["__version__", *sorted(_PLACES)]


def __getattr__(name: str) -> object:
    if (place := _PLACES.get(name)) is None:
        raise AttributeError(f"module 'agentrl' has no attribute {name!r}")
    return getattr(import_module(f"agentrl.{place}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Makes the relative paths of a configuration absolute.

Invariant: a path is relative to the directory of the file that contains it; a path from a default, a variable or
`--set` is relative to the run file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from agentrl.adapters.sources import source_of
from agentrl.config.data_plane import ToolServer
from agentrl.config.hub_words import is_hub_word
from agentrl.config.placement import Placement
from agentrl.config.run import RunConfig
from agentrl.config.tool_sandbox import Sandbox
from agentrl.config.typed_paths import path_of

At = tuple[str, ...]
Beside = Callable[[At, str], str]
"""The absolute form of the path at a key; an empty path stays empty."""


def absolute(config: RunConfig, directory_of: Callable[[At], Path]) -> RunConfig:
    def beside(at: At, path: str) -> str:
        return os.path.normpath(directory_of(at) / path_of(path)) if path else ""

    sidecars = {
        # A command without its own directory runs in the directory of the file that names it.
        name: sidecar.model_copy(update={"cwd": _cwd(("sidecars", name), sidecar.cwd, beside)})
        for name, sidecar in config.sidecars.items()
    }
    state = beside(("coordinator", "state_dir"), config.coordinator.state_dir)
    return config.model_copy(
        update={
            "extends": beside(("extends",), config.extends),
            "dir": beside(("dir",), config.dir or f"runs/{config.name}"),
            "sidecars": sidecars,
            "coordinator": config.coordinator.model_copy(update={"state_dir": state}),
            "placement": _placement_paths(config, beside),
            **_data_paths(config, beside),
        }
    )


def python_at(python: str, place: str) -> str:
    """The interpreter: `place` if its name is a path. A word without a slash is searched on the PATH."""
    return place if "/" in python else python


def _placement_paths(config: RunConfig, beside: Beside) -> Placement:
    ssh = config.placement.ssh
    if ssh is None:
        return config.placement
    own = {key: beside(("placement", "ssh", key), getattr(ssh, key)) for key in ("identity", "config")}
    return config.placement.model_copy(update={"ssh": ssh.model_copy(update=own)})


def _cwd(at: At, cwd: str, beside: Beside) -> str:
    return beside((*at, "cwd"), cwd) if cwd else beside((*at, "command"), ".")


def _placed(at: At, paths: Sequence[str], beside: Beside) -> tuple[str, ...]:
    return tuple(path if path.startswith("{run_dir}") else beside(at, path) for path in paths)


def sandbox_paths(at: At, sandbox: Sandbox, beside: Beside) -> Sandbox:
    """Makes the paths of a sandbox absolute. `at` is the section that contains the sandbox."""
    own = {name: _placed((*at, "sandbox", name), getattr(sandbox, name), beside) for name in ("read", "write")}
    return sandbox.model_copy(update=own)


def _tool_paths(at: At, server: ToolServer, beside: Beside) -> ToolServer:
    return server.model_copy(
        update={
            "cwd": _cwd(at, server.cwd, beside),
            "sandbox": sandbox_paths(at, server.sandbox, beside),
            "functions": beside((*at, "functions"), server.functions),
            "corpus": _placed((*at, "corpus"), server.corpus, beside),
            "workspace": beside((*at, "workspace"), server.workspace),
        }
    )


def _data_paths(config: RunConfig, beside: Beside) -> dict[str, object]:
    """Makes the paths in the sections of the data plane absolute."""
    environments = {
        name: each.model_copy(
            update={
                key: beside(("environments", name, key), getattr(each, key))
                for key in ("code", "dataset", "evaluation")
                if not (source_of(each.code) if key == "code" else is_hub_word(getattr(each, key)))
            }
            | {
                "python": python_at(each.python, beside(("environments", name, "python"), each.python)),
                "sandbox": sandbox_paths(("environments", name), each.sandbox, beside),
            }
        )
        for name, each in config.environments.items()
    }
    tools = {
        name: server if server.address else _tool_paths(("tools", name), server, beside)
        for name, server in config.tools.items()
    }
    model = config.model and config.model.model_copy(update={"path": beside(("model", "path"), config.model.path)})
    code = tuple(beside(("rollout", "code"), path) for path in config.rollout.code)
    agent_config = beside(("rollout", "agent_config"), config.rollout.agent_config)
    python = python_at(config.engines.python, beside(("engines", "python"), config.engines.python))
    training = config.training
    warmup = beside(("training", "warmup", "dataset"), training.warmup.dataset)
    return {
        "environments": environments,
        "tools": tools,
        "rollout": config.rollout.model_copy(update={"code": code, "agent_config": agent_config}),
        "model": model,
        "engines": config.engines.model_copy(update={"python": python}),
        "training": training.model_copy(
            update={
                "warmup": training.warmup.model_copy(update={"dataset": warmup}),
                "demonstrations": beside(("training", "demonstrations"), training.demonstrations),
            }
        ),
    }

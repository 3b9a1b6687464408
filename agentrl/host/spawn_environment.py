"""The environment and the command line of the processes of a run.

Invariants:
- Every process carries the mark of its run.
- A unit gets the variables in INHERITED and those that the run file names, and no other variable of its operator.
- A unit sees the devices that the coordinator gave to it, whatever its `env` contains.
- A secret is resolved at the spawn; neither it nor a part of it is ever in a message, a log or an argument list.
"""

from __future__ import annotations

import fnmatch
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.config.secrets import is_reference, resolve_secret
from agentrl.errors import ConfigError
from agentrl.host import gang_environment, procfs
from agentrl.host.accelerators import Accelerators
from agentrl.protocol.messages import Spawn
from agentrl.protocol.specs import Probe, Role, incarnation_name, split_unit
from agentrl.tracing import trace_context

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "TERM", "TZ", "TMPDIR", "LANG", "LANGUAGE", "LC_*"),
    *("XDG_*", "AGENTRL_HOME", "AGENTRL_CACHE", "VIRTUAL_ENV", "CONDA_*", "PYTHON*", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "ROCR_*", "HIP_*", "TORCH*", "PYTORCH_*", "TRITON_*", "SGLANG_*"),
    *("OMP_*", "MKL_*", "KMP_*", "OPENBLAS_*", "GOMP_*", "MALLOC_*", "AGENTRL_LOG_FORMAT"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_*", "TOKENIZERS_PARALLELISM"),
)
"""Variables that units get from their host agent, which got them from `agentrl up`; `*` stands for any characters."""
_INHERITED = re.compile("|".join(fnmatch.translate(pattern) for pattern in INHERITED))


@dataclass(frozen=True)
class Home:
    """Settings that all processes of one agent share."""

    run: str
    host: str
    state_dir: Path
    run_dir: Path
    key: Path | None = None
    """The key file with which units reach the coordinator; None on the coordinator's own host."""
    coordinator: str = ""
    """The coordinator's address for the agent itself."""
    host_key: str = field(default="", repr=False)
    """Proves to the coordinator on another host that this machine is this host. Units do not get it."""
    units_key: str = ""
    """The public half of `key`."""


def filled(text: str, home: Home, unit: str) -> str:
    """Replace the placeholders. Other braces stay, because commands contain them."""
    if "{" not in text:
        return text
    for name, value in (
        ("{slot}", str(split_unit(unit)[1])),
        ("{unit}", unit),
        ("{run_dir}", str(home.run_dir)),
        ("{state_dir}", str(home.state_dir)),
        ("{python}", sys.executable),
    ):
        text = text.replace(name, value)
    return text


def filled_probe(probe: Probe, home: Home, unit: str) -> Probe:
    return Probe(
        exec=tuple(filled(part, home, unit) for part in probe.exec),
        http=filled(probe.http, home, unit),
        tcp=filled(probe.tcp, home, unit),
        interval_s=probe.interval_s,
        timeout_s=probe.timeout_s,
        failures=probe.failures,
    )


def of_unit(
    spawn: Spawn, home: Home, heartbeat_s: float, accelerators: Accelerators, *, tunnel: Path | None = None
) -> dict[str, str]:
    """The complete environment of one incarnation. Raises ConfigError if a secret is missing."""
    spec = spawn.spec
    env = inherited()
    # A thread per core in each of fifty units would slow down all of them, so a unit gets one thread, or as many as its
    # reserved cores.
    threads = str(max(1, math.ceil(spec.resources.cpus)))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env.setdefault(name, threads)
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.pop("PYTHONHASHSEED", None)  # only the spec decides on determinism
    env |= {name: _value(name, value, home, spawn.unit) for name, value in spec.env.items()}
    env |= identity_marks(home, spawn.unit, spawn.incarnation)
    env |= accelerators.variables(spawn.rank.visible if spawn.rank is not None else spawn.devices)
    if spawn.rank is not None:
        # A person may have chosen faster interfaces.
        env = gang_environment.interfaces(spawn.rank) | env | gang_environment.of_rank(spawn.rank)
    env |= {
        "AGENTRL_SLOT": str(split_unit(spawn.unit)[1]),
        "AGENTRL_GROUP": spec.name,
        "AGENTRL_RUN_DIR": str(home.run_dir),
        "AGENTRL_STATE_DIR": str(home.state_dir),
        "AGENTRL_COORDINATOR": spawn.coordinator or home.coordinator,
        "AGENTRL_TOKEN": spawn.token,
        "AGENTRL_HEARTBEAT_S": f"{heartbeat_s:g}",
        "AGENTRL_ORPHAN_LEASE_S": f"{spec.orphan_lease_s:g}",
    }
    if spawn.stimulus:
        env["AGENTRL_STIMULUS"] = spawn.stimulus
    if spawn.traceparent:
        env[trace_context.VARIABLE] = spawn.traceparent
    if home.key is not None:
        env["AGENTRL_KEY"] = str(home.key)
    if tunnel is not None and spec.role is not Role.SIDECAR:
        env["AGENTRL_TUNNEL"] = str(tunnel)
    return env


def inherited() -> dict[str, str]:
    """The part of this process's environment that units get."""
    return {name: value for name, value in os.environ.items() if _INHERITED.match(name)}


def of_probe(unit_env: Mapping[str, str], home: Home, unit: str, incarnation: int) -> dict[str, str]:
    """The environment of a probe's command: the unit's settings without its token."""
    return procfs.without_marks(unit_env) | identity_marks(home, unit, incarnation)


def identity_marks(home: Home, unit: str, incarnation: int) -> dict[str, str]:
    return {
        "AGENTRL_RUN": home.run,
        "AGENTRL_HOST": home.host,
        "AGENTRL_UNIT": unit,
        "AGENTRL_INCARNATION": incarnation_name(unit, incarnation),
    }


def program(command: tuple[str, ...], env: Mapping[str, str], cwd: Path | None) -> str:
    """The full path of a command's program. Raises ConfigError if it cannot be executed."""
    if not command:
        raise ConfigError("The command is empty.")
    name = command[0]
    if "/" in name:
        path = (cwd or Path.cwd()) / name
        if not path.exists():
            raise ConfigError(f"The program {name} does not exist.")
        if path.is_dir() or not os.access(path, os.X_OK):
            raise ConfigError(f"The program {name} may not be executed.")
        return name
    found = shutil.which(name, path=env.get("PATH", os.defpath))
    if found is None:
        raise ConfigError(f"The program {name} is not found on PATH.")
    return found


def _value(name: str, value: str, home: Home, unit: str) -> str:
    value = filled(value, home, unit)
    if not is_reference(value):
        return value
    try:
        return resolve_secret(value)
    except ConfigError as missing:
        raise ConfigError(f"{name}: {missing.message} (on host {home.host})", hint=missing.hint) from None

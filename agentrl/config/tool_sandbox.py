"""Defines the sandbox of a tool server or of an environment: what its processes may read, write, reach and use.

`sandbox: process` is short for `sandbox: {kind: process}`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, WithJsonSchema, model_validator

from agentrl.config.field_types import Bytes, Flag, Section, Words
from agentrl.config.network_rules import NetworkRules

_Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
_LEAST_MEMORY = 16 << 20
_SWITCHES = {"off": False, "on": True}
_PRIVATE = re.compile(r"(?!/(?:bin|dev|etc|home|lib\w*|proc|root|run|sbin|sys|tmp|usr|var)(?:/|$))(?:/\w[\w.-]*)+")
_DIGEST = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


def _network(value: Any) -> Any:
    if isinstance(value, str):
        return _SWITCHES.get(value, (value,))
    return tuple(value) or False if isinstance(value, list) else value


class Sandbox(Section):
    """The limits of a server that a toolbox starts, or of the process of an environment."""

    kind: Literal["none", "process", "container"] = "process"
    """`process`: bubblewrap. `container`: podman or docker. `none`: the server has all rights of its user."""
    required: Flag = False
    """Do not start the server without this sandbox. Otherwise a host that lacks it uses the next weaker kind, and the
    status of the server says so."""
    network: Annotated[
        Flag | tuple[str, ...],
        BeforeValidator(_network),
        WithJsonSchema({"anyOf": [{"type": ["boolean", "string"]}, {"type": "array", "items": {"type": "string"}}]}),
    ] = False
    """`off`: no network. A list of hosts (`example.org`, `example.org:8443`, `*.example.org`): only these, by HTTP and
    HTTPS through a proxy that `HTTP_PROXY` and `HTTPS_PROXY` name. `true`: the network of the host, with its loopback
    addresses."""
    read: Words = ()
    """More files and directories that the server may read; relative to the run file. It sees the system's programs, its
    own program, the Python of the run, its `cwd`, and what its command names."""
    write: Words = ()
    """Existing files and directories that the server may change. Its `/tmp` and home directory are private to each
    process and are removed with it."""
    private: Words = ()
    """More directories, such as `/app`, that are empty at the start of each process, private to it, and removed with
    it."""
    memory: Bytes = 2 << 30
    """Memory of each process; where the host allows cgroups, of all processes of the sandbox together."""
    processes: _Count = 128
    """Processes and threads at the same time."""
    open_files: _Count = 1_024
    """Open files of each process."""
    file_size: Bytes = 256 << 20
    """The largest file, and the size of the private `/tmp`."""
    cpu_s: Annotated[int, Field(strict=True, ge=0, le=31_536_000)] = 0
    """Processor seconds of each process; 0: no limit."""
    image: str = ""
    """With `container`: the image by its digest, `NAME@sha256:...`."""

    @model_validator(mode="after")
    def _possible(self) -> Sandbox:
        if self.memory < _LEAST_MEMORY:
            raise ValueError("memory must be at least 16MiB: no server starts with less")
        if (self.kind == "container") != bool(self.image):
            raise ValueError("image is needed by the kind container, and by no other")
        if self.image and not _DIGEST.fullmatch(self.image):
            raise ValueError("image must name its content, NAME@sha256: and 64 digits: what a tag means may change")
        if self.allowed_hosts:
            NetworkRules(self.allowed_hosts)
            if self.kind != "process":
                raise ValueError("network: a list of hosts needs the kind process")
        if self.private and not (self.kind == "process" and self.required):
            raise ValueError("private needs kind: process and required: true, or a server could change the host's own")
        if wrong := [path for path in self.private if not _PRIVATE.fullmatch(path)]:
            raise ValueError(f"private has {wrong[0]!r}; it must be a directory such as /app, and none of the system's")
        if self.kind == "none" and self.required:
            raise ValueError("required has no meaning for the kind none")
        return self

    @property
    def has_network_of_host(self) -> bool:
        return self.network is True

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """The list of hosts; empty for all or none."""
        return () if isinstance(self.network, bool) else self.network


def _named_by_kind(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


SandboxOrKind = Annotated[
    Sandbox, BeforeValidator(_named_by_kind, json_schema_input_type=Literal["none", "process"] | Sandbox)
]


def _required(value: Any) -> Any:
    """A sandbox named for foreign code is required by default: the code must not run with the rights of the user
    instead."""
    named = _named_by_kind(value)
    if isinstance(named, dict) and named.get("kind", "process") != "none":
        return {"required": True, **named}
    return named


def _no_container(sandbox: Sandbox) -> Sandbox:
    if sandbox.kind == "container":
        raise ValueError("the process of an environment has a sandbox of the kind process or none, not container")
    return sandbox


RequiredSandbox = Annotated[
    Sandbox,
    BeforeValidator(_required, json_schema_input_type=Literal["none", "process"] | Sandbox),
    AfterValidator(_no_container),
]
"""The sandbox of an environment, for which `required: true` is the default."""
_required_sandbox: TypeAdapter[Sandbox] = TypeAdapter(RequiredSandbox)


def required(plain: object) -> Sandbox:
    """A sandbox with `required: true` as its default. Raises ValidationError."""
    return _required_sandbox.validate_python(plain)


def is_named(plain: object) -> bool:
    """Whether this value of a run file, which is not validated yet, names a sandbox."""
    named = _named_by_kind(plain)
    return isinstance(named, dict) and named.get("kind", "process") != "none"


def is_required(plain: object) -> bool:
    """Whether it names a sandbox that is required."""
    named = _named_by_kind(plain)
    return is_named(plain) and isinstance(named, dict) and named.get("required", True) is not False

"""Defines which programs outside of a run may use its tools, and their limits."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from agentrl.config.field_types import Section
from agentrl.config.secrets import SecretRef, parse_reference

_Count = Annotated[int, Field(strict=True, ge=1, le=10_000)]
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,29}")
_Token = Annotated[str, PlainValidator(lambda value: str(parse_reference(value))), WithJsonSchema({"type": "string"})]


class OutsideAccess(Section):
    """Programs outside of the run that use its tools, over MCP or plain HTTP."""

    port: Annotated[int, Field(strict=True, ge=0, le=65_535)] = 0
    """The port on 127.0.0.1 for them; 0: no such port. Programs on another host reach it through an ssh tunnel."""
    tokens: dict[str, _Token] = Field(default_factory=dict)
    """A name for each program, with a reference to its token, `env:NAME` or `file:PATH`."""
    sessions: _Count = 16
    """How many sessions one program may have open. Over MCP a connection has one for each tool server that it uses."""
    all_sessions: _Count = 64
    """How many sessions all programs together may have open."""
    idle_s: Annotated[float, Field(strict=True, ge=1, le=86_400)] = 900.0
    """A session without a call for this long is closed, and so is an MCP connection without a request, because its
    program may have died without closing it."""
    calls: _Count = 4
    """How many calls one program may have under way."""

    @model_validator(mode="after")
    def _whole(self) -> OutsideAccess:
        if bool(self.port) != bool(self.tokens):
            raise ValueError("needs both port and tokens, or neither")
        for name in self.tokens:
            if not _NAME.fullmatch(name):
                raise ValueError(f"tokens has the name {name!r}; one has small letters, digits and dashes")
        return self

    def references(self) -> dict[str, SecretRef]:
        """The reference to the token of each program."""
        return {name: parse_reference(reference) for name, reference in self.tokens.items()}

"""Defines how monitoring systems read the numbers of a run."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from agentrl.config.field_types import Secret, Section


class Metrics(Section):
    """`/metrics` of the coordinator, for Prometheus and programs that read its format."""

    port: Annotated[int, Field(strict=True, ge=0, le=65_535)] = 0
    """The port on 127.0.0.1 with `/metrics`; 0: no such port."""
    token: Secret = None
    """A reference to the token that a scrape needs: `env:NAME` or `file:PATH`."""

    @model_validator(mode="after")
    def _whole(self) -> Metrics:
        if bool(self.port) != (self.token is not None):
            raise ValueError("needs both port and token, or neither")
        return self

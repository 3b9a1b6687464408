"""Defines where the spans of a run are sent to."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl.config.field_types import Secret, Section, Share, read_by
from agentrl.config.secrets import resolve_secret


class Tracing(Section):
    """Spans of operations, episodes and steps for a collector of OpenTelemetry; needs the extra `otel`."""

    endpoint: Annotated[str, Field(pattern=r"^(https?://.+)?$")] = ""
    """The URL of its receiver for OTLP over HTTP, such as `http://127.0.0.1:4318/v1/traces`; empty: none."""
    token: Secret = None
    """A reference to a token, `env:NAME` or `file:PATH`; sent as `Authorization: Bearer`."""
    episodes: Annotated[Share, read_by("sampler")] = 0.1
    """The share of episodes whose spans are sent. Those that fail or take unusually long are always sent."""


def headers_of(wanted: Tracing) -> dict[str, str]:
    """The headers of requests to the collector. Raises ConfigError if the token is missing."""
    return {} if wanted.token is None else {"authorization": f"Bearer {resolve_secret(wanted.token)}"}

"""The configuration's shape for editors, as JSON schema."""

from __future__ import annotations

from typing import Any

from agentrl.config.run import RunConfig


def json_schema() -> dict[str, Any]:
    """What `agentrl config schema` prints; editors complete and check run files with it."""
    schema = RunConfig.model_json_schema(mode="validation", by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "agentrl run file"}

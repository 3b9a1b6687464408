"""Converts a configuration to plain data for messages and files and back, and makes its JSON schema.

Invariants:
- `config_from_plain` restores what `config_to_plain` made, and validates it.
- Secrets are sent as references.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl.config.run import RunConfig
from agentrl.config.secrets import files_of_references
from agentrl.config.validation_errors import error_of


def config_to_plain(config: RunConfig) -> dict[str, Any]:
    """The configuration as dicts, lists, text, numbers and booleans."""
    return config.model_dump(mode="json", exclude_none=True)


def config_from_plain(plain: Mapping[str, Any], *, where: str = "") -> RunConfig:
    """The validated configuration. Raises ConfigError with all mistakes; `where` names the origin in the messages."""
    try:
        return RunConfig.model_validate(dict(plain))
    except ValidationError as invalid:
        raise error_of(invalid, lambda path: where) from None


def secret_files(config: RunConfig) -> tuple[Path, ...]:
    """The files that references of any section name. Programs that the run starts may not read them."""
    return tuple(files_of_references(config_to_plain(config)))


def json_schema() -> dict[str, Any]:
    """The output of `agentrl config schema`. Editors complete and check run files with it."""
    schema = RunConfig.model_json_schema(mode="validation", by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "agentrl run file"}

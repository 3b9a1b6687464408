"""A configuration as plain data, for the way to the coordinator and back.

Invariant: the two functions are each other's inverse, and both sides check; secrets travel as references.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from agentrl.config.run import RunConfig
from agentrl.config.validation_errors import error_of


def config_to_plain(config: RunConfig) -> dict[str, Any]:
    """Only dicts, lists, text, numbers and booleans."""
    return config.model_dump(mode="json", exclude_none=True)


def config_from_plain(plain: Mapping[str, Any], *, where: str = "") -> RunConfig:
    """Raises ConfigError that lists all mistakes; `where` names the origin in them."""
    try:
        return RunConfig.model_validate(dict(plain))
    except ValidationError as invalid:
        raise error_of(invalid, lambda path: where) from None

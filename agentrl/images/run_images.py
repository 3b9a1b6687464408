"""The settings of the run file about images, and the problems of a dataset with them."""

from __future__ import annotations

import json
from pathlib import Path

from agentrl.adapters.sources import source_of
from agentrl.config.data_plane import Environment, Images
from agentrl.config.run import RunConfig
from agentrl.images import sources
from agentrl.images.processing import reads_images
from agentrl.images.sources import Limits
from agentrl.tokens.image_marks import names_in


def limits_of(config: RunConfig) -> Limits:
    wanted = config.model.images if config.model is not None else Images()
    within = {name: own for name, each in config.environments.items() if (own := _own_directory(each))}
    return Limits(bytes=wanted.max_bytes, origins=tuple(wanted.origins), within=within)


def _own_directory(environment: Environment) -> str:
    """The directory of an environment that is not trusted and brings its own rows; empty for others. Rows that the run
    file names are trusted."""
    if environment.sandbox.kind == "none":
        return ""
    if source_of(environment.code) is not None:
        return str(Path(environment.dataset).parent)
    own = Path(environment.code).parent
    return str(own) if Path(environment.dataset).is_relative_to(own) else ""


def problem_of(config: RunConfig, *texts: str) -> str:
    """Why the model of the run cannot be shown the images of these texts; empty if it can."""
    names = names_in(*texts)
    if not names:
        return ""
    path = config.model.path if config.model is not None else ""
    try:
        described = json.loads(Path(path, "config.json").read_bytes()) if path else {}
    except (OSError, ValueError):
        return ""  # the check of the model reports this
    if not reads_images(described):
        return "It shows an image, and the model of the run reads none."
    return next((problem for name in names if (problem := sources.problem_of(name, limits_of(config)))), "")

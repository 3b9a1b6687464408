"""Defines where the curves of a training are written to, besides the Step documents."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agentrl.config.field_types import Flag, Secret, Section

_Server = Annotated[str, Field(pattern=r"^(https?://.+|file:.+)?$")]


class MlflowSettings(Section):
    """MLflow; needs the extra `mlflow`."""

    server: _Server = ""
    """The URL of a tracking server; empty: none."""
    experiment: str = "agentrl"
    """The experiment that the run belongs to; it is created if it is missing."""
    token: Secret = None
    """A reference to the token of the server: `env:NAME` or `file:PATH`."""


class WandbSettings(Section):
    """Weights & Biases; needs the extra `wandb`."""

    project: str = ""
    """The project; empty: nothing is written."""
    entity: str = ""
    """The user or team; empty: the default of the key."""
    mode: Literal["online", "offline"] = "online"
    """`offline` writes files below the run directory, which `wandb sync` sends later."""
    key: Secret = None
    """A reference to the API key: `env:NAME` or `file:PATH`."""
    server: _Server = ""
    """The URL of a server of your own; empty: wandb.ai."""

    @model_validator(mode="after")
    def _online_with_key(self) -> WandbSettings:
        if self.project and self.mode == "online" and self.key is None:
            raise ValueError("needs a key (env:NAME or file:PATH), or mode: offline")
        return self


class CurvesSettings(Section):
    """Where the metrics of steps and evaluations are written to, besides the Step documents."""

    tensorboard: Flag = True
    """Files in `RUN_DIR/tensorboard`."""
    mlflow: MlflowSettings = MlflowSettings()
    """An MLflow server."""
    wandb: WandbSettings = WandbSettings()
    """Weights & Biases."""

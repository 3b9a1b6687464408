"""Makes the backend that a run file chooses."""

from __future__ import annotations

from pathlib import Path

from agentrl.config.placement import Placement as Settings
from agentrl.placement import PlacedRun, Placement


def open_placement(settings: Settings, run: PlacedRun) -> Placement:
    """Imports the backend late, because some are heavy."""
    if settings.ssh is not None:
        from agentrl.placement.ssh import SshPlacement

        return SshPlacement(settings.ssh, run)
    if settings.ray is not None:
        from agentrl.placement.ray_actors import RayPlacement

        return RayPlacement(settings.ray, run)
    if settings.slurm is not None:
        from agentrl.placement.slurm import SlurmPlacement

        return SlurmPlacement(settings.slurm, run)
    from agentrl.placement.local import LocalPlacement

    return LocalPlacement(Path(run.state_dir))

"""How a fleet is deployed on Ray. Pure, and light enough for a command's help."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How a fleet is deployed.

    Args:
        name: of the Serve application.
        least, most: replicas.
        cpus, gpus: that Ray sets aside for each.
        upscale_seconds, downscale_seconds: how long a load must want more, or fewer.
        surge: whether an update starts a new replica before it ends an old one.
    """

    name: str = "moa"
    least: int = 1
    most: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    upscale_seconds: float = 10.0
    downscale_seconds: float = 300.0
    surge: bool = True

    @property
    def local_cpus(self) -> int:
        """What a Ray of this machine must have to give: the machine's, or what all replicas need and one more."""
        return max(os.cpu_count() or 1, math.ceil(self.cpus * (self.most + self.surge)))

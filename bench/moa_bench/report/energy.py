"""Joules of the processor as Linux counts them (RAPL, which AMD's have too): all cores, whoever uses them."""

import os
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """The packages' counters, where there are any that this user may read.

    Args:
        root: folder of the counters.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        zones = sorted(root.glob("intel-rapl:?"))  # packages; their parts have another colon
        self._zones = [zone for zone in zones if os.access(zone / "energy_uj", os.R_OK)]

    @property
    def counts(self) -> bool:
        return bool(self._zones)

    def read(self) -> list[int]:
        """Microjoules of each package so far."""
        return [int((zone / "energy_uj").read_text()) for zone in self._zones]

    def joules_since(self, before: list[int]) -> float | None:
        """What was used since `before` was read; None: nothing counts it. A counter that came round once counts on."""
        if not self._zones:
            return None
        used = 0
        for zone, first, now in zip(self._zones, before, self.read(), strict=True):
            used += now - first + (int((zone / "max_energy_range_uj").read_text()) if now < first else 0)
        return round(used / 1e6, 4)


METER = EnergyMeter()  # of this machine

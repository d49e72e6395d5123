"""How long something has taken, in the unit that all figures of ours have."""

from __future__ import annotations

import time


def ms_since(began: float) -> float:
    """Milliseconds since a moment of `time.perf_counter`."""
    return 1e3 * (time.perf_counter() - began)

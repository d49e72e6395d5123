"""How many replicas a load wants. Pure: Serve's autoscaler calls `policy` with what the replicas have recorded.

Ray decides when: it waits for --upscale-seconds and --downscale-seconds, and keeps within --min-replicas and
--max-replicas.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

LOAD, QUEUE = "moa_load", "moa_queue_seconds"
TARGET_LOAD = 0.7  # of each replica: what is left takes in the conversations of one that ends
LONGEST_QUEUE = 1.0  # seconds; a session waits a step of all others, and one chunk of a prompt
DOWN_LOAD = 0.5  # of each replica that would be left; far enough from TARGET_LOAD that the number does not swing


def wanted_replicas(loads: Sequence[float], queue_seconds: float, running: int) -> int:
    """How many replicas there should be.

    Args:
        loads: of each replica, 0 to 1: the largest of its shares of streams, memory and time.
        queue_seconds: the longest that some session has waited for its turn.
        running: replicas that there are; some may not have recorded anything yet.
    """
    if not loads:
        return running
    # A replica without a record is new: that it brings no load yet is no reason to end it.
    total = sum(loads)
    wanted = math.ceil(total / TARGET_LOAD - 1e-9)
    if queue_seconds > LONGEST_QUEUE:
        wanted = max(wanted, running + 1)
    if wanted < running:
        wanted = max(wanted, math.ceil(total / DOWN_LOAD - 1e-9))
    return max(1, min(wanted, running) if wanted < running else wanted)


def policy(context: Any) -> tuple[int, dict[str, Any]]:
    """Serve's custom autoscaling policy."""
    recorded: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
    loads = list(recorded.get(LOAD, {}).values())
    queue_seconds = max(recorded.get(QUEUE, {}).values(), default=0.0)
    return wanted_replicas(loads, queue_seconds, context.current_num_replicas), {}

"""Work cut into parts, each done whole by one worker. Pure.

Invariant: a part's result depends only on what its name covers, never on the worker or on the other parts. So a part
that was lost is done again to the same bytes, and one that was finished before a kill is taken as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from moa_shared.programs.progress import Progress

Advance = Callable[[int], None]  # told how many more items are done
Work = Callable[[str, Advance], str]  # from a part's items to its result, both as JSON


class ClusterJob(Protocol):
    """What is done with every part. Jobs are pickled for workers of other machines."""

    def start(self, progress: Progress) -> Work:
        """Loads in this process what the work needs.

        Raises:
            MoaError: something cannot be read here, or is not what the plan was made for.
        """
        ...


@dataclass(frozen=True, slots=True)
class ClusterPart:
    """A piece of work.

    Args:
        name: hash of all that the result depends on.
        items: JSON, a list.
        size: number of items.
    """

    name: str
    items: str
    size: int


def plan_parts(basis: Any, items: Sequence[Any], size: int) -> list[ClusterPart]:
    """Parts of `size` items, in order; the last one may be smaller.

    Args:
        basis: all that results depend on besides the items. It and the items can be written as JSON.
    """
    root = hashlib.sha256(json.dumps(basis, sort_keys=True).encode()).hexdigest()
    parts = []
    for start in range(0, len(items), size):
        chosen = items[start : start + size]
        text = json.dumps(chosen, separators=(",", ":"))
        parts.append(ClusterPart(hashlib.sha256(f"{root} {text}".encode()).hexdigest()[:32], text, len(chosen)))
    return parts

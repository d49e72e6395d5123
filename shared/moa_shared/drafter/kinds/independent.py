"""A small language model of its own over the target's embeddings and head, which reads nothing of it: a baseline."""

from __future__ import annotations

from moa_shared.drafter.kinds.baseline import Baseline
from moa_shared.drafter.kinds.config import DrafterConfig


class _Independent(Baseline):
    name = "independent"
    label = "independent"
    about = "An independent drafter, which reads nothing of the target"
    has_many_layers = True

    def memory_width(self, config: DrafterConfig) -> int:
        return 0


INDEPENDENT = _Independent()

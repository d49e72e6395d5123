"""A companion under test: an ordinary small model, which drafts and writes from the text alone, as the client has it
do: its own choices, also where they repeat text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from moa_shared.drafter.companion.loading import Companion, find_companion, load_companion
from moa_shared.drafter.layers.arithmetic import INT8
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import Progress
from moa_shared.sampling.settings import Sampling

from moa_training.evaluation.subjects import DrafterSubject, Rows
from moa_training.teacher.target_reader import GREEDY, TargetReader

PREFIX = "companion:"  # in place of a checkpoint's name
FLOAT32 = "float32"


class CompanionSubject(DrafterSubject):
    """A companion for the target that the reader reads.

    Args:
        stop_ids, sampling: as of `DrafterSubject`.
    """

    def __init__(
        self, companion: Companion, reader: TargetReader, stop_ids: Collection[int] = (), sampling: Sampling = GREEDY
    ) -> None:
        self.reader = reader
        self._new_state = companion.new_state
        self._stop_ids = frozenset(stop_ids)
        self._guarded = self._copies = False
        self._sampling = sampling

    def _read(self, ids: Sequence[int]) -> tuple[Rows, None]:
        """Nothing: a companion needs no rows of the target."""
        return np.empty((len(ids), 0), np.float32), None


def companion_named(name: str, progress: Progress) -> ModelFiles | None:
    """The companion that `companion:SPEC` means; None: it is another kind of subject.

    Raises:
        MoaError: as of `find_companion`.
    """
    return find_companion(name.removeprefix(PREFIX), progress=progress) if name.startswith(PREFIX) else None


def load_subject(files: ModelFiles, target: ModelFiles, weights: str, progress: Progress) -> Companion:
    """The companion, as devices compute it, or in float32 for a reference.

    Raises:
        ConfigError: its weights are as its file has them.
        MismatchError, ModelSourceError: as of `load_companion`.
    """
    if weights not in (INT8, FLOAT32):
        raise ConfigError(
            f"A companion's weights are as its file has them, not {weights}.", hint="Give another file of it."
        )
    return load_companion(files, target, progress=progress, weights=weights)

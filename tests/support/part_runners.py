"""Ways to work on parts that differ from one after the other: none may leave a trace in the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moa_shared.programs.progress import SilentProgress
from moa_training.cluster.parts import Advance, ClusterJob, ClusterPart
from moa_training.cluster.run import InProcess


class LastFirst:
    """Ends the parts in the opposite order, as several workers may, each with a model of its own."""

    def run(self, job: ClusterJob, parts: Sequence[ClusterPart], advance: Advance) -> Iterator[tuple[str, str]]:
        for part in parts[::-1]:
            yield from InProcess(SilentProgress()).run(job, [part], advance)


class KilledAfter:
    """Is stopped after some parts."""

    def __init__(self, parts: int) -> None:
        self._parts = parts

    def run(self, job: ClusterJob, parts: Sequence[ClusterPart], advance: Advance) -> Iterator[tuple[str, str]]:
        yield from InProcess(SilentProgress()).run(job, parts[: self._parts], advance)
        raise KeyboardInterrupt

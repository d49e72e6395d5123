"""Runs the parts that are not finished yet, and gives the results of all in the order of the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from moa_shared.programs.progress import Progress

from moa_training.cluster.finished import FinishedParts
from moa_training.cluster.parts import Advance, ClusterJob, ClusterPart


class Runner(Protocol):
    """Where parts are worked on."""

    def run(self, job: ClusterJob, parts: Sequence[ClusterPart], advance: Advance) -> Iterator[tuple[str, str]]:
        """(part's name, result), in whatever order they end; `advance` hears of items that are done.

        Raises:
            MoaError: the job failed.
        """
        ...


class InProcess:
    """Works on one part after another in this process."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def run(self, job: ClusterJob, parts: Sequence[ClusterPart], advance: Advance) -> Iterator[tuple[str, str]]:
        work = job.start(self._progress)
        for part in parts:
            yield part.name, work(part.items, advance)


def run_parts(
    job: ClusterJob,
    parts: Sequence[ClusterPart],
    finished: FinishedParts,
    runner: Runner,
    title: str,
    progress: Progress,
) -> Iterator[tuple[ClusterPart, str]]:
    """Each part with its result, in the order of `parts`, as soon as it and all before it are finished.

    Raises:
        MoaError: the job failed; finished parts are kept.
    """
    missing = {part.name: part for part in parts if part.name not in finished}
    waiting = iter(parts)
    following = next(waiting, None)
    with progress.task(title, sum(part.size for part in parts)) as bar:
        bar.advance(sum(part.size for part in parts if part.name not in missing))
        ended = iter(runner.run(job, list(missing.values()), bar.advance) if missing else ())
        while following is not None:
            if following.name in finished:
                yield following, finished.read(following.name)
                following = next(waiting, None)
            else:
                finished.keep(*next(ended))

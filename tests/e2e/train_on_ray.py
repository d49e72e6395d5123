"""Batch work on a Ray cluster of two workers: a program, `train_on_ray.py FOLDER CONVERSATIONS QUESTIONS`.

FOLDER holds the target and is given `answers.jsonl.zst` and `evaluation.json`. The first worker that begins a part of
the answers kills itself; the questions are measured by one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from moa_shared.models import resolve
from moa_shared.programs.progress import Progress, SilentProgress
from moa_training.cluster.on_ray import RayRunner, open_runner
from moa_training.cluster.parts import Advance, ClusterJob, ClusterPart, Work
from moa_training.cluster.run import Runner
from moa_training.evaluation.evaluation import evaluate
from moa_training.evaluation.measuring.job import EvaluationOptions
from moa_training.teacher.rewrite import RewriteOptions, rewrite


@dataclass(frozen=True)
class DiesOnce:
    """A job whose first worker is killed in its first part, before it loads what the work needs."""

    job: ClusterJob
    mark: Path

    def start(self, progress: Progress) -> Work:
        with suppress(FileExistsError):
            self.mark.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.job.start(progress)


@dataclass(frozen=True)
class DyingWorkers:
    """A runner whose jobs die once."""

    runner: Runner
    mark: Path

    def run(self, job: ClusterJob, parts: Sequence[ClusterPart], advance: Advance) -> Iterator[tuple[str, str]]:
        return self.runner.run(DiesOnce(job, self.mark), parts, advance)


@dataclass(frozen=True)
class LastFirst:
    """A runner that is given the parts in the opposite order: what one leaves in a worker meets other ones."""

    runner: Runner

    def run(self, job: ClusterJob, parts: Sequence[ClusterPart], advance: Advance) -> Iterator[tuple[str, str]]:
        return self.runner.run(job, parts[::-1], advance)


def main(folder: Path, conversations: Path, questions: Path) -> None:
    silent, target = SilentProgress(), str(folder / "target")
    rewriting = RewriteOptions(14, 10, slots=6, threads=1, part_answers=7)
    evaluating = EvaluationOptions(target, answer_tokens=8, standalone_tokens=4, execution="bf16")
    with open_runner("local", 2, 1, silent) as runner:
        dying = DyingWorkers(runner, folder / "died")
        rewrite(resolve(target), [conversations], folder / "answers.jsonl.zst", rewriting, silent, runner=dying)
        result = evaluate("lookup", questions, evaluating, silent, LastFirst(RayRunner(1, 1)))
    (folder / "evaluation.json").write_text(json.dumps(result.to_json(), indent=1) + "\n")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))

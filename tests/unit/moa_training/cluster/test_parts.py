from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import DataError, DiskFullError
from moa_shared.programs.progress import Progress, SilentProgress
from moa_training.cluster.finished import FinishedParts
from moa_training.cluster.parts import Advance, ClusterJob, ClusterPart, Work, plan_parts
from moa_training.cluster.run import InProcess, run_parts

from tests.support.messages import raises
from tests.support.part_runners import LastFirst


class Doubling:
    """A job that notes what it did, and refuses 13."""

    def __init__(self) -> None:
        self.did: list[list[int]] = []

    def start(self, progress: Progress) -> Work:
        def work(items: str, advance: Advance) -> str:
            numbers = json.loads(items)
            self.did.append(numbers)
            if 13 in numbers:
                raise DataError("13 cannot be doubled.")
            advance(len(numbers))
            return json.dumps([2 * number for number in numbers])

        return work


def run_all(job: ClusterJob, parts: Sequence[ClusterPart], folder: Path) -> list[int]:
    finished = FinishedParts(folder)
    results = run_parts(job, parts, finished, InProcess(SilentProgress()), "doubling", SilentProgress())
    return [number for _, result in results for number in json.loads(result)]


def test_a_plan_covers_all_items_in_order_and_names_what_results_depend_on() -> None:
    parts = plan_parts(["a"], list(range(7)), 3)
    assert [json.loads(part.items) for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [part.size for part in parts] == [3, 3, 1]
    assert plan_parts(["a"], list(range(7)), 3) == parts
    names = {part.name for part in parts}
    assert len(names) == 3
    assert names.isdisjoint(part.name for part in plan_parts(["b"], list(range(7)), 3))
    assert names & {part.name for part in plan_parts(["a"], list(range(9)), 3)} == {part.name for part in parts[:2]}
    assert plan_parts(["a"], [], 3) == []


def test_what_is_finished_is_not_done_again(tmp_path: Path) -> None:
    parts = plan_parts([], [1, 2, 13, 4, 5], 1)
    job = Doubling()
    with pytest.raises(DataError):
        run_all(job, parts, tmp_path / "kept")
    again = Doubling()
    rest = [part for part in parts if part.items != "[13]"]
    assert run_all(again, rest, tmp_path / "kept") == [2, 4, 8, 10]
    assert (job.did, again.did) == ([[1], [2], [13]], [[4], [5]])
    nothing = Doubling()
    assert run_all(nothing, rest, tmp_path / "kept") == [2, 4, 8, 10]
    assert nothing.did == []


def test_results_come_in_the_order_of_the_plan_and_equal_parts_are_done_once(tmp_path: Path) -> None:
    parts = plan_parts([], [1, 2, 1, 3], 1)
    job, finished = Doubling(), FinishedParts(tmp_path / "kept")
    results = run_parts(job, parts, finished, LastFirst(), "doubling", SilentProgress())
    assert [result for _, result in results] == ["[2]", "[4]", "[2]", "[6]"]
    assert sorted(job.did) == [[1], [2], [3]]
    finished.drop(parts[0].name)
    assert [part.name in finished for part in parts] == [False, True, False, True]
    finished.clear()
    finished.clear()  # nothing there
    assert not (tmp_path / "kept").exists()


def test_a_result_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file where the folder is to be")
    with raises(
        DiskFullError,
        snapshot(
            "The finished part TMP/kept/a.json cannot be written (File exists). Free some space, or set MOA_CACHE_DIR to a folder on a larger disk."
        ),
    ):
        FinishedParts(tmp_path / "kept").keep("a", "1")

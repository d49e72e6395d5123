"""Two results side by side, what is not comparable, and what those of all targets say together."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_bench.machine import collect_interleaved, commit_of, memory_mb, on_cores, split_cores
from moa_bench.report import Spread, checkout_root, paired_ratio, with_section
from moa_bench.results import PAGE, TARGETS, compare, compare_paths, targets_section
from moa_shared.errors import ConfigError, DataError, MoaError, NotFoundError

from tests.support.messages import raises

MACHINE = {"cpu": "AMD", "cores": 2, "commit": "abc", "time": "2026-11-22T01:02:03"}
A: dict[str, Any] = {
    "suite": "network",
    "machine": MACHINE,
    "level": "int8",
    "effort": {"prompts": 1},
    "cells": [
        {"link": "4G", "way": "plain", "speed": {"median": 10.0, "low": 9.0, "high": 11.0, "count": 3}, "exact": True},
        {"link": "4G", "way": "drafts", "speed": {"median": 12.0, "low": 9.0, "high": 14.0, "count": 3}},
        {"link": "4G", "way": "drafts", "speed": {"median": 0, "low": 0, "high": 0, "count": 3}},
    ],
    "taken_ms": {"help": [3, 1, 2]},
}


def changed(**fields: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(A)), **fields}


def test_what_both_have_is_shown_with_its_ratio() -> None:
    b = changed(name="network-links", taken_ms={"help": [4.0, 4.0], "more": [1]}, level="bf16", effort=2)
    assert compare(A, b | {"machine": MACHINE | {"cpu": "Intel"}}, "a.json", "b.json") == snapshot("""\
WARNING: another machine: AMD (2 cores), then Intel (2 cores).
WARNING: another level: int8, then bf16.
WARNING: another effort.

| network | a.json | b.json | ratio |
| --- | ---: | ---: | ---: |
| cells / 4G, plain / speed | 10 | 10 | 1.000 |
| cells / 4G, drafts / speed | 12 | 12 | 1.000 |
| cells / 4G, drafts #2 / speed | 0 | 0 |  |
| taken_ms / help | 2 | 4 | 2.000 |

1 figures are only in one of them.
""")


def test_what_has_nothing_in_common_is_refused() -> None:
    with raises(DataError, "a.json is a result of network, b.json of cut. Compare results of one suite."):
        compare(A, changed(suite="cut"), "a.json", "b.json")
    with raises(DataError, "a.json and b.json have no figure in common. Compare runs of the same effort."):
        compare(A, {"suite": "network", "other": 1}, "a.json", "b.json")


def test_folders_are_compared_by_name(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, names in ((one, ("network", "cut")), (two, ("network", "engine"))):
        folder.mkdir()
        for name in names:
            (folder / f"{name}.json").write_text(json.dumps(A))
    compared = compare_paths(one, two)
    assert compared.startswith("## network\n\n| network | one | two | ratio |\n")
    assert f"Only in {one}: cut.\n\nOnly in {two}: engine.\n" in compared
    (two / "network.json").unlink()
    said = "TMP/one and TMP/two have no result of the same name. Name two folders of results."
    with raises(DataError, said):
        compare_paths(one, two)


@pytest.mark.parametrize(("text", "kind", "message"), [
    (None, NotFoundError, snapshot("There is no result TMP/a. Measure first: moa-bench run SUITE.")),
    ("[]", DataError, snapshot("TMP/a is not a result of moa-bench. Name a file that moa-bench has written.")),
    ("{", DataError, snapshot("TMP/a cannot be read as a result. Name a file that moa-bench has written.")),
])  # fmt: skip
def test_what_is_not_a_result_is_named(tmp_path: Path, text: str | None, kind: type[MoaError], message: str) -> None:
    if text is not None:
        (tmp_path / "a").write_text(text)
    with raises(kind, message):
        compare_paths(tmp_path / "a", tmp_path / "a")
    with raises(DataError, snapshot("There are no results in TMP. Measure first: moa-bench run all.")):
        targets_section(tmp_path)


def test_the_table_of_the_checkout_is_fresh() -> None:
    """Where it is not: `moa-bench report`."""
    root = checkout_root()
    assert root is not None
    page = root / "docs" / PAGE
    assert with_section(page, TARGETS, targets_section(root / "bench" / "results")) == page.read_text("utf-8")


def test_median_and_quartiles_and_ratios_of_pairs() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert f"{Spread.of([2.0]):1}" == "2.0 (2.0 to 2.0)"
    # Both halves of the last pair were disturbed alike: the ratio does not see it, medians of sums would.
    assert paired_ratio([2.0, 2.0, 200.0], [1.0, 1.0, 100.0]) == Spread(2.0, 2.0, 2.0, 3)


def test_cases_take_turns() -> None:
    order: list[str] = []

    def case(name: str) -> float:
        assert not gc.isenabled()
        order.append(name)
        return float(len(order))

    taken = collect_interleaved({name: lambda name=name: case(name) for name in "abc"}, 3, warm_up=1)  # type: ignore[misc]
    assert "".join(order) == "cab" + "abc" + "bca" + "cab"
    assert taken == {"a": [4.0, 9.0, 11.0], "b": [5.0, 7.0, 12.0], "c": [6.0, 8.0, 10.0]}


def test_a_changed_checkout_is_marked(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True)

    assert commit_of(tmp_path) is None
    assert commit_of(None) is None
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "one")
    clean = commit_of(tmp_path) or ""
    assert len(clean) >= 7
    (tmp_path / "README.md").write_text("1")
    git("add", "README.md")
    git("commit", "-qm", "two")
    assert commit_of(tmp_path) == clean  # neither another suite's result nor a text changes what is measured
    (tmp_path / "file").write_text("2")
    assert commit_of(tmp_path) == clean + "+"


def test_a_child_stays_on_its_core_and_we_come_back() -> None:
    before = os.sched_getaffinity(0)
    core = {min(before)}
    with on_cores(core):
        script = "import os; print(sorted(os.sched_getaffinity(0)))"
        child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        said = "Pinning needs two cores, this process may use 1. Leave out --pin or allow more cores."
        with raises(ConfigError, said):
            split_cores(True)
    assert (child.stdout.strip(), os.sched_getaffinity(0)) == (str(sorted(core)), before)
    assert split_cores(False) == (None, None)
    assert ((memory_mb(os.getpid()) or 0.0) > 10.0, memory_mb(2**22 + 1)) == (True, None)

"""Two results side by side, what is not comparable, and what those of all targets say together."""

import json
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_bench.registry import LLAMA_CPP
from moa_bench.report import checkout_root, with_section
from moa_bench.results import ORACLE, PAGE, TARGETS, compare, compare_paths, target_rows, targets_section
from moa_bench.suites.single.tables import PLAIN, SERVER
from moa_bench.suites.split.tables import PLAIN as STREAMING
from moa_shared.errors import DataError, MoaError, NotFoundError

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
    with raises(
        DataError, snapshot("TMP/one and TMP/two have no result of the same name. Name two folders of results.")
    ):
        compare_paths(one, two)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (None, NotFoundError, snapshot("There is no result TMP/a. Measure first: moa-bench run SUITE.")),
        ("[]", DataError, snapshot("TMP/a is not a result of moa-bench. Name a file that moa-bench has written.")),
        ("{", DataError, snapshot("TMP/a cannot be read as a result. Name a file that moa-bench has written.")),
    ],
)
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


def test_all_sizes_are_told_together() -> None:
    def answers(**ms: float) -> dict[str, Any]:
        return {name: [{"tokens": 11, "first_ms": 100.0, "steady_ms": each}] for name, each in ms.items()}

    rounds = [{"short": False, "answers": answers(**{PLAIN: 100.0, SERVER: 110.0, LLAMA_CPP: 165.0})}]
    single = {"target": "one", "machine": MACHINE, "rounds": rounds}
    answer = {"tokens": 10, "first_ms": 100.0, "same": True}
    streamed = {STREAMING: [answer | {"seconds": 2.0}] * 2, ORACLE: [answer | {"seconds": 1.0}]}
    split = {"machine": MACHINE | {"commit": "def"}, "rounds": [{"link": "5G", "answers": streamed}]}
    assert list(target_rows({"single-1b": single, "split-1b": split})) == [
        ["one", "100.0", "1.50", "1.26", "2.00", "", "AMD (2 cores)", "abc, def"]
    ]

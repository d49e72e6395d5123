"""Two results side by side, and what is not comparable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inline_snapshot import snapshot
from moa_bench.runs.compare import compare, compare_paths
from moa_shared.errors import DataError, NotFoundError

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
    b = changed(taken_ms={"help": [4.0, 4.0], "more": [1]})
    assert compare(A, b, "a.json", "b.json") == snapshot("""\
| network | a.json | b.json | ratio |
| --- | ---: | ---: | ---: |
| cells / 4G, plain / speed | 10 | 10 | 1.000 |
| cells / 4G, drafts / speed | 12 | 12 | 1.000 |
| cells / 4G, drafts #2 / speed | 0 | 0 |  |
| taken_ms / help | 2 | 4 | 2.000 |

1 figures are only in one of them.
""")


def test_what_the_figures_depend_on_is_warned_of() -> None:
    b = changed(machine=MACHINE | {"commit": "def", "cpu": "Intel"}, level="bf16", effort={"prompts": 2}, target="X")
    assert compare(A, b, "a", "b").partition("\n\n")[0] == snapshot("""\
WARNING: another machine: AMD (2 cores), then Intel (2 cores).
WARNING: another commit: abc, then def.
WARNING: another level: int8, then bf16.
WARNING: another model: None, then X.
WARNING: another effort.\
""")


def test_a_result_of_a_suite_may_be_called_by_the_suite_or_by_its_section() -> None:
    assert "| network |" in compare(A, changed(name="network-links"), "a", "b")
    assert "| network |" in compare(A, changed(suite="links", name="network"), "a", "b")


def test_other_suites_are_refused() -> None:
    with raises(DataError, snapshot("a.json is a result of network, b.json of cut. Compare results of one suite.")):
        compare(A, changed(suite="cut"), "a.json", "b.json")
    with raises(DataError, snapshot("a.json and b.json have no figure in common. Compare runs of the same effort.")):
        compare(A, {"suite": "network", "other": 1}, "a.json", "b.json")


def test_folders_are_compared_by_name(tmp_path: Path) -> None:
    for folder, names in (("one", ("network", "cut")), ("two", ("network", "micro"))):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / f"{name}.json").write_text(json.dumps(A))
    compared = compare_paths(tmp_path / "one", tmp_path / "two")
    assert compared.startswith("## network\n\n| network | one | two | ratio |\n")
    assert compared.count("\n## ") == 0
    assert f"Only in {tmp_path / 'one'}: cut.\n" in compared
    assert f"Only in {tmp_path / 'two'}: micro.\n" in compared
    (tmp_path / "two" / "network.json").unlink()
    with raises(
        DataError, snapshot("TMP/one and TMP/two have no result of the same name. Name two folders of results.")
    ):
        compare_paths(tmp_path / "one", tmp_path / "two")
    with raises(
        DataError, snapshot("TMP/one and TMP/two/micro.json are a folder and a file. Name two files, or two folders.")
    ):
        compare_paths(tmp_path / "one", tmp_path / "two" / "micro.json")


def test_what_is_not_a_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "torn.json").write_text("{")
    for name, kind, message in (
        ("none.json", NotFoundError, snapshot("There is no result TMP/none.json. Measure first: moa-bench run SUITE.")),
        (
            "list.json",
            DataError,
            snapshot("TMP/list.json is not a result of moa-bench. Name a file that moa-bench has written."),
        ),
        (
            "torn.json",
            DataError,
            snapshot("TMP/torn.json cannot be read as a result. Name a file that moa-bench has written."),
        ),
    ):
        with raises(kind, message):
            compare_paths(tmp_path / name, tmp_path / name)

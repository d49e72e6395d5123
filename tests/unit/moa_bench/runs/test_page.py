"""What the results say together, and the chapters that `run` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inline_snapshot import snapshot
from moa_bench.report.report import checkout_root, with_section
from moa_bench.runs.page import (
    MAP,
    ORACLE,
    PAGE,
    TARGETS,
    map_table,
    sections_of,
    targets_table,
)
from moa_bench.runs.registry import Chapter, choose_parts
from moa_bench.suite import Suite
from moa_bench.suites.single.figures import LLAMA_CPP, PLAIN, SERVER
from moa_bench.suites.split.figures import PLAIN as STREAMING
from moa_shared.errors import ConfigError, DataError

from tests.support.messages import raises


def part(name: str) -> Suite[None]:
    return Suite(name, "", "", None, None, (), lambda effort: 1.0)


ONE = Chapter("first", (part("one"), part("two")))
TWO = Chapter("second", (part("three"),))
MACHINE = {"cpu": "AMD", "cores": 2, "commit": "abc", "time": "2026-11-22T01:02:03"}


def test_no_results_are_refused(tmp_path: Path) -> None:
    with raises(DataError, snapshot("There are no results in TMP/results. Measure first: moa-bench run all.")):
        sections_of(tmp_path / "results")


def test_the_tables_of_the_checkout_are_fresh() -> None:
    """Where it is not: `moa-bench report`."""
    root = checkout_root()
    assert root is not None
    sections = sections_of(root / "bench" / "results")
    page = root / "docs" / PAGE
    for name, written in sections.items():
        assert with_section(page, name, written) == page.read_text("utf-8")
    assert list(sections) == [TARGETS, MAP]


def test_all_sizes_are_told_together() -> None:
    def answers(**ms: float) -> dict[str, Any]:
        return {
            name: [{"tokens": 11, "first_ms": 100.0, "steady_ms": each}] for name, each in ms.items()
        }  # fmt: skip

    single = {"target": "one", "machine": MACHINE, "rounds": [
        {"short": False, "answers": answers(**{PLAIN: 100.0, SERVER: 110.0, LLAMA_CPP: 165.0})},
    ]}  # fmt: skip
    answer = {"tokens": 10, "first_ms": 100.0, "same": True}
    split = {"target": "one", "machine": MACHINE | {"commit": "def"}, "rounds": [
        {"link": "5G", "answers": {
            STREAMING: [answer | {"seconds": 2.0}] * 2, ORACLE: [answer | {"seconds": 1.0}],
        }},
    ]}  # fmt: skip
    way = [{"tokens_per_s": 50.0, "other_texts": 0}]
    payoff = {"target": "one", "cells": [
        {"rtt_ms": 100.0, "users": 4, "rounds": [{"plain": way, "drafts": [way[0] | {"tokens_per_s": 60.0}]}]},
    ]}  # fmt: skip
    results: dict[str, dict[str, Any]] = {"single-1b": single, "split-1b": split, "payoff-1b": payoff}
    assert (
        targets_table(results).splitlines()[2] == "| one | 100.0 | 1.50 | 1.26 | 2.00 |  | AMD (2 cores) | abc, def |"
    )
    assert map_table(results).splitlines()[2] == "| one | 4 | drafts 1.20 |"


def test_chapters_and_parts_are_chosen_by_name_in_their_order() -> None:
    names = [part.name for part in choose_parts((ONE, TWO), ("second", "first"))]
    assert names == ["one", "two", "three"] == [part.name for part in choose_parts((ONE, TWO), ("all",))]
    assert [part.name for part in choose_parts((ONE, TWO), ("three", "one"))] == ["one", "three"]
    said = "There is no suite 'third'. There are first, second, and all of them: all. Or name a part, such as three."
    with raises(ConfigError, said):
        choose_parts((ONE, TWO), ("third",))

"""A suite is run: its result says what it depends on, and goes where it belongs; and what suites there are."""

import json
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from moa_bench.registry import SUITES, choose_parts
from moa_bench.run import run_suite
from moa_bench.suite import Result, Suite, SuiteInputs, SuiteRun
from moa_shared.errors import ConfigError

from tests.support.messages import raises


@dataclass(frozen=True)
class Effort:
    cells: int = 3


def tiny(name: str = "tiny") -> Suite[Effort]:
    return Suite(name, "", "tiny", Effort(), Effort(1), ("model", "level"))


@pytest.fixture(autouse=True)
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty checkout, and the module of a suite that measures cells."""

    def measure(effort: Effort, run: SuiteRun) -> Result:
        cells = [run.keep(str(number), lambda number=number: {"is": number}) for number in range(effort.cells)]  # type: ignore[misc]
        return {"name": "tiny-sized", "cells": cells, "cores": [str(run.server_cores), str(run.own_cores)]}

    made: Any = ModuleType("tiny")
    made.measure, made.render = measure, lambda result: f"{len(result['cells'])} cells\n"
    monkeypatch.setitem(sys.modules, "tiny", made)
    for module in ("moa_bench.report", "moa_bench.run"):
        monkeypatch.setattr(f"{module}.checkout_root", lambda: tmp_path)
    return tmp_path


def test_a_result_says_what_was_run_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    run_suite(tiny(), Effort(), SuiteInputs(pin=True), quick=True, json_file=tmp_path / "result.json")
    result = json.loads((tmp_path / "result.json").read_text())
    assert list(result) == ["suite", "quick", "pinned", "machine", "name", "effort", "level", "cells", "cores"]
    assert (result["suite"], result["name"], result["effort"]) == ("tiny", "tiny-sized", {"cells": 3})
    assert result["cores"] == ["{3}", "{5}"]
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert capsys.readouterr().out == "3 cells\n\n"


@pytest.mark.parametrize("quick", [False, True])
def test_only_a_whole_result_goes_into_the_checkout(checkout: Path, quick: bool) -> None:
    run_suite(tiny(), Effort(1), SuiteInputs(), quick=quick, json_file=None)
    assert (checkout / "bench" / "results" / "tiny-sized.json").is_file() is not quick


@pytest.mark.parametrize(
    "suite",
    [pytest.param(suite, marks=pytest.mark.torch if suite.name == "alone" else ()) for suite in SUITES],  # it trains
    ids=lambda suite: suite.name,
)
def test_every_suite_has_its_module(suite: Suite[Any]) -> None:
    module = import_module(suite.module)
    assert callable(module.measure)
    assert callable(module.render)
    assert set(suite.takes) <= set(vars(SuiteInputs()))
    for effort in (suite.full, suite.quick):
        suite.refuse(effort, SuiteInputs(llama_cpp=Path("node")))


def test_chapters_and_parts_are_chosen_by_name_in_their_order() -> None:
    chapters = {"first": (tiny("one"), tiny("two")), "second": (tiny("three"),)}
    for names, chosen in (
        (("second", "first"), ["one", "two", "three"]),
        (("all",), ["one", "two", "three"]),
        (("three", "one"), ["one", "three"]),
    ):
        assert [part.name for part in choose_parts(chapters, names)] == chosen
    said = "There is no suite 'third'. There are first, second, and all of them: all. Or name a part, such as three."
    with raises(ConfigError, said):
        choose_parts(chapters, ("third",))

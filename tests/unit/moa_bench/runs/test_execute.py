"""A suite is run: its result says what it depends on, and goes where it belongs."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_bench.runs.execute import run_suite
from moa_bench.runs.registry import CHAPTERS, SUITES
from moa_bench.suite import Result, Suite, SuiteInputs, SuiteRun
from moa_shared.errors import ConfigError, DataError

from tests.support.messages import raises


@dataclass(frozen=True)
class Effort:
    cells: int = 3


def tiny(**more: Any) -> Suite[Effort]:
    takes = ("model", "level")
    return Suite("tiny", "", "tiny", Effort(), None, takes, lambda effort: 1.0, **more)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of a suite that measures cells and saves after each."""

    def measure(effort: Effort, run: SuiteRun) -> Result:
        result: Result = {"name": "tiny-sized", "cells": [], "cores": [str(run.server_cores), str(run.own_cores)]}
        for number in range(effort.cells):
            result["cells"].append(number)
            run.save(result)
            saved = {"file": SAVED[0].read_text()} if SAVED and SAVED[0].is_file() else {}
            result |= {"saved": len(json.loads(saved["file"])["cells"])} if saved else {}
        return result

    made = {name: ModuleType(name) for name in ("tiny", "tiny.measure", "tiny.tables")}
    made["tiny"].__path__ = []
    for name, module in made.items():
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    made["tiny.measure"].measure = measure  # type: ignore[attr-defined]
    made["tiny.tables"].render = lambda result: f"{len(result['cells'])} cells\n"  # type: ignore[attr-defined]
    return made


SAVED: list[Path] = []


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for module in ("moa_bench.report.report", "moa_bench.runs.execute"):
        monkeypatch.setattr(f"{module}.checkout_root", lambda: tmp_path)
    return tmp_path


@pytest.mark.usefixtures("modules")
def test_a_result_says_what_was_run_and_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SAVED[:] = [tmp_path / "result.json"]
    run_suite(tiny(), Effort(), SuiteInputs(), quick=True, json_file=SAVED[0])
    result = json.loads(SAVED.pop().read_text())
    assert list(result)[:7] == ["suite", "quick", "pinned", "machine", "name", "effort", "level"]
    assert (result["suite"], result["name"], result["effort"]) == ("tiny", "tiny-sized", {"cells": 3})
    assert (result["saved"], result["cores"]) == (3, ["None", "None"])
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert capsys.readouterr().out == "3 cells\n\n"


@pytest.mark.usefixtures("modules")
def test_a_whole_result_goes_to_its_file(checkout: Path) -> None:
    run_suite(tiny(is_computed=True), Effort(1), SuiteInputs(), quick=False, json_file=None)
    result = json.loads((checkout / "bench" / "results" / "tiny-sized.json").read_text())
    assert "machine" not in result


@pytest.mark.parametrize(
    ("inputs", "suffix"),
    [
        (SuiteInputs(), ""),
        (SuiteInputs(shape="8b"), "-8b"),
        (SuiteInputs(shape="1b", stored="q8_0"), "-1b-q8_0"),
        (SuiteInputs(model="gemma3-270m"), "-gemma3-270m"),
        (SuiteInputs(model="some/where/My Model_Q4.gguf"), "-my-model-q4"),
    ],
)
def test_another_target_has_results_of_its_own(inputs: SuiteInputs, suffix: str) -> None:
    assert inputs.suffix == suffix


def test_a_part_of_a_size_measures_it_whatever_model_is_named() -> None:
    (part,) = [part for chapter in CHAPTERS for part in chapter.parts if part.name == "split-8b"]
    assert part.inputs(SuiteInputs(model="mine")).shape == "8b"
    assert part.seconds(part.full) > 60 * part.inputs(SuiteInputs()).step_s * part.full.asked


@pytest.mark.usefixtures("modules")
def test_a_quick_result_leaves_the_checkout_alone(checkout: Path) -> None:
    run_suite(tiny(), Effort(), SuiteInputs(), quick=True, json_file=None)
    assert not (checkout / "bench").exists()


@pytest.mark.usefixtures("modules")
def test_server_and_client_are_pinned_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    run_suite(tiny(), Effort(), SuiteInputs(pin=True), quick=True, json_file=tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["cores"] == ["{3}", "{5}"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    with raises(
        ConfigError, snapshot("Pinning needs two cores, this process may use 1. Leave out --pin or allow more cores.")
    ):
        run_suite(tiny(), Effort(), SuiteInputs(pin=True), quick=True, json_file=None)


def test_a_result_that_is_a_failure_is_told_after_it_was_written(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    def check(result: Result) -> None:
        raise DataError(f"{len(result['cells'])} cells are too few.", hint="Measure more.")

    modules["tiny.measure"].check = check  # type: ignore[attr-defined]
    with raises(DataError, "3 cells are too few. Measure more."):
        run_suite(tiny(), Effort(), SuiteInputs(), quick=True, json_file=tmp_path / "a.json")
    assert (tmp_path / "a.json").is_file()


@pytest.mark.parametrize(
    "suite",
    [pytest.param(suite, marks=pytest.mark.torch if suite.name == "alone" else ()) for suite in SUITES],  # it trains
    ids=lambda suite: suite.name,
)
def test_every_suite_has_its_modules_and_needs_longer_than_its_quick_form(suite: Suite[Any]) -> None:
    for module, function in (("measure", "measure"), ("tables", "render")):
        __import__(f"{suite.package}.{module}")
        assert callable(getattr(sys.modules[f"{suite.package}.{module}"], function))
    assert set(suite.takes) <= set(vars(SuiteInputs()))
    inputs = SuiteInputs(llama_cpp=Path("node"))
    suite.refuse(suite.full, inputs)
    if suite.quick is not None:
        suite.refuse(suite.quick, inputs)
        assert suite.seconds(suite.quick) <= suite.seconds(suite.full)


def test_all_of_it_is_measured_within_two_hours() -> None:
    parts = [part for chapter in CHAPTERS for part in chapter.parts]
    assert sum(part.seconds(part.full) for part in parts) < 7200
    assert sum(part.seconds(part.effort(quick=True)) for part in parts) < 1800

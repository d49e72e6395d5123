"""A suite is run: its result says what it depends on, and goes where it belongs; and what suites there are."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from moa_bench.registry import CAPACITY, SUITES, choose_parts
from moa_bench.run import RunJournal, run_suite
from moa_bench.suite import Result, Suite, SuiteInputs, SuiteRun, with_given
from moa_shared.errors import ConfigError, ConflictError, InternalError

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


def test_a_result_says_what_was_run_and_where_and_only_a_whole_one_goes_into_the_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    run_suite(tiny(), Effort(), SuiteInputs(pin=True), quick=True, json_file=tmp_path / "result.json")
    result = json.loads((tmp_path / "result.json").read_text())
    assert list(result) == ["suite", "quick", "pinned", "machine", "name", "effort", "level", "cells", "cores"]
    assert (result["suite"], result["name"], result["effort"]) == ("tiny", "tiny-sized", {"cells": 3})
    assert (result["cores"], os.environ["OMP_NUM_THREADS"]) == (["{3}", "{5}"], "1")
    assert capsys.readouterr().out == "3 cells\n\n"
    kept = tmp_path / "bench" / "results" / "tiny-sized.json"
    for quick in (True, False):
        run_suite(tiny(), Effort(1), SuiteInputs(), quick=quick, json_file=None)
        assert kept.is_file() is not quick


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


HEADER = {"suite": "single", "commit": "abc", "effort": {"prompts": 2}}
KEYS = ("plain, round 0", "plain, round 1", "MoA, round 0")


@contextmanager
def opened(path: Path, header: Result = HEADER, **options: Any) -> Iterator[RunJournal]:
    journal = RunJournal(path, header, **options)
    try:
        yield journal
    finally:
        journal.close()


def measure_all(journal: RunJournal) -> list[str]:
    measured = []
    for number, key in enumerate(KEYS):

        def measure(key: str = key, number: int = number) -> Result:
            measured.append(key)
            return {"speed": (number, float("inf")), "text": "ü\n"}

        assert journal.keep(key, measure) == {"speed": [number, float("inf")], "text": "ü\n"}
    return measured


def test_a_failed_cell_is_measured_again_and_what_was_before_is_kept(tmp_path: Path) -> None:
    def fail() -> Result:
        raise KeyboardInterrupt

    with opened(tmp_path / "j") as journal:
        journal.keep(KEYS[0], lambda: {"speed": (0, float("inf")), "text": "ü\n"})
        with pytest.raises(KeyboardInterrupt):
            journal.keep(KEYS[1], fail)
    with opened(tmp_path / "j") as journal:
        assert (journal.resumed, measure_all(journal)) == (1, [*KEYS[1:]])


def test_another_header_begins_a_new_file_and_says_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with opened(path) as journal:
        measure_all(journal)
    with opened(path, {**HEADER, "commit": "def", "model": "large"}) as journal:
        assert (journal.resumed, journal.outdated, measure_all(journal)) == (0, ["commit", "model"], list(KEYS))
    with opened(tmp_path / "j.old") as journal:
        assert journal.resumed == len(KEYS)


def test_afresh_forgets_and_a_finished_run_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with opened(path) as journal:
        measure_all(journal)
    with opened(path, {"commit": "def"}, afresh=True) as journal:
        assert (journal.resumed, journal.outdated, measure_all(journal)) == (0, [], list(KEYS))
    with opened(path, {"commit": "def"}) as journal:
        assert (journal.resumed, journal.outdated) == (len(KEYS), [])
        journal.discard()
    assert list(tmp_path.iterdir()) == []


def test_one_writer_and_one_cell_a_key(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with opened(path) as journal:
        said = "Another moa-bench writes TMP/j. Let it end, or stop it, and start again: nothing is lost."
        with raises(ConflictError, said):
            RunJournal(path, HEADER)
        measure_all(journal)
        with pytest.raises(InternalError, match="The suite names two cells 'MoA, round 0'"):
            journal.keep(KEYS[2], dict)


def test_what_is_given_takes_its_place() -> None:
    given: dict[str, Any] = {"users": ("2", "3"), "rtts_ms": ("50",), "kinds": ("plain",), "seed": None, "model": "any"}
    found = with_given(CAPACITY.quick, given)
    assert (found.users, found.rtts_ms, found.kinds) == ((2, 3), (50.0,), ("plain",))
    assert (found.seconds, found.seed) == (CAPACITY.quick.seconds, 0)
    named = with_given(SuiteInputs(), {"drafter": ("MoA, N = 0=n0", "b=c")})
    assert named.drafters == {"MoA, N = 0": Path("n0"), "b": Path("c")}


@pytest.mark.parametrize(("given", "said"), [
    ({"users": ("0",)}, "expected at least 1"),
    ({"kinds": ("none",)}, "expected 'plain', "),
    ({"drafter": ("=c",)}, "--drafter is ('=c',): expected NAME=PATH"),
    ({"think": "on"}, "--think is not a setting any more. Measure with that one."),
])  # fmt: skip
def test_what_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_given(SuiteInputs() if "drafter" in given else CAPACITY.full, given)
    assert said in refused.value.message

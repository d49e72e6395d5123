"""An experiment records its machine, shares out the cores, and puts its result where it belongs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_bench.report.experiment import Experiment
from moa_shared.errors import ConfigError

from tests.support.messages import raises


def test_a_result_says_what_was_run_and_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "result.json"
    experiment = Experiment("micro", quick=True, json_file=written, level="int8")
    assert (experiment.server_cores, experiment.own_cores) == (None, None)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    experiment.result |= {"cells": [1, 2]}
    experiment.save()
    experiment.result |= {"cells": [1, 2, 3]}
    assert json.loads(written.read_text())["cells"] == [1, 2]
    experiment.publish("A table.")
    result = json.loads(written.read_text())
    assert list(result) == ["suite", "quick", "pinned", "machine", "level", "cells"]
    assert (result["suite"], result["pinned"], result["cells"]) == ("micro", False, [1, 2, 3])
    assert capsys.readouterr().out == "A table.\n"


def test_server_and_client_are_pinned_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    experiment = Experiment("micro", quick=True, json_file=None, pin=True)
    assert (experiment.server_cores, experiment.own_cores) == ({3}, {5})


def test_what_cannot_be_pinned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    with raises(
        ConfigError, snapshot("Pinning needs two cores, this process may use 1. Leave out --pin or allow more cores.")
    ):
        Experiment("micro", quick=True, json_file=None, pin=True)


def test_a_quick_result_leaves_the_checkout_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("moa_bench.report.report.checkout_root", lambda: tmp_path)
    Experiment("micro", quick=True, json_file=None).publish("A table.")
    assert not list(tmp_path.iterdir())


def test_a_whole_result_goes_to_its_file_and_its_section(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("moa_bench.report.report.checkout_root", lambda: tmp_path)
    page = tmp_path / "docs" / "engine.md"
    page.parent.mkdir()
    page.write_text("<!-- invariance-int8 -->\n<!-- /invariance-int8 -->\n")
    experiment = Experiment("invariance", quick=False, json_file=None)
    experiment.publish("A table.", name="invariance-int8", page="engine.md")
    assert "A table." in page.read_text()
    assert json.loads((tmp_path / "bench" / "results" / "invariance-int8.json").read_text())["suite"] == "invariance"


def test_a_picture_goes_where_the_whole_result_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("moa_bench.report.experiment.checkout_root", lambda: tmp_path)
    whole = Experiment("capacity", quick=False, json_file=None)
    assert whole.picture_path("capacity") == tmp_path / "docs" / "img" / "capacity.png"
    assert Experiment("capacity", quick=True, json_file=None).picture_path("capacity") is None
    assert Experiment("capacity", quick=False, json_file=tmp_path / "a.json").picture_path("capacity") is None

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from moa_shared.programs.missing_packages import EXTRAS, missing_extra

PROJECT = tomllib.loads((Path(__file__).resolve().parents[4] / "pyproject.toml").read_text("utf-8"))["project"]


def test_a_module_is_named_by_its_extra() -> None:
    told = missing_extra(ModuleNotFoundError("No module named 'zstandard'", name="zstandard.backend"))
    assert told is not None
    assert str(told) == "This needs zstandard, which is not installed. Install it: pip install 'moa[train]'."


def test_a_module_of_ours_that_is_missing_is_a_defect() -> None:
    assert missing_extra(ModuleNotFoundError("No module named 'moa_x'", name="moa_x")) is None


@pytest.mark.parametrize("extra", sorted(set(EXTRAS.values())))
def test_the_extras_are_those_of_the_package(extra: str) -> None:
    assert extra in PROJECT["optional-dependencies"]

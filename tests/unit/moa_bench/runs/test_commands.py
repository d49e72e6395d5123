"""What options of the harness mean."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from moa_bench.runs.commands import named_path


def test_a_drafters_name_may_have_an_equals_sign() -> None:
    assert named_path("EAGLE-2=eagle2.safetensors") == ("EAGLE-2", Path("eagle2.safetensors"))
    assert named_path("MoA, N = 0=n0.safetensors") == ("MoA, N = 0", Path("n0.safetensors"))


@pytest.mark.parametrize("given", ["eagle2.safetensors", "=eagle2.safetensors", "EAGLE-2="])
def test_a_drafter_needs_a_name_and_a_path(given: str) -> None:
    with pytest.raises(click.UsageError, match="is not NAME=PATH or NAME=ID"):
        named_path(given)

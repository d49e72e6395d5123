"""What a command line gives takes the place of a suite's own effort, or is refused."""

from pathlib import Path
from typing import Any

import pytest
from moa_bench.registry import CAPACITY
from moa_bench.suite import SuiteInputs, with_given
from moa_shared.errors import ConfigError


def test_what_is_given_takes_its_place() -> None:
    given: dict[str, Any] = {"users": ("2", "3"), "rtts_ms": ("50",), "kinds": ("plain",), "seed": None, "model": "any"}
    found = with_given(CAPACITY.quick, given)
    assert (found.users, found.rtts_ms, found.kinds) == ((2, 3), (50.0,), ("plain",))
    assert (found.seconds, found.seed) == (CAPACITY.quick.seconds, 0)
    named = with_given(SuiteInputs(), {"drafter": ("MoA, N = 0=n0", "b=c")})
    assert named.drafters == {"MoA, N = 0": Path("n0"), "b": Path("c")}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"users": ("0",)}, "expected at least 1"),
        ({"kinds": ("none",)}, "expected 'plain', "),
        ({"drafter": ("=c",)}, "--drafter is ('=c',): expected NAME=PATH"),
        ({"think": "on"}, "--think is not a setting any more. Measure with that one."),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_given(SuiteInputs() if "drafter" in given else CAPACITY.full, given)
    assert said in refused.value.message

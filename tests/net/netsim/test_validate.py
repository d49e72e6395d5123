"""The checks in real time: each finds its planted error, and passes without it unless the machine itself was busy."""

from __future__ import annotations

import pytest
from netsim.validate import compare, real
from netsim.validate.check import Check, Plan, Verdict, carry_out

CHECKS = (*real.CHECKS, *compare.CHECKS)

# One worker for all of them: two at once would measure each other.
pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("netsim-real-time")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_check_finds_its_planted_error(check: Check) -> None:
    assert carry_out(check, Plan(quick=True, planted=True)).verdict is Verdict.FAIL


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_check_does_not_fail(check: Check) -> None:
    outcome = carry_out(check, Plan(quick=True))
    assert outcome.verdict is not Verdict.FAIL, outcome.value

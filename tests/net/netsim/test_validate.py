"""The checks in real time: each finds its planted error, and passes without it unless the machine itself was busy."""

from __future__ import annotations

import pytest
from netsim.validate import compare, real
from netsim.validate.check import CheckPlan, CheckVerdict, LinkCheck, carry_out

ALL = (*real.CHECKS, *compare.CHECKS)
CHECKS = [
    pytest.param(check, id=check.name, marks=[] if check.name.endswith("-proxy") else pytest.mark.root) for check in ALL
]

# One worker for all of them: two at once would measure each other.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("netsim-real-time")]


@pytest.mark.parametrize("check", CHECKS)
def test_check_finds_its_planted_error(check: LinkCheck) -> None:
    assert carry_out(check, CheckPlan(quick=True, planted=True)).verdict is CheckVerdict.FAIL


@pytest.mark.parametrize("check", CHECKS)
def test_check_does_not_fail(check: LinkCheck) -> None:
    outcome = carry_out(check, CheckPlan(quick=True))
    assert outcome.verdict is not CheckVerdict.FAIL, outcome.value

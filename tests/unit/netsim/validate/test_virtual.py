"""The checks in virtual time pass, and each fails with its planted error."""

from __future__ import annotations

import pytest
from netsim.validate import check
from netsim.validate.check import CheckOutcome, CheckPlan, CheckVerdict, LinkCheck, Measured, carry_out
from netsim.validate.virtual import CHECKS, virtual_log


@pytest.mark.parametrize("each", CHECKS, ids=lambda each: each.name)
def test_check_passes_and_finds_its_planted_error(each: LinkCheck) -> None:
    assert carry_out(each, CheckPlan()).verdict is CheckVerdict.PASS
    assert carry_out(each, CheckPlan(planted=True)).verdict is CheckVerdict.FAIL


def test_the_log_of_a_seed_is_the_same_everywhere() -> None:
    # Pinned: a change of this digest means that old seeds no longer give the runs they gave.
    assert virtual_log(1) == "4a23f421fea9dfbd7657aa1c81dd3dedafb97df2b6ac1b69798c0edf034c468e"


class _Calm:
    busy = False
    description = "calm"

    def __enter__(self) -> _Calm:
        return self

    def __exit__(self, *args: object) -> None:
        return None


class _Busy(_Calm):
    busy = True


def outcome(monkeypatch: pytest.MonkeyPatch, probe: type[_Calm], results: list[bool], plan: CheckPlan) -> CheckOutcome:
    monkeypatch.setattr(check, "MachineProbe", probe)
    left = iter(results)
    return carry_out(LinkCheck("x", "aim", "plant", lambda plan: Measured(next(left), "v"), real_time=True), plan)


def test_real_time_checks_pass_with_the_first_success_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    result = outcome(monkeypatch, _Calm, [False, False, True], CheckPlan())
    assert (result.verdict, result.attempts) == (CheckVerdict.PASS, 3)


def test_three_failures_on_a_calm_machine_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(monkeypatch, _Calm, [False] * 3, CheckPlan()).verdict is CheckVerdict.FAIL


def test_three_failures_on_a_busy_machine_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    result = outcome(monkeypatch, _Busy, [False] * 3, CheckPlan())
    assert result.verdict is CheckVerdict.BUSY
    assert "the machine was busy" in result.value


def test_a_planted_error_is_tried_once_and_no_excuse_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    result = outcome(monkeypatch, _Busy, [False], CheckPlan(planted=True))
    assert (result.verdict, result.attempts) == (CheckVerdict.FAIL, 1)

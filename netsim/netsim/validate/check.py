"""What a check is, and how often it is tried.

Checks in virtual time are tried once: their verdict is the same everywhere. Checks in real time are tried up to three
times and pass with the first success; the number of attempts is shown. If all attempts fail while an idle process
next to them was late too, the verdict is `busy`: the machine could not be measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from netsim.validate.machine import MachineProbe

ATTEMPTS = 3


class CheckVerdict(StrEnum):
    """A check's verdict."""

    PASS = "pass"
    FAIL = "FAIL"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """How to check: with shorter runs or not, and whether the check's error is planted."""

    quick: bool = False
    planted: bool = False
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """One attempt: what was measured, in words and units, and whether it is within the limit."""

    passed: bool
    value: str


@dataclass(frozen=True, slots=True)
class LinkCheck:
    """One line of the table. `plant` says which error `CheckPlan.planted` puts in."""

    name: str
    aim: str
    plant: str
    measure: Callable[[CheckPlan], Measured]
    real_time: bool = False
    needs_root: bool = False


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """A check's result."""

    check: LinkCheck
    verdict: CheckVerdict
    value: str
    attempts: int


def carry_out(check: LinkCheck, plan: CheckPlan) -> CheckOutcome:
    """Tries the check as often as its kind allows."""
    if not check.real_time:
        measured = check.measure(plan)
        return CheckOutcome(check, CheckVerdict.PASS if measured.passed else CheckVerdict.FAIL, measured.value, 1)
    # A planted error is tried once: a check that finds it would find it again.
    attempts = 1 if plan.planted else ATTEMPTS
    calm_failure: str | None = None
    for attempt in range(1, attempts + 1):
        with MachineProbe() as machine:
            measured = check.measure(plan)
        if measured.passed:
            return CheckOutcome(check, CheckVerdict.PASS, measured.value, attempt)
        if plan.planted or not machine.busy:
            calm_failure = measured.value
    if calm_failure is not None:
        return CheckOutcome(check, CheckVerdict.FAIL, calm_failure, attempts)
    return CheckOutcome(
        check, CheckVerdict.BUSY, f"{measured.value}; the machine was busy: {machine.description}", attempts
    )

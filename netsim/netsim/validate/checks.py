"""All checks, and their results as a document."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence

from netsim.errors import NetsimError
from netsim.validate import compare, real, virtual
from netsim.validate.check import CheckOutcome, CheckPlan, LinkCheck

CHECKS: tuple[LinkCheck, ...] = (*virtual.CHECKS, *real.CHECKS, *compare.CHECKS)


def find_checks(names: Sequence[str]) -> list[LinkCheck]:
    """The checks of these names, or all; raises NetsimError for an unknown name."""
    unknown = set(names) - {check.name for check in CHECKS}
    if unknown:
        raise NetsimError(
            f"There is no check {', '.join(sorted(unknown))}.", hint="`netsim validate --list` lists them."
        )
    return [check for check in CHECKS if not names or check.name in names]


def document(outcomes: Sequence[CheckOutcome], plan: CheckPlan) -> dict[str, object]:
    """The results as plain values, for --json."""
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(),
        "quick": plan.quick,
        "planted": plan.planted,
        "checks": [
            {
                "name": outcome.check.name,
                "aim": outcome.check.aim,
                "verdict": str(outcome.verdict),
                "measured": outcome.value,
                "attempts": outcome.attempts,
            }
            for outcome in outcomes
        ],
    }

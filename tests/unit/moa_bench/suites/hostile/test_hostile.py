"""Attacks: gaps between tokens, the limits of what is harmless, the table."""

from __future__ import annotations

from typing import Any

import pytest
from moa_bench.harness.answers import TimedAnswer
from moa_bench.suite import SuiteRun
from moa_bench.suites.hostile import ATTACKS as COUNTED
from moa_bench.suites.hostile import HostileEffort, tables
from moa_bench.suites.hostile.attack_result import AttackResult, Gaps
from moa_bench.suites.hostile.attacks import ATTACKS
from moa_bench.suites.hostile.measure import gaps_of, measure
from moa_shared.errors import ConfigError

STEADY = Gaps(50.0, 60.0, 4, exact=True)
FAILED = Gaps(0.0, 0.0, 0, exact=False, failure="The server is full.")


def attacked(during: Gaps = STEADY, peak_mb: float = 200.0) -> AttackResult:
    return AttackResult("beats", False, STEADY, during, STEADY, 200.0, peak_mb, 200.0)


def test_gaps_leave_the_wait_for_the_first_token_out() -> None:
    answers = [TimedAnswer((1, 2, 3), (5.0, 5.1, 5.3)), TimedAnswer((1, 2, 3), (9.0, 9.1, 9.2))]
    assert gaps_of(answers, (1, 2, 3)) == Gaps(185.0, 200.0, 2, exact=True)
    assert not gaps_of(answers, (1, 2, 4)).exact


@pytest.mark.parametrize(
    ("during", "peak_mb", "harmless"),
    [
        (STEADY, 200.0, True),
        (Gaps(59.0, 900.0, 4, exact=True), 231.0, True),
        (Gaps(61.0, 61.0, 4, exact=True), 200.0, False),
        (STEADY, 233.0, False),
        (Gaps(50.0, 60.0, 4, exact=False), 200.0, False),
        (FAILED, 200.0, False),
    ],
)
def test_what_is_harmless(during: Gaps, peak_mb: float, harmless: bool) -> None:
    assert attacked(during, peak_mb).is_harmless is harmless


def test_the_table_tells_a_failure(facts: dict[str, Any]) -> None:
    both = [attacked(), attacked(FAILED)]
    text = tables.render(facts | {"level": "int8", "effort": HostileEffort(), "attacks": both})
    assert "1 of 2 attacks stayed within the limits" in text
    assert "| beats | 50 | 50 | +0 % | 60 | 50 | +0.0 | +0.0 | yes |" in text
    assert "| The server is full. |" in text


def test_unknown_attacks_are_refused() -> None:
    with pytest.raises(ConfigError, match="no attack 'bees'"):
        measure(HostileEffort(attacks=("bees",)), SuiteRun())
    assert len(ATTACKS) == COUNTED

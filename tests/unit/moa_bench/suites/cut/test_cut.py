"""Incidents on an answer's own clock."""

from __future__ import annotations

import math

from moa_bench.suites.cut.incident import IncidentKind
from moa_bench.suites.cut.incidents import InjectedIncident
from moa_bench.suites.cut.measure import _since


def test_each_incident_knows_when_the_next_one_began() -> None:
    struck = [InjectedIncident(IncidentKind.CUT, 11.0, 11.5), InjectedIncident(IncidentKind.RESET, 12.0, 12.0)]
    assert _since(10.0, struck) == [
        InjectedIncident(IncidentKind.CUT, 1.0, 1.5, 2.0),
        InjectedIncident(IncidentKind.RESET, 2.0, 2.0, math.inf),
    ]


def test_an_answer_may_meet_none() -> None:
    assert _since(10.0, []) == []

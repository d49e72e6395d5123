"""`moa-bench crowd --waiting`: whether a session should sit out a forward during which its draft is due.

Nothing is published: the figures that decided are in docs/adr/0025-no-waiting-for-drafts.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moa_shared.programs.progress import make_progress

from moa_bench.report.report import publish, table
from moa_bench.simulation.crowd import CrowdWay, serve_crowd
from moa_bench.simulation.crowd_suite import ACCEPTANCES, GPU
from moa_bench.simulation.server import Costs, ForwardCosts

ROUNDS = 24  # forwards
RTTS_MS = (0.5, 25.0, 60.0, 150.0)
USERS, QUICK_USERS = (1, 8, 32, 64), (16,)
SUBJECTS: dict[str, ForwardCosts] = {
    "a core": Costs(plain_ms=10.0, verify_ms=10.0, node_ms=1.0),  # 32 rows take 41 ms
    "a GPU": GPU,
    "a GPU, long texts": replace(GPU, context_ms=1.6),  # 16,000 tokens of context: an answer costs more than its row
}


@dataclass(frozen=True, slots=True)
class WaitingCell:
    """What waiting is worth to a crowd.

    Args:
        tokens_per_s, gap_p95_ms: without waiting, of all users together.
        speed, gap: with waiting, over those.
    """

    subject: str
    users: int
    rtt_ms: float
    acceptance: float
    tokens_per_s: float
    gap_p95_ms: float
    speed: float
    gap: float


def run_waiting(*, quick: bool, json_file: Path | None) -> None:
    """Simulate and report.

    Raises:
        MoaError: a file cannot be written.
    """
    users, rtts_ms, acceptances = (
        (QUICK_USERS, RTTS_MS[:1], ACCEPTANCES[-2:]) if quick else (USERS, RTTS_MS, ACCEPTANCES)
    )
    cases = [
        (subject, number, rtt_ms, acceptance)
        for subject in SUBJECTS
        for number in users
        for rtt_ms in rtts_ms
        for acceptance in acceptances
    ]
    cells = []
    with make_progress().task("Crowds", len(cases)) as task:
        for case in cases:
            cells.append(compare(*case))
            task.advance(1)
    publish("crowd-waiting", {"suite": "crowd-waiting", "cells": cells}, render(cells), quick=True, json_file=json_file)


def compare(subject: str, users: int, rtt_ms: float, acceptance: float) -> WaitingCell:
    """Serves a crowd with and without waiting."""
    way = CrowdWay(acceptance, one_way_ms=rtt_ms / 2)
    never, sits_out = (
        serve_crowd(users, replace(way, sits_out=waits), SUBJECTS[subject], rounds=ROUNDS) for waits in (False, True)
    )
    speed, gap = sum(sits_out.rates) / sum(never.rates), sits_out.gap_p95_ms / never.gap_p95_ms
    return WaitingCell(subject, users, rtt_ms, acceptance, sum(never.rates), never.gap_p95_ms, speed, gap)


def render(cells: Sequence[WaitingCell]) -> str:
    """A row for each server and round trip: the ranges over the acceptance, by numbers of users."""
    numbers = sorted({cell.users for cell in cells})
    groups: dict[tuple[str, float], list[WaitingCell]] = {}
    for cell in cells:
        groups.setdefault((cell.subject, cell.rtt_ms), []).append(cell)
    lines = []
    for (subject, rtt_ms), group in groups.items():
        line = [f"{subject}, {rtt_ms:g} ms"]
        for users in numbers:
            some = [cell for cell in group if cell.users == users]
            line += [_range(cell.speed for cell in some), _range(cell.gap for cell in some)]
        lines.append(line)
    head = ["with waiting over without, by RTT"]
    for users in numbers:
        head += [f"{users} users: tokens a second", "p95 gap"]
    return table(head, lines)


def _range(values: Iterable[float]) -> str:
    ordered = sorted(values)
    low, high = f"{ordered[0]:.2f}", f"{ordered[-1]:.2f}"
    return low if low == high else f"{low} to {high}"

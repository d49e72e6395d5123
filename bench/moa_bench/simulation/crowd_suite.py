"""`moa-bench crowd`: how many users a server serves at a speed, over the acceptance, in the event simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moa_shared.programs.progress import make_progress

from moa_bench.capacity.closed_form import users_over_colocated
from moa_bench.capacity.figures import UsersAt, users_at
from moa_bench.report.report import ENGINE, publish, table
from moa_bench.simulation.crowd import CrowdWay, GpuCosts, crowd_rates, mean_rate
from moa_bench.simulation.server import Costs, ForwardCosts

ACCEPTANCES = (0.35, 0.5, 0.65, 0.8, 0.9)
OWN_DRAFTS = (1, 2, 3, 4, 6, 8)  # lengths tried for a server's own chains
# The default target on one core, after 128 tokens (docs/measurements/engine.md): a plain step, and 16 rows in 22.5 ms.
CPU = Costs(plain_ms=13.0, verify_ms=13.0, node_ms=0.63)
# Qwen3-14B in bf16 on an A100 80 GB, from data sheets: 29.6 GB at 80 % of 2.04 TB/s; 29.6 GFLOP a row at half of 312
# TFLOP/s; 2,000 tokens of context of 164 KB each. Its drafter is Qwen3-1.7B: 4.1 GB, 115 KB a token. Launching is
# assumed to take 2 and 1 ms.
GPU = GpuCosts(weights_ms=18.1, context_ms=0.2, row_ms=0.19, launch_ms=2.0, drafter_ms=3.5, drafter_row_ms=0.16)


@dataclass(frozen=True, slots=True)
class Subject:
    """A server to simulate.

    Args:
        rates: tokens a second a user at which users are counted.
        drafts_itself: also simulate a server that drafts on the same machine.
    """

    name: str
    costs: ForwardCosts
    rates: tuple[float, ...]
    drafts_itself: bool = False


LARGE_CPU = Costs(plain_ms=150.0, verify_ms=150.0, node_ms=7.3)  # the same shares of a step
SUBJECTS = (
    Subject("The default target on one core", CPU, (5.0, 10.0, 15.0)),
    Subject("A target of eleven times the size on one core", LARGE_CPU, (3.0, 4.0, 5.0)),
    Subject("A target of 14 billion weights on a GPU", GPU, (20.0, 30.0, 40.0), drafts_itself=True),
)
USERS, QUICK_USERS = (1, 4, 16, 32, 64, 128, 256, 512), (1, 8, 32)


@dataclass(frozen=True, slots=True)
class CrowdRow:
    """One way at one acceptance.

    Args:
        acceptance: None: plain serving.
        devices, server: users at each rate, with drafts of devices and with those of the server itself.
        form: 1 + g t_d / t_v, at the server's own best g and as many users as it serves at the first rate.
    """

    acceptance: float | None
    devices: tuple[UsersAt, ...]
    server: tuple[UsersAt, ...] = ()
    form: float | None = None


def run_crowd(*, quick: bool, json_file: Path | None) -> None:
    """Simulate and report.

    Raises:
        MoaError: a file cannot be written.
    """
    numbers = QUICK_USERS if quick else USERS
    acceptances = (0.8,) if quick else ACCEPTANCES
    found: list[tuple[Subject, list[CrowdRow]]] = []
    with make_progress().task("Crowds", len(SUBJECTS) * (1 + len(acceptances))) as task:
        for subject in SUBJECTS:
            rows = []
            for acceptance in (None, *acceptances):
                rows.append(simulate_row(subject, acceptance, numbers))
                task.advance(1)
            found.append((subject, rows))
    result = {
        "suite": "crowd", "quick": quick, "users": numbers,
        "subjects": [{"subject": subject, "rows": rows} for subject, rows in found],
    }  # fmt: skip
    text = "\n".join(render(subject, rows) for subject, rows in found)
    publish("crowd", result, text, quick=quick, json_file=json_file, page=ENGINE)


def simulate_row(subject: Subject, acceptance: float | None, numbers: Sequence[int]) -> CrowdRow:
    """Simulates numbers of users, ascending, until all rates are too high for one."""

    def at_rates(way: CrowdWay) -> tuple[UsersAt, ...]:
        measured: list[tuple[int, float]] = []
        for users in numbers:
            measured.append((users, mean_rate(crowd_rates(users, way, subject.costs))))
            if measured[-1][1] < min(subject.rates):
                break
        return tuple(users_at(rate, measured) for rate in subject.rates)

    devices = at_rates(CrowdWay(acceptance))
    if acceptance is None or not subject.drafts_itself:
        return CrowdRow(acceptance, devices)
    by_length = {length: at_rates(CrowdWay(acceptance, own_drafts=length)) for length in OWN_DRAFTS}
    server = tuple(
        max((each[place] for each in by_length.values()), key=lambda found: found.users)
        for place in range(len(subject.rates))
    )
    best = max(by_length, key=lambda length: by_length[length][0].users)
    answers = max(1, round(server[0].users))
    draft_ms, verify_ms = subject.costs.own_draft_ms(answers), subject.costs.forward_ms(answers * best, answers)
    return CrowdRow(acceptance, devices, server, round(users_over_colocated(best, draft_ms, verify_ms), 2))


def render(subject: Subject, rows: Sequence[CrowdRow]) -> str:
    """A row for plain serving and for each acceptance."""
    plain = rows[0].devices
    head = ["users, by acceptance"]
    for rate in subject.rates:
        head += [f"{rate:g} tokens a second each", "over plain's"]
        head += ["over a server's that drafts itself"] if subject.drafts_itself else []
    lines = []
    for row in rows:
        line = ["plain" if row.acceptance is None else f"devices' drafts, {row.acceptance:g}"]
        for place in range(len(subject.rates)):
            line += [_users(row.devices[place]), _over(row.devices[place], plain[place])]
            if subject.drafts_itself:
                line.append(_over(row.devices[place], row.server[place]) if row.server else "")
        if subject.drafts_itself:
            line.append(f"{row.form:.2f}" if row.form is not None else "")
        lines.append(line)
    if subject.drafts_itself:
        head.append(f"1 + g t_d / t_v at {subject.rates[0]:g}")
    return f"{subject.name}: {subject.costs}.\n\n" + table(head, lines)


def _users(found: UsersAt) -> str:
    return f"{'at least ' if found.at_least else ''}{found.users:.0f}"


def _over(found: UsersAt, other: UsersAt) -> str:
    if other.at_least or not other.users:
        return ""
    return f"{'at least ' if found.at_least else ''}{found.users / other.users:.2f}"

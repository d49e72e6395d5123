"""`moa-bench fleet --plan`: 10,000 clients on 100 GPUs, in the event simulation; no model, no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moa_shared.programs.progress import make_progress

from moa_bench.report.report import publish, table
from moa_bench.simulation.fleet.assumptions import FleetPlan, rows
from moa_bench.simulation.fleet.recovery import Recovery, lose_node, lose_tower
from moa_bench.simulation.fleet.returning import Choice
from moa_bench.simulation.fleet.routing_state import RoutingState, routing_state

PAGE = "fleet/measurements.md"
LOST, AWAY_S, LONG_S = 500, 30.0, 180.0
QUICK_LOST = 50
FEW = 5  # replicas of the clients of one tower, where routing by place has put them together
# Clients lost, seconds away, over how many replicas, with jitter.
TOWERS = (
    ("over all replicas", AWAY_S, 100, True),
    ("over all replicas, waits without jitter", AWAY_S, 100, False),
    ("over all replicas", LONG_S, 100, True),
    (f"of {FEW} replicas", AWAY_S, FEW, True),
    (f"of {FEW} replicas, waits without jitter", AWAY_S, FEW, False),
    (f"of {FEW} replicas", LONG_S, FEW, True),
)


def run_plan(*, quick: bool, json_file: Path | None) -> None:
    """Simulate and report.

    Raises:
        MoaError: a file cannot be written.
    """
    plan = FleetPlan()
    lost = QUICK_LOST if quick else LOST
    towers, nodes = [], []
    with make_progress().task("Losses", len(TOWERS) + len(Choice)) as task:
        for name, away_s, over, jitter in TOWERS:
            towers.append((f"{name}, {away_s:g} s", lose_tower(plan, lost, away_s, over=over, jitter=jitter)))
            task.advance(1)
        for choice in Choice:
            nodes.append((choice.value, lose_node(plan, choice)))
            task.advance(1)
    result = {
        "suite": "fleet-plan", "quick": quick, "plan": plan, "lost": lost, "routing": routing_state(plan),
        "towers": dict(towers), "nodes": dict(nodes),
    }  # fmt: skip
    text = "\n".join(
        [
            table(["assumption", "value", "from"], rows(plan)),
            render_routing(plan, routing_state(plan)),
            f"{lost} clients of one cell tower lose their network at once, and get it back at once; times from then.\n",
            render(towers),
            f"A node is lost with the conversations of {plan.sessions} clients; times from then. By which of the "
            f"{plan.named} replicas that they know they go to:\n",
            render(nodes),
        ]
    )
    publish("fleet-plan", result, text, quick=quick, json_file=json_file, page=PAGE)


def render_routing(plan: FleetPlan, state: RoutingState) -> str:
    """Who holds what."""
    return table(
        ["who holds it", "what", "bytes"],
        [
            ["a client", f"{plan.named + 1} addresses, a resume token for each", f"{state.client:,}"],
            ["", "its conversation's text", f"{state.client_text:,}"],
            ["a server", f"{plan.named} addresses; token and owner of {plan.sessions} sessions", f"{state.server:,}"],
            ["a router", "nothing", "0"],
            ["one that knew where each conversation is", f"{plan.clients:,} entries", f"{state.table:,}"],
        ],
    )


def render(recoveries: Sequence[tuple[str, Recovery]]) -> str:
    """A row for each loss."""
    head = [
        "who", "stream open, s: median", "95th percentile", "last", "text, s: median", "95th percentile", "last",
        "most attempts", "most calls waiting at a replica", "tokens read again", "at one replica",
        "most that came to one", "its KV memory taken",
    ]  # fmt: skip
    lines = [
        [
            name,
            *(f"{each:.2f}" for each in (met.opened.median, met.opened.p95, met.opened.longest)),
            *(f"{each:.2f}" for each in (met.text.median, met.text.p95, met.text.longest)),
            met.attempts, met.most_calls, f"{met.read_tokens:,}", f"{met.most_read_tokens:,}", met.most_came,
            f"{met.kv_share:.0%}",
        ]
        for name, met in recoveries
    ]  # fmt: skip
    return table(head, lines)

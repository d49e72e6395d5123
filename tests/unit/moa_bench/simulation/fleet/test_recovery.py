"""A fleet on paper: what a cell tower and a node cost that fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.fleet.assumptions import FleetPlan, rows
from moa_bench.simulation.fleet.recovery import Waits, lose_node, lose_tower
from moa_bench.simulation.fleet.replica import PlannedReplica
from moa_bench.simulation.fleet.returning import Choice
from moa_bench.simulation.fleet.routing_state import routing_state
from moa_bench.simulation.fleet.suite import render, render_routing

PLAN = FleetPlan(clients=2000, replicas=20)


def test_every_assumption_has_a_value_and_a_source() -> None:
    assert all(len(row) == 3 and all(row) for row in rows(PLAN))


def test_calls_and_prompts_wait_for_their_turn() -> None:
    loop = EventLoop()
    replica = PlannedReplica(loop, PLAN)
    told: list[tuple[str, float]] = []
    for name in ("a", "b"):
        replica.call(3.0, lambda name=name: told.append((name, loop.now_ms)))  # type: ignore[misc]
    loop.run(lambda: len(told) == 2)
    assert told == [("a", 3.0), ("b", 6.0)]
    assert replica.most_calls == 2
    loop, served = EventLoop(), list[str]()
    replica = PlannedReplica(loop, PLAN)
    step = PLAN.slice_tokens(PLAN.answers)
    replica.resume(3 * step, has_kv=False, on_text=lambda: served.append("long"))
    replica.resume(step // 2, has_kv=False, on_text=lambda: served.append("short"))
    replica.resume(5000, has_kv=True, on_text=lambda: served.append("warm"))
    loop.run(lambda: len(served) == 3)
    assert served == ["warm", "short", "long"]
    assert (replica.read_tokens, replica.came) == (3 * step + step // 2, 2)


def test_a_prompt_doubles_a_forward_at_most() -> None:
    for answers in (1, 25, 200):
        read = PLAN.slice_tokens(answers)
        assert 16 <= read <= PLAN.most_read
        plain_ms = PLAN.costs.forward_ms(0, answers)
        assert read == 16 or PLAN.costs.forward_ms(read, answers) <= 2 * plain_ms


def test_a_tower_s_clients_return_to_their_replicas_and_read_nothing_again() -> None:
    met = lose_tower(PLAN, 100, 10.0, over=20)
    assert (met.clients, met.read_tokens, met.most_came) == (100, 0, 0)
    assert met.text.longest < 6.0
    assert met == lose_tower(PLAN, 100, 10.0, over=20)  # by chance, but always the same


def test_jitter_keeps_calls_from_coming_at_once() -> None:
    drawn = lose_tower(PLAN, 100, 10.0, over=5)
    even = lose_tower(PLAN, 100, 10.0, over=5, jitter=False)
    assert drawn.most_calls < even.most_calls


def test_sessions_that_were_given_up_are_read_again() -> None:
    met = lose_tower(PLAN, 100, PLAN.held_s + 10, over=5)
    assert met.read_tokens > 100 * PLAN.least_tokens
    assert met.text.median > lose_tower(PLAN, 100, PLAN.held_s - 10, over=5).text.median


def test_a_node_s_conversations_are_best_spread_over_all_others() -> None:
    first, same, own = (lose_node(PLAN, choice) for choice in Choice)
    assert first.clients == same.clients == own.clients == 100
    assert first.most_came > same.most_came > own.most_came
    assert first.text.longest > same.text.longest > own.text.longest


def test_waits_count_from_a_moment() -> None:
    assert Waits.of([1000.0, 3000.0, 2000.0], 500.0) == Waits(1.5, 1.5, 2.5)


def test_no_one_holds_a_table_of_conversations() -> None:
    state, larger = routing_state(PLAN), routing_state(replace(PLAN, clients=4000, replicas=40))
    assert (state.client, state.server) == (larger.client, larger.server)
    assert larger.table == 2 * state.table
    assert f"| {state.table:,} |" in render_routing(PLAN, state)


@pytest.mark.parametrize("seed", range(3))
def test_a_recovery_is_a_row(seed: int) -> None:
    met = lose_tower(PLAN, 20, 5.0, over=5, seed=seed)
    assert f"| a tower | {met.opened.median:.2f} |" in render([("a tower", met)])

"""Users a GPU: the limits that arithmetic knows, conservation and monotonicity."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
from moa_bench.suites.scale.assumptions import World, all_worlds
from moa_bench.suites.scale.crowd import CrowdWay, serve_crowd
from moa_bench.suites.scale.figures import Load, rate_at, users_at
from moa_bench.suites.scale.users import SIMULATED, Represented, fit, gpu_costs, serve

WORLD = all_worlds()[0]


def _accepting(acceptance: float, world: World = WORLD) -> World:
    return replace(world, acceptance=acceptance)


@pytest.mark.parametrize("users", [1, 8, 200])
def test_plain_users_share_what_forwards_allow(users: int) -> None:
    assert serve(WORLD, "plain", users).rate == pytest.approx(1e3 / gpu_costs(WORLD).forward_ms(0, users), rel=0.07)


def test_few_users_stand_for_a_crowd() -> None:
    costs, way = gpu_costs(WORLD), CrowdWay(0.7, draft_ms=3.0)
    crowd = fmean(serve_crowd(48, way, costs, knows_costs=True).rates)
    few = fmean(serve_crowd(SIMULATED, way, Represented(costs, 48 / SIMULATED), knows_costs=True).rates)
    assert few == pytest.approx(crowd, rel=0.08)


def test_better_drafts_serve_no_fewer_and_more_users_get_no_more() -> None:
    by_acceptance = [serve(_accepting(acceptance), "streamed", 200).rate for acceptance in (0.1, 0.6, 0.95)]
    assert by_acceptance[0] < by_acceptance[1] < by_acceptance[2]
    by_users = [serve(WORLD, "auto", users).rate for users in (4, 64, 256)]
    assert by_users[0] > by_users[1] > by_users[2]


def test_ours_is_never_much_slower_than_plain() -> None:
    for users in (1, 64, 256):
        assert serve(_accepting(0.05), "auto", users).rate > 0.9 * serve(WORLD, "plain", users).rate


def test_memory_holds_only_so_many() -> None:
    half = replace(WORLD, context=2.0 * WORLD.context)
    assert fit(half, "plain") == fit(WORLD, "plain") // 2
    assert fit(WORLD, "auto") < fit(WORLD, "plain")


def test_users_at_a_speed_are_interpolated_by_milliseconds_a_token() -> None:
    measured = [Load(1, 100.0, 1, 1), Load(101, 20.0, 1, 1)]
    assert (users_at(25.0, measured).users, users_at(25.0, measured).limit) == (76.0, "speed")
    assert (users_at(25.0, measured, 50).users, users_at(25.0, measured, 50).limit) == (50, "memory")
    assert users_at(10.0, measured).limit == "simulated"
    assert users_at(200.0, measured).users == 0
    assert rate_at(76, measured).rate == pytest.approx(25.0)


def test_where_rows_cost_what_they_bring_a_server_that_knows_it_loses_next_to_nothing() -> None:
    world = all_worlds()[3]  # 200 users take it as long to compute as to read
    assert serve(world, "auto", 200).rate > 0.95 * serve(world, "plain", 200).rate

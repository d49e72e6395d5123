"""Many users of one simulated server: what arithmetic says of plain serving, and what drafts bring and cost."""

from __future__ import annotations

from statistics import fmean

import pytest
from moa_bench.simulation.server import Costs, ForwardCosts
from moa_bench.suites.scale.crowd import CrowdWay, GpuCosts, serve_crowd
from moa_server.drafting.forward_cost import RowShares

CORE = Costs(plain_ms=13.0, verify_ms=13.0, rows=RowShares.straight(0.63 / 13.0))
GPU = GpuCosts(weights_ms=18.0, context_ms=0.2, row_ms=0.19, launch_ms=2.0, drafter_ms=3.5, drafter_row_ms=0.16)


def crowd_rates(users: int, way: CrowdWay, costs: ForwardCosts) -> list[float]:
    return serve_crowd(users, way, costs).rates


def test_a_gpu_reads_its_weights_and_computes_its_rows() -> None:
    assert GPU.forward_ms(0, 1) == pytest.approx(20.0 + 0.2 + 0.19)
    assert GPU.forward_ms(60, 10) == pytest.approx(20.0 + 2.0 + 0.19 * 70)
    assert GPU.own_draft_ms(11) == pytest.approx(5.1)


@pytest.mark.parametrize("users", [1, 5, 40])
def test_plain_users_step_together(users: int) -> None:
    rates = crowd_rates(users, CrowdWay(), CORE)
    assert rates == [pytest.approx(1e3 / CORE.forward_ms(0, users), rel=0.07)] * users  # a token more or less


@pytest.mark.parametrize("users", [1, 16])
def test_good_drafts_bring_much_where_rows_are_cheap_and_bad_ones_cost_little(users: int) -> None:
    plain, good, bad = (fmean(crowd_rates(users, CrowdWay(acceptance), GPU)) for acceptance in (None, 0.8, 0.0))
    assert good > 1.4 * plain
    assert bad > 0.93 * plain


def test_many_users_on_one_core_lose_nothing_by_drafts() -> None:
    plain, drafted = (fmean(crowd_rates(64, CrowdWay(acceptance), CORE)) for acceptance in (None, 0.8))
    assert drafted > 0.95 * plain


def test_a_server_that_drafts_itself_helps_one_user_and_pays_for_many() -> None:
    own = CrowdWay(0.8, own_drafts=4)
    assert fmean(crowd_rates(1, own, GPU)) > 1.5 * fmean(crowd_rates(1, CrowdWay(), GPU))
    assert fmean(crowd_rates(64, own, GPU)) < fmean(crowd_rates(64, CrowdWay(0.8), GPU))


def test_equal_arguments_give_equal_rates() -> None:
    assert crowd_rates(8, CrowdWay(0.5), GPU) == crowd_rates(8, CrowdWay(0.5), GPU)

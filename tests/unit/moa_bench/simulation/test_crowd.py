"""Many users of one simulated server: what arithmetic says of plain serving, and what drafts bring and cost."""

from __future__ import annotations

import pytest
from moa_bench.capacity.figures import UsersAt
from moa_bench.simulation.crowd import CrowdWay, GpuCosts, crowd_rates, mean_rate
from moa_bench.simulation.crowd_suite import CrowdRow, Subject, render, simulate_row
from moa_bench.simulation.server import Costs

CORE = Costs(plain_ms=13.0, verify_ms=13.0, node_ms=0.63)
GPU = GpuCosts(weights_ms=18.0, context_ms=0.2, row_ms=0.19, launch_ms=2.0, drafter_ms=3.5, drafter_row_ms=0.16)


def test_a_gpu_reads_its_weights_or_computes_its_rows() -> None:
    assert GPU.forward_ms(0, 1) == pytest.approx(20.2)
    assert GPU.forward_ms(60, 10) == pytest.approx(22.0)  # rows are free beside the weights
    assert GPU.forward_ms(600, 100) == pytest.approx(2.0 + 0.19 * 700)
    assert GPU.own_draft_ms(11) == pytest.approx(5.1)


@pytest.mark.parametrize("users", [1, 5, 40])
def test_plain_users_step_together(users: int) -> None:
    rates = crowd_rates(users, CrowdWay(), CORE)
    assert rates == [pytest.approx(1e3 / CORE.forward_ms(0, users), rel=0.07)] * users  # a token more or less


@pytest.mark.parametrize("users", [1, 16])
def test_good_drafts_bring_much_where_rows_are_cheap_and_bad_ones_cost_little(users: int) -> None:
    plain, good, bad = (mean_rate(crowd_rates(users, CrowdWay(acceptance), GPU)) for acceptance in (None, 0.8, 0.0))
    assert good > 1.4 * plain
    assert bad > 0.93 * plain


def test_many_users_on_one_core_lose_nothing_by_drafts() -> None:
    plain, drafted = (mean_rate(crowd_rates(64, CrowdWay(acceptance), CORE)) for acceptance in (None, 0.8))
    assert drafted > 0.95 * plain


def test_a_server_that_drafts_itself_helps_one_user_and_pays_for_many() -> None:
    own = CrowdWay(0.8, own_drafts=4)
    assert mean_rate(crowd_rates(1, own, GPU)) > 1.5 * mean_rate(crowd_rates(1, CrowdWay(), GPU))
    assert mean_rate(crowd_rates(64, own, GPU)) < mean_rate(crowd_rates(64, CrowdWay(0.8), GPU))


def test_equal_arguments_give_equal_rates() -> None:
    assert crowd_rates(8, CrowdWay(0.5), GPU) == crowd_rates(8, CrowdWay(0.5), GPU)


def test_numbers_grow_until_all_rates_are_too_high() -> None:
    row = simulate_row(Subject("A core", CORE, (20.0, 40.0)), None, (1, 8, 32, 64, 100_000))
    assert not any(found.at_least for found in row.devices)
    for found in row.devices:
        assert CORE.forward_ms(0, round(found.users)) == pytest.approx(1e3 / found.tokens_per_s, rel=0.2)


def test_a_row_for_each_acceptance() -> None:
    def users(*numbers: float) -> tuple[UsersAt, ...]:
        return tuple(UsersAt(0.0, number, at_least=number == 512) for number in numbers)

    subject = Subject("A GPU", GPU, (20.0, 40.0), drafts_itself=True)
    rows = [
        CrowdRow(None, users(100.0, 20.0)),
        CrowdRow(0.8, users(512.0, 30.0), users(60.0, 20.0), 2.2),
    ]
    lines = render(subject, rows).splitlines()
    assert lines[-2:] == [
        "| plain | 100 | 1.00 |  | 20 | 1.00 |  |  |",
        "| devices' drafts, 0.8 | at least 512 | at least 5.12 | at least 8.53 | 30 | 1.50 | 1.50 | 2.20 |",
    ]

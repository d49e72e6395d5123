"""When the server's drafts pay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.drafting.forward_cost import Calibration, CostLine, DraftRecord, GrowthRule, RowShares
from moa_shared.tree import DraftTree

EACH = RowShares.straight(1.0)  # so that a line's slope is that of its rows
COST = CostLine(plain_ms=10.0, start_ms=10.0, slope_ms=0.5, shares=EACH)


def rule(rate: float = 0.1, rows: int = 0, most_nodes: int = 64, step_ms: float = 2.5) -> GrowthRule:
    return GrowthRule(rate, COST, rows, step_ms, follow_ms=1.0, most_nodes=most_nodes)


def test_a_step_pays_as_far_as_it_finds_more_than_its_time_is_worth() -> None:
    # 0.1 tokens a ms: 2.5 ms are worth 0.25 tokens, two rows 0.1
    assert rule().pays(1.0, 0.4, 2.0)
    assert not rule().pays(1.0, 0.3, 2.0)
    assert rule().pays(0.5, 0.65, 2.0)
    assert not rule().pays(0.4, 0.65, 2.0)


def test_a_step_that_loses_alone_pays_with_those_that_follow_it() -> None:
    # Gemma 3 270M on a core: a plain step takes 10.5 ms, a forward of two rows 13.6, and three more rows nearly nothing.
    steep = CostLine(10.5, 13.5, 2.0, RowShares(((1, 0.01), (3, 0.03), (7, 0.3))))
    gemma = GrowthRule(1.3 * 2.1 / 10.5, steep, 0, step_ms=0.5, follow_ms=0.1, most_nodes=64)
    assert gemma.pays(1.0, 0.8, 1.0, later=0.8, first=True)
    assert not gemma.pays(1.0, 0.8, 1.0, later=0.2, first=True)
    assert not gemma.pays(1.0, 0.8, 1.0, first=True)


def test_the_dearer_time_is_the_likelier_a_node_must_be() -> None:
    assert rule(rate=0.1).least_chance == pytest.approx(0.05)
    assert rule(rate=0.4, rows=15).least_chance == pytest.approx(0.2)
    assert rule(rate=50.0).least_chance == 1.0
    free = GrowthRule(0.1, CostLine(10.0, 8.0, 0.25, EACH), 0, 2.0, 1.0, 64)  # up to eight nodes take no time
    assert free.least_chance == 0.0


@pytest.mark.parametrize(
    ("chances", "chosen"),
    [
        ([0.6, 0.1, 0.05], [0, 1, 2]),  # 0.05 tokens a row: the last one gains nothing, but loses nothing
        ([0.6, 0.04, 0.01], [0]),
        ([0.6, 0.2, 0.5], [0, 1, 2]),
        ([0.04], []),
        ([], []),
    ],
)
def test_nodes_are_taken_as_far_as_they_outweigh_their_rows(chances: list[float], chosen: list[int]) -> None:
    assert rule(rate=0.0999).choose(chances) == chosen


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(-1, 20)), max_size=20), st.floats(0.001, 1))
def test_a_node_is_taken_only_with_its_parent(nodes: list[tuple[float, int]], rate: float) -> None:
    chances: list[float] = []
    parents: list[int] = []
    for own, above in nodes:
        parent = above if above < len(chances) else -1
        parents.append(parent)
        chances.append(own * (chances[parent] if parent >= 0 else 1.0))
    chosen = set(rule(rate=rate).choose(chances))
    assert all(parents[node] < 0 or parents[node] in chosen for node in chosen)


def after(promised: float, right: int, times: int) -> Calibration:
    calibration = Calibration()
    for _ in range(times):
        calibration.add(promised, right)
    return calibration


def test_one_that_promises_twice_what_it_gives_is_half_trusted() -> None:
    assert after(2.0, 1, 200).factor == pytest.approx(0.5, abs=0.02)


@given(st.lists(st.tuples(st.floats(0, 60), st.integers(0, 20))), st.floats(0, 1))
def test_the_factor_is_a_share(samples: list[tuple[float, int]], prior: float) -> None:
    calibration = Calibration(prior)
    for promised, right in samples:
        calibration.add(promised, right)
    assert 0.0 <= calibration.factor <= 1.0


CHAIN = DraftTree.chain([1, 2, 3])


def test_right_guesses_raise_the_chances_and_wrong_ones_lower_them() -> None:
    good, bad = DraftRecord(), DraftRecord()
    for _ in range(50):
        good.learn_taken(CHAIN, [1, 2, 3, 4])
        bad.learn_taken(CHAIN, [9])
    assert min(good.survival(CHAIN)) > 0.8
    assert max(bad.survival(CHAIN)) < 0.1


def test_steps_without_a_right_guess_are_counted_in_a_row() -> None:
    record = DraftRecord()
    for taken in ([9], [9], [9]):
        record.learn_taken(CHAIN, taken)
    assert record.fruitless_steps == 3
    record.learn_taken(CHAIN, [1])
    assert record.fruitless_steps == 0


def test_guesses_without_the_prompts_memory_are_not_counted() -> None:
    record = DraftRecord()
    before = record.acceptance.level.mean
    for _ in range(20):
        record.learn_taken(DraftTree.chain([5]), [7], blind=True)
    assert record.acceptance.level.mean == before

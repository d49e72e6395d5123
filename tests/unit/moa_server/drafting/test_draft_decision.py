"""What a forward is expected to take, when drafts pay, and what a session's drafter is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.drafting.draft_decision import DraftRecord, GrowthRule, MemorySource, SessionDrafting
from moa_server.drafting.forward_cost import CostLine, ForwardCost, RowShares
from moa_server.session.memory_feed import KeptPlane
from moa_server.session.session import Session, SessionLimits
from moa_shared.protocol.messages import Plane
from moa_shared.tree import DraftTree

# Of a 1B in Q4_K_M on one core with AVX-512 VNNI: the first row is free, and from the eighth on each takes as long.
STEP_MS = 33.0
TIMES = ((2, 33.0), (4, 43.0), (8, 68.0), (16, 136.0), (32, 272.0))


def test_what_rows_take_is_known_from_the_start() -> None:
    shares = RowShares.of_times(STEP_MS, TIMES)
    for rows, ms in TIMES:
        assert STEP_MS * (1 + shares.of(rows - 1)) == pytest.approx(ms, rel=0.01)
    assert STEP_MS * (1 + shares.of(5)) == pytest.approx(43.0 + (68.0 - 43.0) / 2)
    assert STEP_MS * (1 + shares.of(63)) == pytest.approx(2 * 272.0)


def test_what_clients_are_told_is_known_from_the_start_and_one_slow_forward_changes_little() -> None:
    cost = ForwardCost(RowShares.of_times(STEP_MS, TIMES), STEP_MS)
    assert cost.plain_ms == STEP_MS
    assert cost.row_ms == pytest.approx((76.5 - STEP_MS) / 8, rel=0.05)
    for number in range(80):
        cost.add(8 * (number % 2), STEP_MS + 16.0 * (number % 2))
    cost.add(0, 5000.0)
    assert cost.plain_ms < 1.2 * STEP_MS


def test_a_row_that_was_free_at_the_start_can_still_become_dear() -> None:
    cost = ForwardCost(RowShares.of_times(10.0, [(2, 10.0), (32, 10.0)]))
    cost.add(0, 10.0)
    assert cost.ms(8) == pytest.approx(10.35, rel=0.01)
    for number in range(60):
        cost.add(number % 16, 10.0 + number % 16)
    assert cost.ms(8) == pytest.approx(18.0, rel=0.12)


@given(st.lists(st.tuples(st.integers(0, 64), st.floats(1.0, 500.0)), min_size=1, max_size=30))
def test_more_nodes_never_cost_less(forwards: list[tuple[int, float]]) -> None:
    cost = ForwardCost()
    cost.add(0, 50.0)
    for nodes, ms in forwards:
        cost.add(nodes, ms)
    costs = [cost.ms(nodes) for nodes in range(65)]
    assert costs == sorted(costs)
    assert costs[0] > 0


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


@pytest.mark.parametrize(("chances", "chosen"), [
    ([0.6, 0.1, 0.05], [0, 1, 2]),  # 0.05 tokens a row: the last one gains nothing, but loses nothing
    ([0.6, 0.04, 0.01], [0]),
    ([0.6, 0.2, 0.5], [0, 1, 2]),
    ([0.04], []),
    ([], []),
])  # fmt: skip
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


CHAIN = DraftTree.chain([1, 2, 3])


def test_steps_without_a_right_guess_are_counted_and_guesses_without_memory_judge_no_drafter() -> None:
    record = DraftRecord()
    before = record.level.mean
    for _ in range(3):
        record.learn_taken(CHAIN, [9], blind=True)
    assert (record.fruitless_steps, record.level.mean) == (3, before)
    record.learn_taken(CHAIN, [1])
    assert record.fruitless_steps == 0
    assert record.level.mean > before


WIDTHS: dict[KeptPlane, int] = {Plane.MEMORY: 4}


def text_session(*tokens: int) -> Session:
    session = Session(SessionLimits(100, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
    session.on_open(tokens)
    return session


def test_planes_are_added_to_those_of_the_same_source() -> None:
    drafting, (first, second) = SessionDrafting(), (MemorySource(lambda rows: rows, 4, 1) for _ in range(2))
    assert drafting.keep(first, WIDTHS) == [Plane.MEMORY]
    assert drafting.keep(first, {**WIDTHS, Plane.REUSED_STATE: 8}) == [Plane.REUSED_STATE]
    assert (drafting.keep(first, WIDTHS), drafting.widths) == ([], {Plane.MEMORY: 4, Plane.REUSED_STATE: 8})
    assert (drafting.keep(second, WIDTHS), drafting.widths) == ([Plane.MEMORY], WIDTHS)


def test_a_drafter_is_told_another_text_from_the_start() -> None:
    drafting = SessionDrafting()
    assert [drafting._tell(text_session(*text)) for text in ([1, 2, 3], [1, 2, 3, 4], [1, 9, 3, 4], [1])] == [
        0,
        3,
        0,
        0,
    ]
    drafting.forget()
    assert drafting._tell(text_session(1)) == 0

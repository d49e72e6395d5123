"""The simulated answer: the aims of the protocol, and its rules against the best fixed ones on the same seeds."""

from __future__ import annotations

from functools import cache
from statistics import mean

import pytest
from moa_bench.simulation.answer import simulate
from moa_bench.simulation.server import Costs
from moa_bench.simulation.user import SimulatedLink
from moa_client.drafting.pacing import CHAIN_BYTES
from moa_client.drafting.settings import DraftingSettings
from moa_shared.tree.draft_tree import DraftTree

LINKS = {
    "rtt 0": SimulatedLink(),
    "5g": SimulatedLink.of_delay(10, 10),
    "4g": SimulatedLink.of_delay(21, 19),
    "150 ms": SimulatedLink.of_delay(75),
    "300 ms": SimulatedLink.of_delay(150),
}
COSTS = Costs()
STREAMED = DraftingSettings("device")
ROUNDS = DraftingSettings("device", rounds=True, run_ahead=False)
SEEDS = range(3)
TOKENS = 400


class FixedWindow:
    """So many levels ahead at most, so many nodes a frame at least."""

    def __init__(self, levels: int, frame_nodes: int) -> None:
        self.levels = levels
        self.frame_nodes = frame_nodes

    def may_grow(self, draft: DraftTree, now_ms: float) -> bool:
        return len(draft) < self.levels

    def may_send(self, draft: DraftTree, unsent: int, *, flush: bool) -> bool:
        return flush or unsent >= self.frame_nodes

    def on_sent(self, nodes: int) -> None:
        pass


@cache
def streamed(link: str, acceptance: float) -> tuple[float, float]:
    """Speed over plain streaming, and bytes up a token."""
    answers = [
        simulate(acceptance, LINKS[link], tokens=TOKENS, seed=seed, costs=COSTS, drafting=STREAMED) for seed in SEEDS
    ]
    plain = 1e3 / COSTS.plain_ms
    return mean(one.tokens_per_s for one in answers) / plain, mean(one.up_bytes_a_token for one in answers)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("acceptance", [0, 0.35, 0.65, 0.9])
def test_never_slower_than_streaming_and_within_the_uplink(link: str, acceptance: float) -> None:
    ratio, up_bytes = streamed(link, acceptance)
    assert ratio >= 0.97
    assert up_bytes <= 41  # the mean over the answers' beginnings too, where the window does not know the use yet


@pytest.mark.parametrize(
    ("link", "acceptance", "aim"),
    [("4g", 0.65, 1.25), ("4g", 0.8, 1.6), ("4g", 0.9, 2.3), ("5g", 0.65, 1.4), ("5g", 0.8, 1.85), ("5g", 0.9, 2.8)],
)
def test_as_much_faster_as_the_aims_say(link: str, acceptance: float, aim: float) -> None:
    assert streamed(link, acceptance)[0] >= aim


def test_synchronous_rounds_are_slower_on_4g() -> None:
    best = max(
        mean(
            simulate(
                0.8, LINKS["4g"], tokens=TOKENS, seed=seed, costs=COSTS, drafting=ROUNDS, round_length=length
            ).tokens_per_s
            for seed in SEEDS
        )
        for length in range(3, 12)
    )
    assert streamed("4g", 0.8)[0] * 1e3 / COSTS.plain_ms >= 1.2 * best


@pytest.mark.long
@pytest.mark.parametrize(("link", "acceptance"), [("rtt 0", 0.35), ("5g", 0.65), ("4g", 0.8), ("150 ms", 0.8)])
def test_no_fixed_window_of_the_same_uplink_is_much_better(link: str, acceptance: float) -> None:
    best = 0.0
    for levels in (4, 8, 16):
        for frame_nodes in (2, 3, 4, 6):
            answers = [
                simulate(
                    acceptance,
                    LINKS[link],
                    tokens=TOKENS,
                    seed=seed,
                    costs=COSTS,
                    drafting=STREAMED,
                    rule=FixedWindow(levels, frame_nodes),
                )
                for seed in SEEDS
            ]
            if mean(one.up_bytes_a_token for one in answers) <= CHAIN_BYTES + 3:
                best = max(best, mean(one.tokens_per_s for one in answers))
    assert streamed(link, acceptance)[0] * 1e3 / COSTS.plain_ms >= 0.95 * best


def test_equal_arguments_give_equal_results() -> None:
    def once() -> object:
        return simulate(0.65, LINKS["4g"], tokens=100, seed=5, drafting=STREAMED)

    assert once() == once()


def test_a_drafter_that_is_never_right_costs_no_forward() -> None:
    nothing = simulate(0.0, LINKS["5g"], tokens=100)
    drafts = simulate(0.0, LINKS["5g"], tokens=100, drafting=STREAMED)
    assert drafts.forwards == nothing.forwards == 100
    assert drafts.accepted == 0
    assert drafts.arrivals_ms[-1] <= 1.03 * nothing.arrivals_ms[-1]


def test_a_server_that_waits_for_drafts_continues_when_none_is_worth_it() -> None:
    answer = simulate(0.0, LINKS["300 ms"], tokens=30, drafting=DraftingSettings("device", run_ahead=False))
    assert len(answer.arrivals_ms) == 30

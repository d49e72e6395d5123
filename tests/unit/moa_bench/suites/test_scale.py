"""The simulation: the aims of the protocol, many users of one server, users a GPU, and what was measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, mean, median
from typing import Any

import pytest
from moa_bench.harness.links import LINKS as MEASURED_LINKS
from moa_bench.harness.oracle import DRAFT_MS, ROUNDS, Script
from moa_bench.registry import SCALE
from moa_bench.report import checkout_root, read_folder
from moa_bench.suite import SuiteRun
from moa_bench.suites.scale import simulator
from moa_bench.suites.scale.measure import World, all_worlds, crowd_rates, gpu_costs, measure, render, serve
from moa_bench.suites.scale.simulator import PROMPT, Costs
from moa_bench.suites.split.tables import PLAIN, STREAMED, SYNCHRONOUS
from moa_client.drafting.settings import DraftingSettings
from moa_server.drafting.forward_cost import RowShares
from netsim.core.conditions import Conditions, DelaySpec
from netsim.core.link import Direction
from netsim.profiles import parse

DELAYS = {"rtt 0": (0, 0), "5g": (10, 10), "4g": (21, 19), "150 ms": (75, 0), "300 ms": (150, 0)}  # one way, in ms
LINKS = {name: Conditions(delay=DelaySpec(*delay)) for name, delay in DELAYS.items()}
PLAIN_MS = 49.85
DEVICE = DraftingSettings("device")
SEEDS = range(3)
TOKENS = 400
WORLD = all_worlds()[0]


def costs_of(plain_ms: float, rows: RowShares) -> Costs:
    """Of a forward whose rows add shares of a plain step."""
    return Costs(
        lambda nodes, answers: plain_ms * (1 + rows.of(nodes + answers - 1)),
        lambda answers: DRAFT_MS * answers,
        DRAFT_MS,
    )


CORE = costs_of(13.0, RowShares.straight(0.63 / 13.0))
DEFAULT = costs_of(PLAIN_MS, RowShares.straight(0.85 / PLAIN_MS))  # the default target, by torch in bf16


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    arrivals_ms: Sequence[float]  # of each token at the client
    forwards: int
    accepted: int
    up_bytes: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second after the first token."""
        return 1e3 * (len(self.arrivals_ms) - 1) / (self.arrivals_ms[-1] - self.arrivals_ms[0])


def simulate(
    acceptance: float | Callable[[int], bool],
    link: Conditions,
    *,
    tokens: int,
    seed: int = 0,
    costs: Costs = DEFAULT,
    drafting: DraftingSettings | None = None,
) -> SimulatedAnswer:
    """`acceptance`: of the drafter, a token; or whether it is right about the answer's token of that number."""
    time = simulator.VirtualTime()
    server = simulator.SimulatedServer(time, costs)
    right = acceptance if callable(acceptance) else simulator.by_chance(acceptance, seed)
    text = simulator.ScriptedText(tokens, right)
    user = simulator.SimulatedUser(time, server, text, link, drafting, seed=seed)
    user.ask(tokens)
    time.run(lambda: not user.is_answering)
    assert list(user.conversation.answer) == text.tokens[len(PROMPT) : len(PROMPT) + tokens]
    return SimulatedAnswer(user.arrivals_ms, server.forwards, server.accepted, user.up_bytes)


@cache
def streamed(link: str, acceptance: float) -> tuple[float, float]:
    """Speed over plain streaming, and bytes up a token."""
    answers = [simulate(acceptance, LINKS[link], tokens=TOKENS, seed=seed, drafting=DEVICE) for seed in SEEDS]
    return mean(one.tokens_per_s for one in answers) * PLAIN_MS / 1e3, mean(one.up_bytes / TOKENS for one in answers)


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
    def rounds(length: int) -> float:
        answers = [
            simulate(0.8, LINKS["4g"], tokens=TOKENS, seed=seed, drafting=replace(ROUNDS, rounds=length))
            for seed in SEEDS
        ]
        return mean(answer.tokens_per_s for answer in answers)

    assert streamed("4g", 0.8)[0] >= 1.2 * max(map(rounds, range(3, 12))) * PLAIN_MS / 1e3


def test_a_drafter_that_is_never_right_costs_no_forward() -> None:
    nothing = simulate(0.0, LINKS["5g"], tokens=100)
    drafts = simulate(0.0, LINKS["5g"], tokens=100, drafting=DEVICE)
    assert (drafts.forwards, drafts.accepted) == (nothing.forwards, 0) == (100, 0)
    assert drafts.arrivals_ms[-1] <= 1.03 * nothing.arrivals_ms[-1]
    waiting = simulate(0.0, LINKS["300 ms"], tokens=30, drafting=ROUNDS)
    assert len(waiting.arrivals_ms) == 30  # it continues when none is worth waiting for


@pytest.mark.parametrize("users", [1, 5, 40])
def test_plain_users_step_together(users: int) -> None:
    rates = crowd_rates(users, "plain", 0.0, 10.0, CORE)
    assert rates == [pytest.approx(1e3 / CORE.forward_ms(0, users), rel=0.07)] * users  # a token more or less
    assert serve(WORLD, "plain", users) == pytest.approx(1e3 / gpu_costs(WORLD).forward_ms(0, users), rel=0.07)


def accepting(acceptance: float, world: World = WORLD) -> World:
    return replace(world, values=(*world.values[:-1], {**world.values[-1], "acceptance": acceptance}))


def test_better_drafts_serve_no_fewer_and_more_users_get_no_more() -> None:
    by_acceptance = [serve(accepting(acceptance), "streamed", 200) for acceptance in (0.1, 0.6, 0.95)]
    assert by_acceptance[0] < by_acceptance[1] < by_acceptance[2]
    by_users = [serve(WORLD, "auto", users) for users in (4, 64, 256)]
    assert by_users[0] > by_users[1] > by_users[2]


def test_ours_is_never_much_slower_than_plain() -> None:
    for users in (1, 64, 256):
        assert serve(accepting(0.05), "auto", users) > 0.9 * serve(WORLD, "plain", users)
    world = all_worlds()[3]  # 200 users take it as long to compute as to read
    assert serve(world, "auto", 200) > 0.95 * serve(world, "plain", 200)


def speed_of(answer: Mapping[str, Any]) -> float:
    """Tokens a second after the first."""
    return (int(answer["tokens"]) - 1) / (float(answer["seconds"]) - float(answer["first_ms"]) / 1e3)


def error_of(rounds: Sequence[Mapping[str, Any]], result: Mapping[str, Any], link: str, method: str) -> float:
    """How far the speed over plain streaming's is from that of answers simulated with the same luck, step and link."""
    document = next(each for each in MEASURED_LINKS if each.name == link).document
    conditions = parse(document, link).conditions(Direction.UP)
    drafter, _, way = method.rpartition(": ")
    script, step_ms = Script((), float(drafter.partition(", ")[2]), 0, 1), result["costs"]["step_ms"]
    costs = costs_of(step_ms, RowShares.of_times(step_ms, result["costs"]["times"]))

    def simulated(each: Mapping[str, Any], drafting: DraftingSettings | None) -> float:
        return simulate(
            lambda number: script.right_at(each["prompt_tokens"] + number), conditions, costs=costs,
            tokens=each["answers"][method][0]["tokens"], drafting=drafting,
        ).tokens_per_s  # fmt: skip

    ways = {STREAMED: DEVICE, SYNCHRONOUS: replace(ROUNDS, rounds=result["effort"]["chain"])}
    told = [speed_of(each["answers"][method][0]) / fmean(map(speed_of, each["answers"][PLAIN])) for each in rounds]
    expected = [simulated(each, ways[way]) / simulated(each, None) for each in rounds]
    return median(told) / median(expected) - 1


def test_measured_splits_are_simulated_within_15_percent() -> None:
    """Of those on a Xeon that nobody shared."""
    root, errors = checkout_root(), []
    assert root is not None
    for result in read_folder(root / "bench" / "results" / "amx").values():
        for link in result["links"] if result.get("has_oracles") else ():
            rounds = [each for each in result["rounds"] if each["link"] == link]
            methods = [name for name in rounds[0]["answers"] if name != PLAIN and "trees" not in name]
            errors += [error_of(rounds, result, link, method) for method in methods]
    assert len(errors) == 32
    assert sum(abs(error) > 0.15 for error in errors) <= 2


def test_a_quick_run_has_all_tables() -> None:
    text = render(measure(replace(SCALE.quick, numbers=(1, 64)), SuiteRun()))
    assert all(part in text for part in ("plain serving", "ours (auto)", "NVIDIA A100 80GB SXM data sheet"))

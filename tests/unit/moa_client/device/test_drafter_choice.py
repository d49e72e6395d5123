from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.device.drafter_catalog import HYSTERESIS, DrafterCandidate, ServerPace, choose, speedup

ONLINE, DEEPER = DrafterCandidate("online", 4.2, 2.40), DrafterCandidate("deep", 7.5, 3.71)
SLOW_ONLINE, SLOW_DEEPER = DrafterCandidate("online", 11.0, 2.40), DrafterCandidate("deep", 22.0, 3.71)


@pytest.mark.parametrize(
    ("candidates", "server", "name"),
    [
        ((ONLINE, DEEPER), ServerPace(50.0, 0.9, 0.5), "deep"),  # a large target
        ((ONLINE, DEEPER), ServerPace(50.0, 0.9, 60.0), "deep"),
        ((ONLINE, DEEPER), ServerPace(12.0, 0.9, 0.5), "online"),  # a step hardly longer than a level of the deep one
        ((SLOW_ONLINE, SLOW_DEEPER), ServerPace(25.0, 0.9, 0.5), "online"),  # a slow device
        ((ONLINE, DEEPER), ServerPace(3.0, 0.1, 0.5), "online"),  # neither helps: the first
    ],
)
def test_the_faster_one_is_taken(candidates: tuple[DrafterCandidate, ...], server: ServerPace, name: str) -> None:
    choice = choose(candidates, server)
    assert choice.name == name
    assert f"{server.step_ms:.0f} ms a step" in choice.reason
    assert all(candidate.name in choice.reason for candidate in candidates)


def test_the_one_in_use_stays_unless_another_is_clearly_faster() -> None:
    server = ServerPace(12.0, 0.9, 0.5)
    assert speedup(ONLINE, server) < HYSTERESIS * speedup(DEEPER, server)
    assert choose((ONLINE, DEEPER), server, "deep").name == "deep"
    assert choose((ONLINE, DEEPER), ServerPace(50.0, 0.9, 0.5), "online").name == "deep"


@pytest.mark.parametrize(
    ("server", "level_ms", "tokens", "simulated"),
    [  # moa_bench.suites.scale.simulator: 250 tokens, three seeds, chains that are right with 1 - 1 / tokens
        (ServerPace(12, 0.9, 0.5), 4.2, 2.4, 1.211),
        (ServerPace(12, 0.9, 0.5), 7.5, 3.7, 1.136),
        (ServerPace(12, 0.9, 30), 7.5, 3.7, 1.001),
        (ServerPace(25, 1.0, 10), 7.5, 3.7, 1.334),
        (ServerPace(50, 0.9, 0.5), 7.5, 3.7, 1.840),
        (ServerPace(50, 0.9, 30), 4.2, 2.4, 1.226),
    ],
)
def test_it_agrees_with_the_simulation(server: ServerPace, level_ms: float, tokens: float, simulated: float) -> None:
    assert speedup(DrafterCandidate("", level_ms, tokens), server) == pytest.approx(simulated, rel=0.12)


@given(st.floats(0.1, 200), st.floats(0, 10), st.floats(1, 200), st.floats(0, 5), st.floats(0, 1000))
def test_no_drafter_is_expected_to_cost_time(level: float, tokens: float, step: float, row: float, rtt: float) -> None:
    assert 1.0 <= speedup(DrafterCandidate("", level, tokens), ServerPace(step, row, rtt)) <= max(10.0, tokens)

"""What a run counts and leaves, its loop, and what a real link was measured to be."""

import gzip
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from netsim.core.link import Direction
from netsim.errors import UsageError
from netsim.measure import WIRE_SHARE, Measurement, to_profile
from netsim.picture import draw_run
from netsim.profiles import Scenario, load, parse
from netsim.recorder import LatenessHistogram, RunRecorder
from netsim.run.loop import Loop, parse_address


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Ten seconds over 4g, an outage in the middle, made in virtual time."""
    scenario = Scenario(load("4g"), 7)
    recorder = RunRecorder(tmp_path / "run")
    links = scenario.models(recorder.packet)
    for link in links.values():
        link.schedule.blackhole(4.0, 6.0)
    spec = {"mean_ms": 21.0, "deviation_ms": 19.0, "truncation": "reject", "correlation_ms": 50.0, "scale": 1.0}
    conditions = {"rate_mbps": 20.0, "delay": spec}
    recorder.event(0.0, "start", backend="proxy")
    recorder.event(0.0, "conditions", up=conditions, down=conditions)
    recorder.event(4.0, "blackhole", until_s=6.0, directions=["up", "down"])
    for i in range(2000):
        links[Direction.UP].admit(1500, i * 0.005)
        links[Direction.DOWN].admit(300, i * 0.005)
        recorder.lateness.add(1e-4)
    recorder.event(1.0, "request", connection=1, latency_ms=50.0)
    recorder.finish(scenario, "proxy", 10.0, congestion_control="modelled cubic")
    return tmp_path / "run"


def test_the_three_files_agree(run_folder: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    rows = gzip.open(run_folder / "packets.csv.gz", "rt").read().splitlines()  # noqa: SIM115
    assert (len(rows), rows[0]) == (1 + 4000, "t_s,direction,bytes,verdict,release_s,queue_ms,delay_ms")
    released = sum(",released," in row for row in rows)
    assert released == sum(summary["directions"][side]["packets"] for side in ("up", "down"))
    dropped = sum(row.endswith("outage,,,") for row in rows)
    assert dropped == sum(summary["directions"][side]["dropped_outage"] for side in ("up", "down"))
    assert 790 <= dropped <= 830
    assert summary["seed"] == 7
    assert summary["approximate"] is True
    assert summary["effective_delay_ms"]["up"] == {"mean": 25.755, "deviation": 15.445}
    assert summary["lateness"]["flagged"] is False
    assert {"kernel", "congestion_control", "profile", "backend"} <= summary.keys()
    assert [json.loads(line)["kind"] for line in (run_folder / "events.jsonl").read_text().splitlines()] == [
        "start", "conditions", "blackhole", "request",
    ]  # fmt: skip


def test_a_run_has_a_picture(run_folder: Path, tmp_path: Path) -> None:
    draw_run(run_folder, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_quantiles_are_within_a_bucket(values: list[float], share: float) -> None:
    histogram = LatenessHistogram()
    for value in values:
        histogram.add(value)
    ordered = sorted(values)
    rank = next(i for i in range(len(ordered)) if (i + 1) / len(ordered) >= share - 1e-9)
    assert histogram.quantile_s(share) == pytest.approx(ordered[rank], rel=0.03, abs=2e-6)


@pytest.mark.parametrize(
    ("values", "flagged"),
    [([1e-4] * 100, False), ([4e-4] * 100, True), ([1e-4] * 97 + [6e-3] * 3, True), ([1e-4] * 995 + [6e-3] * 5, False)],
)
def test_flags(values: list[float], flagged: bool) -> None:
    histogram = LatenessHistogram()
    for value in values:
        histogram.add(value)
    assert histogram.summary()["flagged"] is flagged


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_timers_fire_in_order_and_never_early_unless_cancelled_or_infinite(loop: Loop) -> None:
    fired: list[tuple[float, float]] = []

    def fire(due: float) -> None:
        fired.append((due, loop.time()))

    times = [loop.time() + offset for offset in (0.02, 0.005, 0.01)]
    for due in times:
        loop.call_at(due, partial(fire, due))
    loop.call_at(times[0], partial(fire, 0.0)).cancel()
    loop.call_at(math.inf, partial(fire, 0.0))
    loop.call_at(loop.time() + 0.03, loop.stop)
    loop.run()
    assert [due for due, _ in fired] == sorted(times)
    assert all(at >= due for due, at in fired)


@pytest.mark.parametrize("is_running", [False, True])
def test_stop_wakes_a_loop_that_waits_and_counts_before_the_run(loop: Loop, is_running: bool) -> None:
    # As from a signal handler, which runs while select waits: the wake-up pipe makes the next wait return.
    loop.call_at(loop.time() + 600.0, lambda: pytest.fail("too late"))
    if is_running:
        loop.call_at(loop.time(), loop.stop)
    else:
        loop.stop()
    loop.run()


@pytest.mark.parametrize("text", ["6000", "host", "host:", "host:port", "host:70000", "host:-1", "fe80::1:50051"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match=r"--listen: .* is not an address"):
        parse_address(text, "--listen")


SEEN = Measurement(
    round_trips_ms=[(0.1, 40.0), (0.6, 60.0), (1.2, 50.0)],
    down_mbps=[(2.0, 10.0), (3.0, 12.0)],
    up_mbps=[(2.0, 2.0)],
    loss=0.002,
)


def test_a_profile_reads_back_with_the_round_trips_moments() -> None:
    profile = parse(yaml.safe_dump(to_profile(SEEN, "home", "host:1")), "home.yaml")
    up, down = profile.conditions(Direction.UP), profile.conditions(Direction.DOWN)
    assert up.delay.effective().mean_ms == pytest.approx(25.0, abs=0.01)
    # Two halves drawn apart: their sum deviates by sqrt(2) of each.
    assert up.delay.effective().deviation_ms * 2**0.5 == pytest.approx(8.165, rel=0.01)
    assert down.rate_bps == pytest.approx(11e6 * WIRE_SHARE, rel=1e-3)
    assert up.rate_bps == pytest.approx(2e6 * WIRE_SHARE, rel=1e-3)
    assert up.loss.mean == 0.002

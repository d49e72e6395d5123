"""A run's files, the picture drawn from them, and how late its releases were."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netsim.core.link import Direction
from netsim.picture import draw_run
from netsim.profiles import Scenario, load
from netsim.recorder import LatenessHistogram, RunRecorder


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
    assert len(rows) == 1 + 4000
    assert rows[0] == "t_s,direction,bytes,verdict,release_s,queue_ms,delay_ms"
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

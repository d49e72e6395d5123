"""A run's files, and the report drawn from them."""

from __future__ import annotations

import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from netsim.core.link import Direction, Drop, Reason, Release
from netsim.errors import AddressError, ReportError
from netsim.output.plots import draw_delay, draw_losses, draw_queue, draw_requests
from netsim.output.recorder import RunRecorder
from netsim.output.report import _heading, _matplotlib, write_report
from netsim.output.run_data import PacketTraffic, read_run
from netsim.profile import catalogue
from netsim.profile.scenario import Scenario

from tests.support.messages import raises


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Ten seconds over 4g, an outage in the middle, made in virtual time."""
    scenario = Scenario(catalogue.load("4g"), 7)
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


def test_without_a_folder_it_only_counts() -> None:
    recorder = RunRecorder(None)
    recorder.packet(Direction.UP, 0.0, 100, Release(1.0, 0.0, 0.0))
    recorder.packet(Direction.UP, 0.0, 100, Drop(Reason.QUEUE))
    recorder.event(0.0, "nothing")
    assert recorder.counts["up"] == {
        "packets": 1, "bytes": 100, "dropped_outage": 0, "dropped_loss": 0, "dropped_queue": 1,
    }  # fmt: skip


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(AddressError, snapshot("Output folder TMP/file/run cannot be written: Not a directory.")):
        RunRecorder(tmp_path / "file" / "run")


class _Ids(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.external: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if tag in ("script", "link", "img") or (
                name in ("src", "href", "xlink:href") and not value.startswith("#")
            ):
                self.external.append(f"{tag} {name}={value}")


def test_the_report_is_one_file_with_every_plot(run_folder: Path, tmp_path: Path) -> None:
    target, png = tmp_path / "r.html", tmp_path / "r.png"
    write_report(run_folder, target, png)
    page = target.read_text()
    for title in (
        "Latency of requests",
        "Configured and delivered rate",
        "Delay against its target",
        "Delay in the queue",
        "Packets dropped",
    ):
        assert title in page
    assert page.count("<svg") == 5
    parser = _Ids()
    parser.feed(page)
    assert parser.external == []
    assert len(parser.ids) == len(set(parser.ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(parser.ids)
    assert "Approximate" in page
    assert re.search(r"effective delay 25\.7[56] ± 15\.4[45] ms", page)
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_picture_says_which_run_it_is(run_folder: Path, tmp_path: Path) -> None:
    heading = _heading(read_run(run_folder).summary)
    assert re.fullmatch(r"4g over proxy, seed \d+, [\d.]+ s", heading)
    write_report(run_folder, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert re.search(r"1 requests, median 50\.0 ms", page)
    assert re.search(r"Packets dropped \([\d.]+ % of [\d,]+\)", page)
    assert "down, median" in page or "up, median" in page


def test_axes_of_what_did_not_happen_are_no_axes(run_folder: Path) -> None:
    run = read_run(run_folder)
    run.events = [event for event in run.events if event["kind"] != "request"]
    run.traffic = {direction: PacketTraffic() for direction in Direction}
    pyplot = _matplotlib()
    for draw, said in (
        (draw_delay, "no packet passed"),
        (draw_queue, "no packet passed"),
        (draw_losses, "no packet was dropped"),
        (draw_requests, "no requests (connections that talk both ways at once"),
    ):
        figure, axes = pyplot.subplots()
        draw(axes, run)
        assert any(text.get_text().startswith(said) for text in axes.texts)
        assert len(axes.get_yticks()) == 0
        pyplot.close(figure)


def test_the_same_run_gives_the_same_report(run_folder: Path, tmp_path: Path) -> None:
    write_report(run_folder, tmp_path / "a.html")
    write_report(run_folder, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_text() == (tmp_path / "b.html").read_text()


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with raises(
        ReportError, snapshot("TMP does not hold a finished run: TMP/summary.json: No such file or directory.")
    ):
        write_report(tmp_path, tmp_path / "r.html")


def test_a_damaged_run(run_folder: Path, tmp_path: Path) -> None:
    (run_folder / "events.jsonl").write_text("{")
    with raises(
        ReportError,
        snapshot(
            "The outputs in TMP/run are damaged: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."
        ),
    ):
        write_report(run_folder, tmp_path / "r.html")

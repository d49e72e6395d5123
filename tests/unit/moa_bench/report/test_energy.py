"""Joules, from counters that the test writes."""

from __future__ import annotations

from pathlib import Path

from moa_bench.report.energy import EnergyMeter


def write(root: Path, name: str, microjoules: int) -> None:
    zone = root / name
    zone.mkdir(exist_ok=True)
    (zone / "energy_uj").write_text(f"{microjoules}\n")
    (zone / "max_energy_range_uj").write_text("1000000\n")


def test_packages_are_added_and_a_counter_may_come_round(tmp_path: Path) -> None:
    for name, first in (("intel-rapl:0", 900_000), ("intel-rapl:1", 100_000), ("intel-rapl:0:0", 5)):
        write(tmp_path, name, first)
    meter = EnergyMeter(tmp_path)
    before = meter.read()
    assert (meter.counts, before) == (True, [900_000, 100_000])
    write(tmp_path, "intel-rapl:0", 400_000)
    write(tmp_path, "intel-rapl:1", 350_000)
    assert meter.joules_since(before) == 0.75


def test_without_counters_nothing_is_said(tmp_path: Path) -> None:
    meter = EnergyMeter(tmp_path / "none")
    assert (meter.counts, meter.joules_since(meter.read())) == (False, None)

"""Which ways are measured, and what tables call them."""

from __future__ import annotations

from moa_bench.capacity.ways import KINDS, make_ways


def test_plain_serving_comes_first_and_an_oracle_once_for_each_acceptance() -> None:
    assert [way.name for way in make_ways(KINDS, (0.35, 0.8))] == [
        "plain",
        "devices' drafts, acceptance 0.35",
        "devices' drafts, acceptance 0.8",
        "devices' drafts, shipped drafter",
    ]


def test_plain_serving_is_always_there() -> None:
    assert [way.drafts for way in make_ways(["shipped"], (0.8,))] == ["plain", "shipped"]
    assert [way.drafts for way in make_ways(["plain"], (0.8,))] == ["plain"]

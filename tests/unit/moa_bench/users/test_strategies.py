"""Which ways are measured, and what tables call them."""

from __future__ import annotations

from moa_bench.users.strategies import KINDS, make_strategies


def test_plain_serving_comes_first_and_an_oracle_once_for_each_acceptance() -> None:
    ways = make_strategies(KINDS, (0.35, 0.8, 0.9))
    assert [way.name for way in ways] == [
        "plain",
        "server's drafts",
        "devices' drafts, acceptance 0.35",
        "devices' drafts, acceptance 0.8",
        "devices' drafts, acceptance 0.9",
        "devices' drafts, shipped drafter",
        "server's or devices' drafts, acceptance 0.8",
        "server's or devices' drafts, shipped drafter",
    ]
    assert [way.drafts for way in ways if way.server_drafts] == ["server", "auto", "everything"]


def test_plain_serving_is_always_there_and_auto_has_some_acceptance() -> None:
    assert [way.drafts for way in make_strategies(["shipped"], (0.8,))] == ["plain", "shipped"]
    assert [way.drafts for way in make_strategies(["plain"], (0.8,))] == ["plain"]
    assert [way.acceptance for way in make_strategies(["auto"], (0.35, 0.5))] == [None, 0.5]

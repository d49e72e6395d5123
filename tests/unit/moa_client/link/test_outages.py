"""When a loss of the server is a long one."""

from __future__ import annotations

from moa_client.link.outages import TRUSTED_AFTER_MS, LinkLosses, Outages


def lose(outages: Outages, begin: float, end: float) -> None:
    outages.observe(begin, is_served=False)
    outages.observe(end, is_served=True)


def test_a_loss_is_long_after_the_least_time() -> None:
    outages = Outages(10_000.0)
    assert not outages.is_long(0.0)
    assert outages.next_long_ms is None
    outages.observe(500.0, is_served=False)
    assert outages.next_long_ms == 10_500.0
    assert not outages.is_long(10_499.0)
    assert outages.is_long(10_500.0)
    outages.observe(10_500.0, is_served=False)
    assert outages.next_long_ms is None  # nothing is left to wake up for
    outages.observe(11_000.0, is_served=True)
    assert not outages.is_long(99_000.0)


def test_where_losses_last_longer_it_waits_longer_within_bounds() -> None:
    outages = Outages(10_000.0)
    lose(outages, 0.0, 4_000.0)
    assert outages.patience_ms == 10_000.0
    lose(outages, 10_000.0, 17_000.0)
    assert outages.patience_ms == 14_000.0
    lose(outages, 30_000.0, 600_000.0)
    assert outages.patience_ms == 20_000.0
    for number in range(5):
        lose(outages, 700_000.0 + 1000.0 * number, 700_100.0 + 1000.0 * number)
    assert outages.patience_ms == 10_000.0  # the long one is forgotten


def test_a_link_is_trusted_until_it_is_lost_and_again_after_a_while() -> None:
    losses = LinkLosses()
    assert losses.is_trusted(0.0)
    losses.add(5_000.0, 2_000.0)
    assert not losses.is_trusted(5_000.0 + TRUSTED_AFTER_MS - 1)
    assert losses.is_trusted(5_000.0 + TRUSTED_AFTER_MS)

"""When a loss of the server is a long one."""

from __future__ import annotations

from moa_client.link.outages import LEAST_MS, MOST_MS, TRUSTED_AFTER_MS, TRUSTED_AFTER_TIMES, LinkLosses, Outages


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


def test_how_long_this_one_has_lasted() -> None:
    outages = Outages(10_000.0)
    assert outages.reaches_ms(5.0) is None
    assert not outages.has_lasted(100.0, 0.0)
    outages.observe(50.0, is_served=False)
    assert outages.reaches_ms(60_000.0) == 60_050.0
    assert not outages.has_lasted(60_049.0, 60_000.0)
    assert outages.has_lasted(60_050.0, 60_000.0)


MINUTE = 60_000.0


def test_a_link_is_trusted_until_it_is_lost_and_again_after_a_while() -> None:
    losses = LinkLosses()
    assert losses.is_trusted(0.0)
    losses.add(5_000.0, 2_000.0)
    assert not losses.is_trusted(5_000.0 + TRUSTED_AFTER_MS - 1)
    assert losses.is_trusted(5_000.0 + TRUSTED_AFTER_MS)


def test_a_link_that_was_slow_to_return_is_trusted_later() -> None:
    losses = LinkLosses()
    losses.add(0.0, 20_000.0)
    losses.add(MINUTE, 400.0)  # which does not make the one before forgotten
    assert not losses.is_trusted(MINUTE + TRUSTED_AFTER_TIMES * 20_000.0 - 1)
    assert losses.is_trusted(MINUTE + TRUSTED_AFTER_TIMES * 20_000.0)
    losses.add(30 * MINUTE, 400.0)
    assert losses.is_trusted(30 * MINUTE + TRUSTED_AFTER_MS)


def test_a_hiccup_is_no_loss() -> None:
    losses = LinkLosses()
    losses.add(0.0, LEAST_MS - 1)
    assert losses.is_trusted(1.0)


def test_a_night_offline_does_not_matter_for_longer_than_an_hour() -> None:
    losses = LinkLosses()
    losses.add(0.0, 600 * MINUTE)
    assert losses.is_trusted(MOST_MS)


def test_conversations_over_one_link_learn_of_each_others_losses() -> None:
    losses = LinkLosses()
    one, other = Outages(1_000.0, losses), Outages(1_000.0, losses)
    one.observe(0.0, is_served=False)
    assert one.is_link_trusted(LEAST_MS - 1)  # it may be a hiccup
    assert not one.is_link_trusted(LEAST_MS)
    assert other.is_link_trusted(LEAST_MS)  # the loss may be the stream's
    one.observe(400.0, is_served=True)
    assert not other.is_link_trusted(500.0)

"""Whether a link that was lost can be relied on again."""

from __future__ import annotations

from moa_client.link.losses import MOST_MS, TRUSTED_AFTER_MS, TRUSTED_AFTER_TIMES, LinkLosses
from moa_client.link.outages import Outages

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
    losses.add(MINUTE, 100.0)  # which does not make the one before forgotten
    assert not losses.is_trusted(MINUTE + TRUSTED_AFTER_TIMES * 20_000.0 - 1)
    assert losses.is_trusted(MINUTE + TRUSTED_AFTER_TIMES * 20_000.0)
    losses.add(30 * MINUTE, 100.0)
    assert losses.is_trusted(30 * MINUTE + TRUSTED_AFTER_MS)


def test_a_night_offline_does_not_matter_for_longer_than_an_hour() -> None:
    losses = LinkLosses()
    losses.add(0.0, 600 * MINUTE)
    assert losses.is_trusted(MOST_MS)


def test_conversations_over_one_link_learn_of_each_others_losses() -> None:
    losses = LinkLosses()
    one, other = Outages(1_000.0, losses), Outages(1_000.0, losses)
    one.observe(0.0, is_served=False)
    assert not one.is_link_trusted(10.0)
    assert other.is_link_trusted(10.0)  # the loss may be its stream's
    one.observe(100.0, is_served=True)
    assert not other.is_link_trusted(200.0)

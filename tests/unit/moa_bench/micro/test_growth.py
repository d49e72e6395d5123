"""That every piece of work whose growth is measured runs, and does what its name says."""

from __future__ import annotations

from moa_bench.micro.growth import measure_growth

from tests.support.decoders import WIDE, make_decoder


def test_every_piece_is_measured_at_every_length() -> None:
    growths = measure_growth(make_decoder(0, WIDE[0]), 2, (1000, 2000))
    assert len({growth.what for growth in growths}) == len(growths) >= 5
    for growth in growths:
        assert list(growth.us) == [1000, 2000]
        assert all(spread.count == 2 and spread.median > 0 for spread in growth.us.values())

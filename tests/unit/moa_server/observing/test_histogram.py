"""The histogram of plain numbers."""

from __future__ import annotations

from moa_server.observing.histogram import Histogram


def test_values_count_in_all_buckets_that_reach_them() -> None:
    histogram = Histogram((1.0, 2.5))
    for value in (0.5, 1.0, 1.1, 9.0):
        histogram.add(value)
    assert histogram.buckets == [("1", 2.0), ("2.5", 3.0), ("+Inf", 4.0)]
    assert histogram.total == 11.6

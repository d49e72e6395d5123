"""What is counted of answers that meet incidents in a fleet."""

from __future__ import annotations

from moa_bench.fleet.asked import Asked, Opening
from moa_bench.fleet.outcome import Incident, Outcome, Share, shares_of

A, B = "127.0.0.1:1", "127.0.0.1:2"
KILL = Incident("kill", 11.0, 14.0, A)


def _asked() -> list[Asked]:
    """One that is moved by a kill and reads its text again, one that comes back to its replica, one that is lost."""
    moved = Asked(
        0, 0, 10.0, 14.0, [10.5, 13.0, 14.0], (1, 2, 3), counts=[1, 1, 1],
        openings=[Opening(10.25, 0.25, A, 5, 0), Opening(12.0, 0.5, B, 6, 0)],
    )  # fmt: skip
    returned = Asked(
        1, 1, 11.5, 13.5, [12.0, 13.5], (4, 6), counts=[1, 1],
        openings=[Opening(11.75, 0.25, B, 5, 0), Opening(13.0, 0.25, B, 6, 5)],
    )  # fmt: skip
    return [moved, returned, Asked(2, 0, 15.0, 16.0, failure="There is no server.")]


def test_an_outcome_tells_resumes_with_keys_and_values_from_those_without() -> None:
    met = Outcome.of(_asked(), [(1, 2, 3), (4, 5)], [KILL], [A, B])
    assert (met.answers, met.through, met.lost, met.different) == (3, 2, 1, 1)
    assert (met.stall_median_s, met.stall_longest_s) == (2.0, 2.5)
    assert (met.warm.count, met.warm.median_s) == (1, 0.75)
    assert (met.cold.count, met.cold.text_median, met.cold.open_median_s, met.cold.median_s) == (1, 6, 0.5, 1.5)
    assert met.first_text_s == 0.5
    assert met.shares == (Share(A, 1, 1), Share(B, 3, 4))
    assert met.failures == ("There is no server.",)


def test_a_timeline_shows_who_wrote_and_who_waited() -> None:
    timeline = Outcome.of(_asked(), [(1, 2, 3), (4, 5)], [KILL], [A, B]).timeline
    assert timeline.tokens_per_s == {A: [0, 2, 0, 0, 0, 0, 0, 0, 0], B: [0, 0, 0, 0, 2, 0, 2, 2, 2]}
    assert timeline.stalls == [(0, 0.5, 3.0), (0, 3.0, 4.0), (1, 2.0, 3.5), (2, 5.0, 6.0)]
    assert timeline.incidents == [Incident("kill", 1.0, 4.0, A)]


def test_shares_count_from_a_moment_on() -> None:
    assert shares_of(_asked(), [A, B], 12.5) == (Share(A, 0, 0), Share(B, 1, 3))


def test_a_stream_that_is_replaced_before_text_comes_has_no_first_text() -> None:
    asked = Asked(0, 0, 10.0, 14.0, [13.0], counts=[1])
    asked.openings += [Opening(11.0, 0.5, A, 5, 0), Opening(12.0, 0.5, B, 5, 0)]
    assert [asked.first_text_s(each) for each in asked.openings] == [None, 1.5]


def test_nothing_that_was_asked_is_an_empty_outcome() -> None:
    met = Outcome.of([], [], [], [A])
    assert (met.answers, met.lost, met.seconds, met.timeline.tokens_per_s) == (0, 0, 0.0, {A: [0.0]})

"""Copies and what they are worth."""

from __future__ import annotations

from moa_shared.drafting.guesses.copying import CopyGuesser


def test_a_guess_is_what_followed_and_its_chance_grows_with_the_run() -> None:
    copies = CopyGuesser()
    copies.restart([1, 2, 3, 4, 9, 2, 3])
    assert copies.guess() == (4, copies.log_chance(2))
    assert copies.guess([4]) == (9, copies.log_chance(3))
    assert copies.guess([8]) is None
    chances = [copies.log_chance(size) for size in range(1, 7)]
    assert chances == sorted(chances)


def test_it_learns_how_often_copying_is_right() -> None:
    right, wrong = CopyGuesser(), CopyGuesser()
    for copies in (right, wrong):
        copies.restart([1, 2, 3, 4, 5, 6])
    right.extend([1, 2, 3, 4, 5, 6] * 10)
    wrong.extend([1, 2, 9, 1, 2, 8, 1, 2, 7, 1, 2, 6, 1, 2, 5, 1, 2, 4])
    assert right.log_chance(6) > CopyGuesser().log_chance(6)
    assert wrong.log_chance(2) < CopyGuesser().log_chance(2)

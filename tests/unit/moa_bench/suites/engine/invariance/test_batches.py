"""Parts of a forward are what servers make: plain steps, verifications, chunks of prompts within the room."""

from __future__ import annotations

from random import Random

from moa_bench.suites.engine.invariance.batches import SessionPart, draw_part

TEXT = tuple(range(100, 160))
VOCAB = 50  # below the text's tokens: wrong branches are told apart


def drawn(start: int, room: int) -> list[SessionPart]:
    return [draw_part(TEXT, start, room, VOCAB, Random(seed)) for seed in range(300)]


def test_each_part_continues_the_text_and_gives_the_logits_that_a_verification_needs() -> None:
    for part in drawn(20, 30):
        feed = part.feed
        assert tuple(feed.tokens[row] for row in feed.path) == TEXT[20 : 20 + len(feed.path)]
        assert feed.path
        if part.reads:
            assert feed.parents is None
            assert len(feed.tokens) <= 30
        else:
            assert part.wanted.stop == len(feed.tokens)


def test_all_kinds_are_drawn() -> None:
    parts = drawn(20, 30)
    assert {len(part.wanted) == 0 for part in parts if part.reads} == {True, False}
    plain = [part for part in parts if len(part.feed.tokens) == 1 and not part.reads]
    right = [part for part in parts if part.feed.parents is not None and len(part.feed.path) > 4]
    wrong = [part for part in parts if part.feed.parents is not None and len(part.feed.path) == 1]
    assert min(map(len, (plain, right, wrong))) > 10


def test_without_room_nothing_is_read_and_at_the_end_drafts_are_wrong() -> None:
    assert not any(part.reads for part in drawn(20, 0))
    assert {part.feed.path for part in drawn(len(TEXT) - 1, 8)} == {(0,)}

"""Feeds cover the text once and in order, and trees are trees."""

from __future__ import annotations

from random import Random

import pytest
from moa_bench.suites.engine.invariance.feeds import any_feed, chain_feed, tree_feed, with_draft, wrong_tree

TEXT = tuple(range(100, 140))
VOCAB = 50  # below the text's tokens: wrong branches are told apart


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_holds_the_next_tokens_as_a_path(seed: int) -> None:
    random = Random(seed)
    start, nodes = random.randrange(len(TEXT)), random.randint(8, 62)
    feed = tree_feed(TEXT, start, nodes, VOCAB, random)
    assert feed.parents is not None
    assert len(feed.tokens) == len(feed.parents) == nodes
    assert all(-1 <= parent < node for node, parent in enumerate(feed.parents))
    assert feed.path
    assert tuple(feed.tokens[node] for node in feed.path) == TEXT[start : start + len(feed.path)]
    assert [feed.parents[node] for node in feed.path] == [-1, *feed.path[:-1]]
    assert all(feed.tokens[node] < VOCAB for node in range(nodes) if node not in feed.path)


def test_trees_branch() -> None:
    parents = [tree_feed(TEXT, 0, 40, VOCAB, Random(seed)).parents for seed in range(10)]
    assert all(each is not None and len(set(each)) < len(each) for each in parents)


@pytest.mark.parametrize("seed", range(10))
def test_feeds_read_a_text_to_its_end(seed: int) -> None:
    random, at = Random(seed), 0
    while at < len(TEXT):
        feed = any_feed(TEXT, at, VOCAB, random)
        assert len(feed.path) > 0
        at += len(feed.path)
    assert at == len(TEXT)


def test_a_chain_ends_with_the_text() -> None:
    assert chain_feed(TEXT, 38, 8).tokens == TEXT[38:]
    assert chain_feed(TEXT, 0, 3).path == (0, 1, 2)


def test_a_draft_hangs_below_the_last_token_that_is_fed() -> None:
    draft = tree_feed(TEXT, 13, 9, VOCAB, Random(1))
    feed = with_draft(TEXT[10:13], draft)
    assert feed.parents is not None
    assert feed.tokens[:3] == TEXT[10:13]
    assert feed.parents[:3] == (-1, 0, 1)
    assert [parent - 3 for parent in feed.parents[3:]] == list(draft.parents or ())
    assert tuple(feed.tokens[row] for row in feed.path) == TEXT[10 : 10 + len(feed.path)]
    wrong = with_draft(TEXT[10:11], wrong_tree(9, VOCAB, Random(1)))
    assert (len(wrong.tokens), wrong.path) == (10, (0,))

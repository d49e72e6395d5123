"""The ways to read a text again by itself, each compared with its reference: chains, chunks, trees, resumes, forks.

What differs between two ways is only what shares a forward with a row, so every row must keep its bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from moa_bench.suites.engine.invariance.feeds import (
    LARGEST_CHUNK,
    LARGEST_TREE,
    SMALLEST_TREE,
    Feed,
    any_feed,
    chain_feed,
    tree_feed,
)
from moa_bench.suites.engine.invariance.reference import Reference, RowBits, row_of

if TYPE_CHECKING:
    from moa_server.verifier import Target, TargetOutput
    from moa_server.verifier.target import Request

RESUMED_ROWS = 64  # compared after a resume


@dataclass(slots=True)
class Tally:
    """Counts of what was compared.

    Args:
        rows: rows compared; `choices`: those that had logits; `different`: those of other bits.
        flipped: those whose highest logit is another token.
    """

    rows: int = 0
    choices: int = 0
    different: int = 0
    flipped: int = 0

    def add(self, got: RowBits, expected: RowBits) -> None:
        self.rows += 1
        self.different += not got.agrees(expected)
        if got.choice is not None:
            self.choices += 1
            self.flipped += got.choice != expected.choice


class Rereading:
    """One text being read again, in a cache of its own."""

    def __init__(self, target: Target, reference: Reference, tally: Tally) -> None:
        self.reference = reference
        self.cache = target.new_cache()
        self._tally = tally

    @property
    def at(self) -> int:
        """Tokens read."""
        return self.cache.length

    @property
    def is_done(self) -> bool:
        return self.at == len(self.reference.tokens)

    def request(self, feed: Feed) -> Request:
        from moa_server.verifier.target import Request

        return Request(self.cache, feed.tokens, feed.parents, range(len(feed.tokens)), (self.reference.state_layer,))

    def compare(self, feed: Feed, output: TargetOutput) -> None:
        """Keeps what is the text's, and counts its rows."""
        start = self.at - len(feed.tokens)
        self.cache.keep(feed.path)
        kept = self.cache.lsa_input(start, self.at)
        for place, row in enumerate(feed.path):
            self._tally.add(row_of(output, row, kept[place]), self.reference.rows[start + place])

    def compare_fork(self, output: TargetOutput) -> None:
        """Counts all nodes of the fork that was fed, and drops them."""
        self.cache.keep(())
        for fork in self.reference.forks:
            for row, expected in enumerate(fork.rows):
                self._tally.add(row_of(output, row, None), expected)


Draw = Callable[[Rereading], Feed]


def read(
    target: Target, reference: Reference, tally: Tally, draw: Draw, before: Callable[[], object] = lambda: None
) -> None:
    """A whole text, in feeds that `draw` makes; `before` is called before each."""
    reading = Rereading(target, reference, tally)
    while not reading.is_done:
        before()
        feed = draw(reading)
        reading.compare(feed, target.forward_all([reading.request(feed)])[0])


def chains(random: Random) -> Draw:
    return lambda reading: chain_feed(reading.reference.tokens, reading.at, random.randint(2, LARGEST_TREE))


def chunks(random: Random) -> Draw:
    return lambda reading: chain_feed(reading.reference.tokens, reading.at, random.randint(1, LARGEST_CHUNK))


def trees(random: Random, vocab_size: int) -> Draw:
    return lambda reading: tree_feed(
        reading.reference.tokens, reading.at, random.randint(SMALLEST_TREE, LARGEST_TREE), vocab_size, random
    )


def mixed(random: Random, vocab_size: int) -> Draw:
    return lambda reading: any_feed(reading.reference.tokens, reading.at, vocab_size, random)


@dataclass(slots=True)
class ResumeTallies:
    """Tallies of resumed readings: `forks` counts branches that no text takes, `resumes` what follows a lost cache."""

    forks: Tally = field(default_factory=Tally)
    resumes: Tally = field(default_factory=Tally)


def read_resumed(target: Target, reference: Reference, tallies: ResumeTallies, random: Random) -> None:
    """Loses the cache at the fork: what comes before it is read in other chunks, then the fork, then the text."""
    for fork in reference.forks:
        reading = Rereading(target, reference, tallies.forks)
        while reading.at < fork.start:
            count = min(random.randint(1, LARGEST_CHUNK), fork.start - reading.at)
            target.forward(reading.cache, reference.tokens[reading.at : reading.at + count], logits_for=())
        reading.compare_fork(target.forward_all([reading.request(fork.feed)])[0])
        resumed = Rereading(target, reference, tallies.resumes)
        resumed.cache = reading.cache
        draw = mixed(random, target.vocab_size)
        stop = min(len(reference.tokens), fork.start + RESUMED_ROWS)
        while resumed.at < stop:
            feed = draw(resumed)
            resumed.compare(feed, target.forward_all([resumed.request(feed)])[0])

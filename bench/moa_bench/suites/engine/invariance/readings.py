"""The ways to read a text again by itself, each compared with its reference: chains, chunks, trees, resumes, forks.

What differs between two ways is only what shares a forward with a row, so every row must keep its bits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from moa_server.verifier import Target, TargetOutput
from moa_server.verifier.target import Request

from moa_bench.suites.engine.invariance.feeds import (
    LARGEST_CHUNK,
    LARGEST_TREE,
    SMALLEST_TREE,
    Feed,
    any_feed,
    chain_feed,
    tree_feed,
)
from moa_bench.suites.engine.invariance.reference import Reference, RowBits, state_of

RESUMED_ROWS = 64  # compared after a resume


@dataclass(slots=True)
class Tally:
    """Counts of what was compared."""

    rows: int = 0
    choices: int = 0  # rows that had logits
    different: int = 0  # rows of other bits
    flipped: int = 0  # choices whose highest logit is another token

    def add(self, got: RowBits, expected: RowBits) -> None:
        self.rows += 1
        self.different += not got.agrees(expected)
        if got.choice is not None:
            self.choices += 1
            self.flipped += got.choice != expected.choice


class Rereading:
    """One text being read again, in a cache of its own.

    Args:
        wants_state: as a client whose drafter reuses layers of the target.
    """

    def __init__(self, target: Target, reference: Reference, *, wants_state: bool = True) -> None:
        self.reference = reference
        self.cache = target.new_cache()
        self._layers = (reference.state_layer,) if wants_state else ()

    @property
    def at(self) -> int:
        """Tokens read."""
        return self.cache.length

    @property
    def is_done(self) -> bool:
        return self.at == len(self.reference.tokens)

    def request(self, feed: Feed, wanted: range | None = None) -> Request:
        """A part of a forward; `wanted`: rows whose logits are wanted, all without it."""
        return Request(
            self.cache, feed.tokens, feed.parents, range(len(feed.tokens)) if wanted is None else wanted, self._layers
        )

    def compare(self, feed: Feed, output: TargetOutput, tally: Tally, wanted: range | None = None) -> None:
        """Keeps what is the text's, and counts its rows."""
        start = self.at - len(feed.tokens)
        self.cache.keep(feed.path)
        kept = self.cache.lsa_input(start, self.at)
        rows = range(len(feed.tokens)) if wanted is None else wanted
        state = state_of(output) if self._layers else None
        for place, row in enumerate(feed.path):
            logits = output.logits[row - rows.start] if row in rows else None
            bits = RowBits.of(logits, None if state is None else state[row], kept[place])
            tally.add(bits, self.reference.rows[start + place])

    def compare_fork(self, output: TargetOutput, tally: Tally) -> None:
        """Counts all nodes of the fork that was fed, and drops them."""
        self.cache.keep(())
        state = state_of(output)
        for fork in self.reference.forks:
            for row, expected in enumerate(fork.rows):
                tally.add(RowBits.of(output.logits[row], state[row], None), expected)


Draw = Callable[[Rereading], Feed]


def read(target: Target, reference: Reference, tally: Tally, draw: Draw) -> None:
    """A whole text, in feeds that `draw` makes."""
    reading = Rereading(target, reference)
    while not reading.is_done:
        feed = draw(reading)
        reading.compare(feed, target.forward_all([reading.request(feed)])[0], tally)


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


def read_resumed(target: Target, reference: Reference, forks: Tally, resumes: Tally, random: Random) -> None:
    """Loses the cache at the fork: what comes before it is read in other chunks, then the fork, then the text."""
    for fork in reference.forks:
        reading = Rereading(target, reference)
        while reading.at < fork.start:
            count = min(random.randint(1, LARGEST_CHUNK), fork.start - reading.at)
            target.forward(reading.cache, reference.tokens[reading.at : reading.at + count], logits_for=())
        reading.compare_fork(target.forward_all([reading.request(fork.feed)])[0], forks)
        draw = mixed(random, target.vocab_size)
        stop = min(len(reference.tokens), fork.start + RESUMED_ROWS)
        while reading.at < stop:
            feed = draw(reading)
            reading.compare(feed, target.forward_all([reading.request(feed)])[0], resumes)

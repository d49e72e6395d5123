"""A text read one token at a time: the bits that every other way of reading it must give.

Logits of a thousand positions are 200 MB, so what is kept of a row is a digest of its bits, and its choice.
"""

from dataclasses import dataclass
from hashlib import blake2b
from random import Random

import numpy as np
import numpy.typing as npt
from moa_server.verifier import Target, TargetOutput
from moa_server.verifier.cache import KVCache
from moa_shared.errors import InternalError
from moa_shared.sampling.coupling import select
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.arithmetic import path_to

from moa_bench.suites.engine.invariance.feeds import Feed
from moa_bench.suites.engine.invariance.texts import PlannedText

Rows = npt.NDArray[np.float32]

TEMPERATURE = 0.8  # texts are sampled, so that the same question gives another text each time
FORK_NODES = 12


@dataclass(frozen=True, slots=True)
class RowBits:
    """What is known of one row; None: that was not asked for."""

    logits: bytes | None  # a digest
    state: bytes | None  # a digest of the state that enters one layer
    kept: bytes | None  # a digest of its keys and values
    choice: int | None  # the token of the highest logit

    @classmethod
    def of(cls, logits: Rows | None, state: Rows | None, kept: Rows | None) -> "RowBits":
        """The row of these float32 vectors; `kept`: its row of `lsa_input`."""
        choice = int(logits.argmax()) if logits is not None else None
        return cls(_digest(logits), _digest(state), _digest(kept), choice)

    def agrees(self, whole: "RowBits") -> bool:
        """Whether everything known of this row has the bits that it has in `whole`."""
        mine, theirs = (self.logits, self.state, self.kept), (whole.logits, whole.state, whole.kept)
        return all(bits is None or bits == expected for bits, expected in zip(mine, theirs, strict=True))


@dataclass(frozen=True, slots=True)
class Fork:
    """A tree of wrong tokens after `start` tokens of the text; each node is computed as its path by itself."""

    start: int
    feed: Feed
    rows: tuple[RowBits, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """A text and its rows, one a position."""

    tokens: tuple[int, ...]
    state_layer: int
    rows: tuple[RowBits, ...]
    forks: tuple[Fork, ...]


def read_alone(target: Target, planned: PlannedText, number: int, state_layer: int) -> Reference:
    """Reads the prompt and writes the rest, token by token.

    Args:
        number: of the text: seeds what is drawn.
        state_layer: whose state is compared.
    """
    random = Random(number)
    sampling = Sampling(TEMPERATURE, seed=number)
    fork_at = random.randrange(planned.positions)
    tokens = list(planned.prompt)
    cache = target.new_cache()
    rows: list[RowBits] = []
    forks: list[Fork] = []
    for place in range(planned.positions):
        if place == fork_at:
            forks.append(_read_fork(target, cache, state_layer, random))
        output = target.forward(cache, [tokens[place]], want_state_layer=state_layer)
        rows.append(RowBits.of(output.logits[0], state_of(output)[0], cache.lsa_input(place, place + 1)[0]))
        if place + 1 == len(tokens) < planned.positions:
            tokens += select(output.logits, [place + 1], sampling)
    return Reference(tuple(tokens), state_layer, tuple(rows), tuple(forks))


def state_of(output: TargetOutput) -> Rows:
    """The state that a forward was asked for."""
    if output.state is None:
        raise InternalError("A forward gave no state though it was asked for one.")
    return output.state


def _digest(row: Rows | None) -> bytes | None:
    return None if row is None else blake2b(row.tobytes(), digest_size=16).digest()


def _read_fork(target: Target, cache: KVCache, state_layer: int, random: Random) -> Fork:
    start = cache.length
    tokens = [random.randrange(target.vocab_size) for _ in range(FORK_NODES)]
    parents = [random.randrange(-1, node) for node in range(FORK_NODES)]
    rows = []
    for node in range(FORK_NODES):
        for each in path_to(parents, node):
            output = target.forward(cache, [tokens[each]], want_state_layer=state_layer)
        rows.append(RowBits.of(output.logits[0], state_of(output)[0], None))
        cache.crop(start)
    return Fork(start, Feed(tuple(tokens), tuple(parents), ()), tuple(rows))

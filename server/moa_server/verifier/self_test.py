"""The test at the start: a tree against single tokens to the bit, and the cost of a step.

A target that fails is not used: a text that depends on what is verified together would silently break the promise.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from moa_shared.errors import ConfigError
from moa_shared.programs.elapsed import ms_since

from moa_server.verifier.cache import KVCache
from moa_server.verifier.target import Target, TargetOutput

CHAIN = 5
PARENTS = (-1, 0, 1, -1, 3, 2, 5, 0)  # the chain 0, 1, 2, 5, 6 with branches 3, 4, 7
PATH = (0, 1, 2, 5, 6)
REPEATS = 3
MOST_SECONDS = 0.5  # after which a large target is not measured again


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The times measured.

    Args:
        step_ms: of a plain step.
        row_ms: of each further row in a tree.
    """

    step_ms: float
    row_ms: float


def compare_tree(target: Target) -> None:
    """Compares one tree with its path, token by token.

    Raises:
        ConfigError: the bits differ, or are not numbers.
    """
    rng = np.random.default_rng(0)
    prompt = [int(token) for token in rng.integers(0, target.vocab_size, CHAIN)]
    text = [int(token) for token in rng.integers(0, target.vocab_size, len(PATH))]
    tree = [int(token) for token in rng.integers(0, target.vocab_size, len(PARENTS))]
    for node, token in zip(PATH, text, strict=True):
        tree[node] = token
    alone = target.new_cache()
    target.forward(alone, prompt)
    single = [target.forward(alone, [token], want_state_layer=target.layer_count) for token in text]
    together = target.new_cache()
    target.forward(together, prompt)
    output = target.forward(together, tree, PARENTS, want_state_layer=target.layer_count)
    together.keep(PATH)
    _compare(single, output, alone.lsa_input(0, alone.length), together.lsa_input(0, together.length))


def measure_times(target: Target) -> SelfTest:
    """The time of a plain step, and of each further row."""
    began = time.perf_counter()
    steps: list[float] = []
    trees: list[float] = []
    tokens = [token % target.vocab_size for token in range(1, 1 + len(PARENTS))]  # which choose experts of their own
    target.forward(cache := target.new_cache(), [1])  # which reads mapped weights
    while len(steps) < REPEATS and (not steps or time.perf_counter() - began < MOST_SECONDS):
        steps.append(_timed(target, cache, [1], None))
        trees.append(_timed(target, cache, tokens, PARENTS))
    step_ms = min(steps)  # other processes only add time
    return SelfTest(step_ms, max(0.0, (min(trees) - step_ms) / (len(PARENTS) - 1)))


def _compare(single: list[TargetOutput], output: TargetOutput, alone: np.ndarray, together: np.ndarray) -> None:
    rows = [output.logits[node] for node in PATH]
    expected = [each.logits[0] for each in single]
    if not all(bool(np.isfinite(row).all()) for row in rows):
        raise ConfigError("The kernels gave no numbers.", hint="Give --execution float32, and report this.")
    same = all(a.tobytes() == b.tobytes() for a, b in zip(rows, expected, strict=True))
    if not same or alone.tobytes() != together.tobytes():
        raise ConfigError(
            "On this machine the kernels compute a tree differently from its path on its own.",
            hint="Give --execution float32, and report this with the model and the processor.",
        )


def _timed(target: Target, cache: KVCache, tokens: list[int], parents: tuple[int, ...] | None) -> float:
    began = time.perf_counter()
    target.forward(cache, tokens, parents)
    taken_ms = ms_since(began)
    cache.crop(1)
    return taken_ms

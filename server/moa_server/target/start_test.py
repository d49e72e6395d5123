"""The test at the start, under a second: a tree against single tokens to the bit, and the cost of a step.

What fails is not used: a text that depends on what is verified together would break the promise in silence.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np
from moa_shared.errors import ConfigError

from moa_server.target.target import Target, TargetOutput

CHAIN = 5
PARENTS = (-1, 0, 1, -1, 3, 2, 5, 0)  # the chain 0, 1, 2, 5, 6 with branches 3, 4, 7
PATH = (0, 1, 2, 5, 6)
REPEATS = 3


@dataclass(frozen=True, slots=True)
class StartTest:
    """What was measured.

    Args:
        step_ms: a plain step.
        row_ms: each row more, in a tree.
    """

    step_ms: float
    row_ms: float


def run_start_test(target: Target) -> StartTest:
    """Compares one tree with its path, token by token, and measures both.

    Raises:
        ConfigError: the bits differ, or are no numbers.
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
    steps, trees = [], []
    for _ in range(REPEATS):
        steps.append(_timed(target, [1], None))
        trees.append(_timed(target, tree, PARENTS))
    step_ms = median(steps)
    return StartTest(step_ms, max(0.0, (median(trees) - step_ms) / (len(PARENTS) - 1)))


def _compare(single: list[TargetOutput], output: TargetOutput, alone: np.ndarray, together: np.ndarray) -> None:
    rows = [output.logits[node] for node in PATH]
    expected = [each.logits[0] for each in single]
    if not all(bool(np.isfinite(row).all()) for row in rows):
        raise ConfigError("The kernels gave no numbers.", hint="Give --execution float32, and report this.")
    same = all(a.tobytes() == b.tobytes() for a, b in zip(rows, expected, strict=True))
    if not same or alone.tobytes() != together.tobytes():
        raise ConfigError(
            "On this machine the kernels do not compute a tree as they compute its path alone.",
            hint="Give --execution float32, and report this with the model and the processor.",
        )


def _timed(target: Target, tokens: list[int], parents: tuple[int, ...] | None) -> float:
    cache = target.new_cache()
    target.forward(cache, [1])
    began = time.perf_counter()
    target.forward(cache, tokens, parents)
    return 1e3 * (time.perf_counter() - began)

"""The test at the start: a tree against single tokens to the bit, and the cost of a step.

A target that fails is not used: a text that depends on what is verified together would silently break the promise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from moa_shared.errors import ConfigError
from moa_shared.programs.elapsed import ms_since

from moa_server.verifier.cache import KVCache
from moa_server.verifier.target import Target, TargetOutput

CHAIN = 5
PARENTS = (-1, 0, 1, -1, 3, 2, 5, 0)  # the chain 0, 1, 2, 5, 6 with branches 3, 4, 7
PATH = (0, 1, 2, 5, 6)
ROWS = (2, 4, 8, 16, 32)  # of the forwards whose times are measured besides a plain step's
SOME_ROWS = 8  # as a draft has; of these a row's time is said
REPEATS = 6
ENOUGH_MS = 50.0  # of a size, after which it is not measured again
MOST_MS = 1000.0  # of a forward with more rows than a draft has: those that will take longer are left out


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The times measured.

    Args:
        step_ms: of a plain step.
        times: of forwards with more rows: these, and milliseconds.
    """

    step_ms: float
    times: tuple[tuple[int, float], ...]

    @property
    def row_ms(self) -> float:
        """Of each further row of a draft."""
        return max(0.0, (dict(self.times)[SOME_ROWS] - self.step_ms) / (SOME_ROWS - 1))


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
    """The times of forwards by their rows, without what other programs seem to have added to some."""
    target.forward(cache := target.new_cache(), [1])  # which reads mapped weights
    measured = [_timed(target, cache, 1)]
    for rows in ROWS:
        if rows > SOME_ROWS and 2 * measured[-1] > MOST_MS:
            break
        measured.append(_timed(target, cache, rows))
    step_ms, *times = _without_noise((1, *ROWS)[: len(measured)], measured)
    return SelfTest(step_ms, tuple(zip(ROWS, times, strict=False)))


def _without_noise(rows: Sequence[int], measured: Sequence[float]) -> list[float]:
    """Times that rise with the rows, by no less from one to the next than before, and are nowhere above those measured.

    The first rows are nearly free, later ones take all of their arithmetic, and noise only adds. Where one size alone
    met another program, all rows beyond it seemed to be free, and a crowd's forwards were filled with hopeless nodes.
    """
    kept: list[tuple[int, float]] = []
    for here, ms in zip(rows, [*accumulate(reversed(measured), min)][::-1], strict=True):
        while len(kept) > 1 and (kept[-1][1] - kept[-2][1]) * (here - kept[-1][0]) > (ms - kept[-1][1]) * (
            kept[-1][0] - kept[-2][0]
        ):
            kept.pop()
        kept.append((here, ms))
    return [float(ms) for ms in np.interp(rows, [at for at, _ in kept], [ms for _, ms in kept])]


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


def _timed(target: Target, cache: KVCache, rows: int) -> float:
    """The least time of a forward, since other processes only add to it.

    It is processor time where that is less, as beside other programs; of several threads it is more. A long forward is
    interrupted each time there: with the clock alone, its rows would seem too dear for any draft as long as the server
    runs.
    """
    tokens = [token % target.vocab_size for token in range(1, 1 + rows)]  # which choose experts of their own
    times: list[float] = []
    while len(times) < REPEATS and sum(times) < ENOUGH_MS:
        began, began_cpu = time.perf_counter(), time.process_time()
        target.forward(cache, tokens)
        times.append(min(ms_since(began), 1e3 * (time.process_time() - began_cpu)))
        cache.crop(1)
    return min(times)

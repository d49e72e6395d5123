"""The test at the start, under a second: a tree against single tokens to the bit, first and last layer and the head
against numpy's float32, and the cost of a step.

A target that fails is not used: a text that depends on what is verified together would silently break the promise.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import numpy as np
from moa_kernels import F32, Linear, Segment, Stack
from moa_kernels.reference import capped
from moa_shared.errors import ConfigError
from moa_shared.models.network.layers import Weights, read_layer
from moa_shared.models.network.network import Network
from moa_shared.models.weights.weights import HEAD

from moa_server.target.target import Rows, Target, TargetOutput

CHAIN = 5
PARENTS = (-1, 0, 1, -1, 3, 2, 5, 0)  # the chain 0, 1, 2, 5, 6 with branches 3, 4, 7
PATH = (0, 1, 2, 5, 6)
REPEATS = 3
HEAD_ROWS = 64
# Mean error over mean size: 8-bit activations cost 0.5 to 3 % in a layer; a wrong layout or sign costs more than half.
MOST_ERROR = 0.15


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The times measured.

    Args:
        step_ms: of a plain step.
        row_ms: of each further row in a tree.
    """

    step_ms: float
    row_ms: float


def run_self_test(target: Target) -> SelfTest:
    """Compares one tree with its path, token by token, and measures both.

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
    return measure_times(target)


def measure_times(target: Target) -> SelfTest:
    """The time of a plain step, and of each further row."""
    steps, trees = [], []
    for _ in range(REPEATS):
        steps.append(_timed(target, [1], None))
        trees.append(_timed(target, [1] * len(PARENTS), PARENTS))
    step_ms = min(steps)  # other processes only add time
    return SelfTest(step_ms, max(0.0, (min(trees) - step_ms) / (len(PARENTS) - 1)))


def compare_with_float32(network: Network, weights: Weights) -> float:
    """Compares the first and the last layer and a part of the head with numpy's float32 over the same weights.

    Returns:
        the largest error, over the size of what was compared.

    Raises:
        ConfigError: it is out of bounds.
    """
    rng = np.random.default_rng(1)
    tokens = [int(token) for token in rng.integers(0, network.vocab_size, CHAIN)]
    errors = {}
    out: Rows = np.empty(0, np.float32)
    for index in (0, network.layer_count - 1):
        plan = network.plan
        linear = partial(Linear, reference=True)
        prefix = f"model.layers.{index}"
        layer = read_layer(weights, prefix, linear, description=plan.description, plan=plan.layers[index])
        reference = Stack(plan.shape, [layer], plan.rotaries, reference=True)
        state_in, out = (_state(network, tokens, at) for at in (index, index + 1))
        expected, _ = reference.run(state_in, [Segment.chain(reference.new_cache(kv=F32), CHAIN)])
        errors[f"layer {index}"] = _error(out - state_in, expected - state_in)
    hidden = network.normed(out)
    ids = rng.integers(0, network.vocab_size, HEAD_ROWS)
    expected = hidden @ weights.rows(HEAD, ids).T * np.float32(network.plan.logits_scale)
    expected = capped(expected, network.plan.logits_cap) if network.plan.logits_cap else expected
    errors["head"] = _error(network.logits(hidden)[:, ids], expected)
    for place, error in errors.items():
        if not error <= MOST_ERROR:  # NaN is not
            raise ConfigError(
                f"The kernels' {place} is {error:.0%} away from float32 on this machine, more than {MOST_ERROR:.0%}.",
                hint="Give --execution float32, and report this with the model and the processor.",
            )
    return max(errors.values())


def _state(network: Network, tokens: list[int], layer: int) -> Rows:
    cache = network.new_cache()
    _, states = network.hidden(tokens, [Segment.chain(cache, len(tokens))], [layer])
    return states[layer]


def _error(got: Rows, expected: Rows) -> float:
    return float(np.abs(got - expected).mean() / np.abs(expected).mean())


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


def _timed(target: Target, tokens: list[int], parents: tuple[int, ...] | None) -> float:
    cache = target.new_cache()
    target.forward(cache, [1])
    began = time.perf_counter()
    target.forward(cache, tokens, parents)
    return 1e3 * (time.perf_counter() - began)

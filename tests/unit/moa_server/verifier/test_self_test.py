from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from inline_snapshot import snapshot
from moa_kernels import variant_name
from moa_server.verifier import Request, TargetOutput, startup_check
from moa_server.verifier.kernel_target import KernelCache, KernelTarget
from moa_server.verifier.startup_check import PARENTS, PATH, ROWS, compare_tree, measure_times
from moa_server.verifier.target import is_chain
from moa_shared.errors import ConfigError

from tests.support.messages import raises
from tests.support.tiny_models import tiny_kernel_target, tiny_model

pytestmark = pytest.mark.skipif(variant_name() == "numpy", reason="there are no kernels for this CPU")


class Double(KernelTarget):
    """A target whose trees are changed afterwards."""

    change: Callable[[TargetOutput], None]

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        outputs = super()._run(requests, depths)
        for request, output in zip(requests, outputs, strict=True):
            if not is_chain(request.parents):
                self.change(output)
        return outputs


def double(change: Callable[[TargetOutput], None]) -> Double:
    target = Double(tiny_kernel_target(tiny_model()).network, 128)
    target.change = change
    return target


def test_the_kernels_pass_and_are_measured() -> None:
    target = tiny_kernel_target(tiny_model())
    compare_tree(target)
    test = measure_times(target)
    assert test.step_ms > 0
    assert [rows for rows, _ in test.times] == list(ROWS)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        # of an 8B, whose plain step is measured once: with 195 ms its rows seem a quarter cheaper
        ((195.0, 176.9, 218.3, 392.8, 786.5), (176.9, 176.9, 218.3, 392.8, 786.5)),
        # beside other programs: all rows beyond eight seemed to be free
        ((6.0, 7.0, 9.0, 33.0, 35.0, 37.0), (6.0, 7.0, 9.0, 13.0, 21.0, 37.0)),
    ],
)
def test_what_other_programs_add_to_a_forward_is_taken_off(
    measured: Sequence[float], expected: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = dict(zip((1, *ROWS), measured, strict=False))
    monkeypatch.setattr(startup_check, "_timed", lambda target, cache, rows: times[rows])
    test = measure_times(tiny_kernel_target(tiny_model()))
    assert (test.step_ms, *(ms for _, ms in test.times)) == pytest.approx(expected)


def test_the_rows_that_are_measured_differ() -> None:
    """Rows of the same token have the same experts: those of a mixture would seem to cost nothing."""
    read: list[list[int]] = []

    class Watched(KernelTarget):
        def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
            read.extend(list(request.tokens) for request in requests)
            return super()._run(requests, depths)

    measure_times(Watched(tiny_kernel_target(tiny_model()).network, 128))
    assert max(map(len, read)) == max(ROWS)
    assert all(len(set(tokens)) == len(tokens) for tokens in read)


def test_the_path_is_one_of_the_tree_and_no_chain() -> None:
    assert [PARENTS[node] for node in PATH] == [-1, *PATH[:-1]]
    assert not is_chain(PARENTS)


@pytest.mark.parametrize("node", PATH)
def test_one_bit_of_the_path_is_enough_to_fail(node: int) -> None:
    def flip(output: TargetOutput) -> None:
        output.logits[node].view(np.uint32)[5] ^= 1

    with raises(
        ConfigError,
        snapshot(
            "On this machine the kernels compute a tree differently from its path on its own. Give --execution float32, and report this with the model and the processor."
        ),
    ) as caught:
        compare_tree(double(flip))
    assert "--execution float32" in caught.value.hint


def test_a_branch_beside_the_path_is_not_compared() -> None:
    def flip(output: TargetOutput) -> None:
        output.logits[3].view(np.uint32)[5] ^= 1

    compare_tree(double(flip))


def test_what_is_no_number_fails() -> None:
    def spoil(output: TargetOutput) -> None:
        output.logits[:] = np.nan

    with pytest.raises(ConfigError, match="The kernels gave no numbers"):
        compare_tree(double(spoil))


def test_keys_that_are_moved_wrongly_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def move_nothing(self: KernelCache, source: Sequence[int], start: int) -> None:
        pass

    monkeypatch.setattr(KernelCache, "_move", move_nothing)
    with pytest.raises(ConfigError, match="On this machine the kernels compute a tree"):
        compare_tree(tiny_kernel_target(tiny_model()))


def test_a_network_of_a_few_layers_stands_for_all() -> None:
    network = tiny_kernel_target(tiny_model(num_hidden_layers=5)).network
    assert network.different_layers() == [0, 4]
    short = KernelTarget(network.shortened(), 128)
    assert (short.layer_count, network.layer_count) == (2, 5)
    compare_tree(short)


@pytest.mark.torch
def test_layers_with_a_window_stand_for_themselves() -> None:
    from tests.support.dense_families import tiny_dense
    from tests.support.torch_models import from_torch

    assert tiny_kernel_target(from_torch(tiny_dense("gemma 3"))).network.different_layers() == [0, 1, 2]

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from inline_snapshot import snapshot
from moa_kernels import variant_name
from moa_server.target import Request, TargetOutput
from moa_server.target.kernel_target import KernelCache, KernelTarget
from moa_server.target.self_test import PARENTS, PATH, compare_with_float32, run_self_test
from moa_server.target.target import is_chain
from moa_shared.errors import ConfigError

from tests.support.messages import raises
from tests.support.tiny_models import ModelWeights, tiny_kernel_target, tiny_model

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
    assert run_self_test(tiny_kernel_target(tiny_model())).step_ms > 0


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
        run_self_test(double(flip))
    assert "--execution float32" in caught.value.hint


def test_a_branch_beside_the_path_is_not_compared() -> None:
    def flip(output: TargetOutput) -> None:
        output.logits[3].view(np.uint32)[5] ^= 1

    assert run_self_test(double(flip)).step_ms > 0


def test_what_is_no_number_fails() -> None:
    def spoil(output: TargetOutput) -> None:
        output.logits[:] = np.nan

    with raises(ConfigError, snapshot("The kernels gave no numbers. Give --execution float32, and report this.")):
        run_self_test(double(spoil))


def test_keys_that_are_moved_wrongly_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def move_nothing(self: KernelCache, source: Sequence[int], start: int) -> None:
        pass

    monkeypatch.setattr(KernelCache, "_move", move_nothing)
    with raises(
        ConfigError,
        snapshot(
            "On this machine the kernels compute a tree differently from its path on its own. Give --execution float32, and report this with the model and the processor."
        ),
    ):
        run_self_test(tiny_kernel_target(tiny_model()))


# ---------------------------------------------------------------- against float32


def test_quantised_layers_and_head_are_close_to_float32() -> None:
    model = tiny_model("qwen3")
    network = tiny_kernel_target(model, packed=()).network
    assert 0 < compare_with_float32(network, ModelWeights(model)) < 0.05


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.layers.0.self_attn.k_proj.weight", "layer 0"),
        ("model.layers.2.mlp.gate_proj.weight", "layer 2"),
        ("lm_head.weight", "head"),
    ],
)
def test_a_matrix_in_another_layout_is_found(name: str, place: str) -> None:
    model = tiny_model()
    network = tiny_kernel_target(model, packed=()).network
    weights = ModelWeights(model)
    weights.tensors[name] = np.roll(weights.tensors[name], 16, axis=1)
    with pytest.raises(ConfigError, match=f"The kernels' {place} is .* away from float32") as caught:
        compare_with_float32(network, weights)
    assert "--execution float32" in caught.value.hint


def test_what_is_no_number_is_found() -> None:
    model = tiny_model()
    network = tiny_kernel_target(model, packed=()).network
    weights = ModelWeights(model)
    weights.tensors["lm_head.weight"][:] = np.nan
    with raises(
        ConfigError,
        snapshot(
            "The kernels' head is nan% away from float32 on this machine, more than 15%. Give --execution float32, and report this with the model and the processor."
        ),
    ):
        compare_with_float32(network, weights)

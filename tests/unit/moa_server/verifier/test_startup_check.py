"""The check at the start: a tree against its path, and the kernels against float32."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from moa_kernels import Tiles, variant_name
from moa_kernels.transformer.stack import Stack
from moa_server.verifier import Request, TargetOutput, startup_check
from moa_server.verifier.kernel_target import KernelCache, KernelTarget
from moa_server.verifier.startup_check import PATH, ROWS, compare_tree, compare_with_float32, measure_times
from moa_server.verifier.target import is_chain
from moa_shared.errors import ConfigError
from moa_shared.models import WeightReader, resolve
from moa_shared.models.network.network import Network
from moa_shared.models.tiles import tiles_in_memory
from moa_shared.programs.progress import Progress

from tests.support.tiny_models import FAMILIES, HYBRID, TinyModel, save_tokenizer, tiny_kernel_target, tiny_model

pytestmark = pytest.mark.skipif(variant_name() == "numpy", reason="there are no kernels for this CPU")


class Double(KernelTarget):
    """A target whose trees are changed afterwards."""

    change: Callable[[TargetOutput], None]

    def forward_all(self, requests: Sequence[Request]) -> list[TargetOutput]:
        outputs = super().forward_all(requests)
        for request, output in zip(requests, outputs, strict=True):
            if not is_chain(request.parents):
                self.change(output)
        return outputs


def double(change: Callable[[TargetOutput], None]) -> Double:
    target = Double(tiny_kernel_target(tiny_model()).network, 128)
    target.change = change
    return target


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
    assert [rows for rows, _ in test.times] == list(ROWS)[: len(measured) - 1]


@pytest.mark.parametrize("node", PATH)
def test_one_bit_of_the_path_is_enough_to_fail(node: int) -> None:
    def flip(output: TargetOutput) -> None:
        output.logits[node].view(np.uint32)[5] ^= 1

    with pytest.raises(ConfigError, match="On this machine the kernels compute a tree") as caught:
        compare_tree(double(flip))
    assert "--execution float32" in caught.value.hint


def test_no_numbers_and_keys_that_are_moved_wrongly_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="The kernels gave no numbers"):
        compare_tree(double(lambda output: output.logits.fill(np.nan)))
    for family in (FAMILIES[0], HYBRID):
        compare_tree(tiny_kernel_target(tiny_model(family)))
    monkeypatch.setattr(KernelCache, "_keep", lambda cache, start, rows: None)
    with pytest.raises(ConfigError, match="On this machine the kernels compute a tree"):
        compare_tree(tiny_kernel_target(tiny_model()))


def test_a_network_of_a_few_layers_stands_for_all() -> None:
    network = tiny_kernel_target(tiny_model(num_hidden_layers=5)).network
    assert network.different_layers() == [0, 4]
    short = KernelTarget(network.shortened(), 128)
    assert (short.layer_count, network.layer_count) == (2, 5)
    compare_tree(short)


Load = Callable[[TinyModel], tuple[Network, WeightReader]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def run(model: TinyModel) -> tuple[Network, WeightReader]:
        model.save(tmp_path / "model")
        save_tokenizer(tmp_path / "model")
        files = resolve(str(tmp_path / "model"), tmp_path / "cache")
        weights = WeightReader(files).with_tiles(tiles_in_memory(files, Progress()))
        return Network(weights, files.config), weights

    return run


@pytest.mark.parametrize("family", [*FAMILIES, HYBRID])
def test_each_family_passes(load: Load, family: str) -> None:
    network, weights = load(tiny_model(family))
    assert 0 < compare_with_float32(network, weights) < 0.05


@pytest.mark.torch
def test_each_family_of_another_form_passes(load: Load) -> None:
    from tests.support.families import DENSE_FAMILIES, tiny_dense
    from tests.support.torch_models import from_torch

    windowed = tiny_kernel_target(from_torch(tiny_dense("gemma 3")))
    assert windowed.network.different_layers() == [0, 1, 2]
    for family in DENSE_FAMILIES:
        network, weights = load(from_torch(tiny_dense(family)))
        assert 0 < compare_with_float32(network, weights) < 0.05, family


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.k_proj.weight", "model.layers.2.mlp.gate_proj.weight", "lm_head.weight"]
)
def test_tiles_that_are_another_matrix_are_found(load: Load, name: str) -> None:
    network, weights = load(tiny_model())
    tiles = weights.tiles[name]
    moved = Tiles(tiles.kind, tiles.outputs, tiles.inputs, np.roll(tiles.memory, 64))
    with pytest.raises(ConfigError, match=f"The kernels' {name.removesuffix('.weight')} is .* away") as caught:
        compare_with_float32(network, weights.with_tiles({**weights.tiles, name: moved}))
    assert "tiles in the cache" in caught.value.hint
    tiles.memory[-32:] = np.full(16, np.nan, np.float16).view(np.uint8)  # the last scales
    with pytest.raises(ConfigError, match=r"The kernels' .* is nan% away from float32 on this machine"):
        compare_with_float32(network, weights)


def test_a_matrix_of_zeros_passes_and_another_one_in_its_place_is_found(load: Load) -> None:
    model = tiny_model()
    name, other = (f"model.layers.{layer}.self_attn.o_proj.weight" for layer in (0, 1))
    model.tensors[name][:] = 0.0
    network, weights = load(model)
    assert 0 < compare_with_float32(network, weights) < 0.05
    tiles = {**weights.tiles, name: weights.tiles[other]}
    with pytest.raises(ConfigError, match=r"self_attn\.o_proj is inf% away"):
        compare_with_float32(network, weights.with_tiles(tiles))


def test_a_product_that_is_wrong_by_little_is_found(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    network, weights = load(tiny_model())
    monkeypatch.setattr(startup_check, "rounded", lambda rows: rows)  # what float activations would give
    with pytest.raises(ConfigError, match=r"more than 0\.1%"):
        compare_with_float32(network, weights)


def test_layers_that_are_computed_wrongly_are_found(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    network, weights = load(tiny_model())
    run = Stack.run

    def unturned(stack: Stack, *arguments: object, **options: object) -> object:
        if stack.compiled:
            stack = Stack(stack.shape, [replace(layer, rotary=None) for layer in stack.layers], stack.rotaries)
        return run(stack, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Stack, "run", unturned)
    with pytest.raises(ConfigError, match=r"The kernels' layer 0 is .* away from float32"):
        compare_with_float32(network, weights)

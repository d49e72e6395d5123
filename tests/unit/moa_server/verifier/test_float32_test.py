from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from moa_kernels import Tiles
from moa_kernels.transformer.stack import Stack
from moa_server.verifier import startup_check
from moa_server.verifier.startup_check import compare_with_float32
from moa_shared.errors import ConfigError
from moa_shared.models import WeightReader, resolve
from moa_shared.models.network.network import Network
from moa_shared.models.weights.tile_file import TiledWeights, tiles_in_memory
from moa_shared.programs.progress import SilentProgress

from tests.support.tiny_models import FAMILIES, TinyModel, save_tokenizer, tiny_model

Load = Callable[[TinyModel], tuple[Network, TiledWeights]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def run(model: TinyModel) -> tuple[Network, TiledWeights]:
        model.save(tmp_path / "model")
        save_tokenizer(tmp_path / "model")
        files = resolve(str(tmp_path / "model"), tmp_path / "cache")
        weights = TiledWeights(WeightReader(files), tiles_in_memory(files, SilentProgress()))
        return Network(weights, files.config), weights

    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_passes(load: Load, family: str) -> None:
    network, weights = load(tiny_model(family))
    assert 0 < compare_with_float32(network, weights) < 0.05


@pytest.mark.torch
def test_each_family_of_another_form_passes(load: Load) -> None:
    from tests.support.dense_families import DENSE_FAMILIES, tiny_dense
    from tests.support.torch_models import from_torch

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
        compare_with_float32(network, TiledWeights(weights.reader, {**weights.tiles, name: moved}))
    assert "tiles in the cache" in caught.value.hint


def test_a_matrix_of_zeros_passes_and_another_one_in_its_place_is_found(load: Load) -> None:
    model = tiny_model()
    name, other = (f"model.layers.{layer}.self_attn.o_proj.weight" for layer in (0, 1))
    model.tensors[name][:] = 0.0
    network, weights = load(model)
    assert 0 < compare_with_float32(network, weights) < 0.05
    tiles = {**weights.tiles, name: weights.tiles[other]}
    with pytest.raises(ConfigError, match=r"self_attn\.o_proj is inf% away"):
        compare_with_float32(network, TiledWeights(weights.reader, tiles))


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


def test_what_is_no_number_is_found(load: Load) -> None:
    network, weights = load(tiny_model())
    name = "lm_head.weight"
    tiles = weights.tiles[name]
    memory = tiles.memory.copy()
    memory[-32:] = np.full(16, np.nan, np.float16).view(np.uint8)  # the last scales
    spoiled = {name: Tiles(tiles.kind, tiles.outputs, tiles.inputs, memory)}
    with pytest.raises(ConfigError, match="on this machine, more than"):
        compare_with_float32(network, TiledWeights(weights.reader, spoiled))

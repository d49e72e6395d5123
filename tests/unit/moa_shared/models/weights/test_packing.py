from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from inline_snapshot import snapshot
from moa_kernels import KernelError, Tiles, in_four_bits, quantised, set_threads, threads, variant_name
from moa_kernels.tiles import Bytes, packed
from moa_shared.errors import ModelSourceError
from moa_shared.models import WeightReader, resolve
from moa_shared.models.weights import packing
from moa_shared.models.weights.packing import Place, conversions, pack_places, plan_places, total_bytes
from moa_shared.models.weights.weights import EMBEDDINGS
from moa_shared.programs.progress import SilentProgress

from tests.support.messages import raises
from tests.support.tiny_gguf import GgufWriter, write_gguf  # noqa: F401 (a fixture)
from tests.support.tiny_models import save_tiny_model

pytestmark = pytest.mark.skipif(variant_name() == "numpy", reason="packs for compiled kernels")


def pack_all(reader: WeightReader, places: list[Place]) -> dict[str, Tiles]:
    memory = np.zeros(total_bytes(places), np.uint8)

    def write(at: int, piece: Bytes) -> None:
        memory[at : at + len(piece)] = piece

    with SilentProgress().task("Packing") as task:
        pack_places(reader, places, write, task)
    assert getattr(task, "done", 0) > 0
    return {place.name: place.tiles(memory) for place in places}


@pytest.fixture
def _many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_PIECE_BYTES", 1)


@pytest.mark.usefixtures("_many_pieces")
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q5_0", "F16", "BF16", "F32"])
@pytest.mark.parametrize("floats", ["q8_0", "q4_1"])
def test_pieces_by_several_threads_are_the_whole(
    write_gguf: GgufWriter,  # noqa: F811
    tmp_path: Path,
    kind: str,
    floats: str,
) -> None:
    reader = WeightReader(resolve(str(write_gguf(kind=kind)), tmp_path))
    before = threads()
    set_threads(3)
    tiles = pack_all(reader, plan_places(reader, floats))
    set_threads(before)
    for name, each in tiles.items():
        matrix = reader.blocks(name)
        if matrix is None:
            is_head = name == EMBEDDINGS  # which are tied to it
            assert each.kind == ("q8_0" if is_head else floats)
            matrix = (quantised if each.kind == "q8_0" else in_four_bits)(reader.array(name))
        np.testing.assert_array_equal(each.memory, packed(matrix).memory, err_msg=name)


@pytest.mark.usefixtures("_many_pieces")
def test_formats_that_only_the_gguf_package_reads_become_8_bits(
    write_gguf: GgufWriter,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = WeightReader(resolve(str(write_gguf(kind="F16")), tmp_path))
    expected = pack_all(reader, plan_places(reader))
    monkeypatch.setattr(packing, "STORED_FLOATS", {})  # so that all are read as those are
    for name, tiles in pack_all(reader, plan_places(reader)).items():
        np.testing.assert_array_equal(tiles.memory, expected[name].memory, err_msg=name)


def test_conversions_are_counted_by_format(write_gguf: GgufWriter, tmp_path: Path) -> None:  # noqa: F811
    reader = WeightReader(resolve(str(write_gguf(kind="F16")), tmp_path))
    places = plan_places(reader)
    [(stored, sizes)] = conversions(reader, places).items()
    numbers = sum(place.outputs * place.inputs for place in places)
    assert (stored, sizes.stored, sizes.packed) == ("f16", 2 * numbers, sum(place.nbytes for place in places))
    reader = WeightReader(resolve(str(write_gguf("b.gguf", kind="Q4_1")), tmp_path))
    assert conversions(reader, plan_places(reader, "q4_1")) == {}


def test_places_lie_at_pages_and_do_not_overlap(write_gguf: GgufWriter, tmp_path: Path) -> None:  # noqa: F811
    places = plan_places(WeightReader(resolve(str(write_gguf()), tmp_path)))
    assert all(place.start % packing.PAGE == 0 for place in places)
    stops = [place.start + place.nbytes for place in places]
    assert all(stop <= place.start for stop, place in zip(stops, places[1:], strict=False))
    assert (total_bytes(places), total_bytes([])) == (stops[-1], 0)


def test_what_cannot_be_packed_is_named(write_gguf: GgufWriter, tmp_path: Path) -> None:  # noqa: F811
    with raises(
        KernelError,
        snapshot("model.layers.0.mlp.down_proj: It has 40 inputs, which is no multiple of 32."),
    ):
        plan_places(
            WeightReader(resolve(str(save_tiny_model(tmp_path / "odd", intermediate_size=40)), tmp_path / "cache"))
        )
    for poison, error, words in (
        (float("nan"), ModelSourceError, "The tensor model.layers.1.mlp.up_proj.weight of .* not finite"),
        (1e7, KernelError, "model.layers.1.mlp.up_proj: .* too large"),
    ):
        reader = WeightReader(resolve(str(write_gguf(f"{poison}.gguf", poison=poison)), tmp_path / "cache"))
        with pytest.raises(error, match=words):
            pack_all(reader, plan_places(reader))

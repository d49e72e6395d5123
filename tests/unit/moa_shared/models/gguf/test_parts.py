from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ModelSourceError
from moa_shared.models import WeightReader, resolve
from moa_shared.models.gguf.parts import first_parts, is_gguf, model_name

from tests.support.messages import raises
from tests.support.tiny_gguf import GgufWriter


def split(path: Path, count: int = 3, said: int | None = None) -> list[Path]:
    """The model in parts, as gguf-split writes it: all metadata in the first, tensors spread over all."""
    reader = gguf.GGUFReader(path)
    paths = []
    for number in range(count):
        part = path.with_name(f"{path.stem}-{number + 1:05}-of-{count:05}.gguf")
        writer = gguf.GGUFWriter(part, "llama")
        if number == 0:
            for field in reader.fields.values():
                if field.name.startswith(("GGUF.", "general.architecture")):
                    continue
                kind = field.types[0]
                if kind == gguf.GGUFValueType.ARRAY:
                    writer.add_array(field.name, field.contents())
                else:
                    writer.add_key_value(field.name, field.contents(), kind)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count if said is None else said)
        for tensor in reader.tensors[number::count]:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(part)
    return paths


def test_parts_are_one_model_whichever_is_named(write_gguf: GgufWriter, cache: Path) -> None:
    path = write_gguf()
    whole = WeightReader(resolve(str(path), cache))
    parts = split(path)
    path.unlink()
    files = resolve(str(parts[0]), cache)
    assert all(resolve(str(part), cache) == files for part in (*parts[1:], path.parent))
    assert files.weights == tuple(parts)
    assert files.target_id == "tiny"
    reader = WeightReader(files)
    assert sorted(reader.names()) == sorted(whole.names())
    for name in whole.names():
        assert np.array_equal(reader.array(name), whole.array(name)), name


def test_a_missing_part_is_named(write_gguf: GgufWriter, cache: Path) -> None:
    parts = split(write_gguf())
    parts[1].unlink()
    with raises(
        ModelSourceError,
        snapshot(
            "TMP/tiny-00003-of-00003.gguf is one of 3 parts of a model, of which tiny-00002-of-00003.gguf is missing. Put all parts into TMP."
        ),
    ):
        resolve(str(parts[2]), cache)
    parts[0].unlink()
    with raises(
        ModelSourceError,
        snapshot(
            "TMP/tiny-00003-of-00003.gguf is one of 3 parts of a model, of which tiny-00001-of-00003.gguf and 1 more is missing. Put all parts into TMP."
        ),
    ):
        resolve(str(parts[2]), cache)


def test_a_part_under_another_name(write_gguf: GgufWriter, cache: Path) -> None:
    parts = split(write_gguf())
    with raises(
        ModelSourceError,
        snapshot(
            "TMP/some.gguf is one of 3 parts of a model, but was found as one of 1. Give the parts the names that they were written with: NAME-00001-of-00003.gguf and so on."
        ),
    ):
        resolve(str(parts[0].rename(parts[0].with_name("some.gguf"))), cache)


def test_parts_with_the_same_tensor(write_gguf: GgufWriter, cache: Path) -> None:
    parts = split(write_gguf(), 2)
    parts[1].write_bytes(parts[0].read_bytes())
    with raises(
        ModelSourceError,
        snapshot(
            "TMP/tiny-00002-of-00002.gguf holds blk.0.attn_norm.weight, as a part before it does. The file is truncated or corrupt: fetch it again."
        ),
    ):
        resolve(str(parts[0]), cache)


@pytest.mark.parametrize(
    ("name", "model"), [("a-00002-of-00003.gguf", "a"), ("A.GGUF", "A"), ("a-2-of-3.gguf", "a-2-of-3"), ("a.b", "a")]
)
def test_names(name: str, model: str) -> None:
    assert model_name(Path(name)) == model


def test_one_file_for_each_model() -> None:
    names = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf", "c-00002-of-00002.gguf", "d/b.gguf"]
    assert first_parts([Path(name) for name in names]) == [Path(names[at]) for at in (0, 2, 3, 4)]


def test_a_gguf_file_needs_no_suffix(tmp_path: Path) -> None:
    path = tmp_path / "sha256-0"
    assert not is_gguf(path)
    path.write_bytes(b"GGUF and more")
    assert is_gguf(path)
    path.write_bytes(b"GG")
    assert not is_gguf(path)
    assert not is_gguf(tmp_path)
    assert is_gguf(tmp_path / "any.GGUF")

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moa_shared.errors import ModelSourceError
from moa_shared.models import WeightReader, resolve
from moa_shared.models.storage.gguf_header import read_header

from tests.support.messages import says
from tests.support.skipping import examples
from tests.support.tiny_gguf import GgufWriter


def test_a_header_is_what_the_gguf_package_reads(write_gguf: GgufWriter) -> None:
    path = write_gguf(kind="Q4_1", untied=True)
    ours, theirs = read_header(path), gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == fields
    data = np.fromfile(path, np.uint8)
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert mine.stored.name == tensor.tensor_type.name.lower()
        assert bytes(data[mine.offset : mine.offset + mine.size]) == tensor.data.tobytes()


def test_long_arrays_and_texts_may_be_left_out(write_gguf: GgufWriter) -> None:
    texts = {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}
    many = [f"t{index}" for index in range(1025)]
    long = write_gguf("long.gguf", tokens=many)
    for path, arrays in ((write_gguf(), texts), (long, texts | {"tokenizer.ggml.token_type"})):
        whole, short = read_header(path), read_header(path, arrays=False)
        assert short.tensors == whole.tensors
        assert short.metadata == {key: value for key, value in whole.metadata.items() if key not in arrays}


def test_values_have_the_type_that_is_asked(write_gguf: GgufWriter) -> None:
    header = read_header(write_gguf(add_bos=True))
    assert (header.architecture, header.integer("block_count"), header.integer("nothing")) == ("llama", 2, None)
    assert (header.real("rope.freq_base"), header.real("block_count")) == (10000.0, 2.0)
    for read, key, words in (
        (header.real, "general.name", "says general.name = 'tiny', expected a number"),
        (header.text, "block_count", "says llama.block_count = '2', expected str"),
        (header.integer, "tokenizer.ggml.add_bos_token", "says tokenizer.ggml.add_bos_token = 'True', expected int"),
        (header.required, "expert_count", "does not set llama.expert_count"),
    ):
        with says(ModelSourceError, f"The GGUF file TMP/tiny.gguf {words}"):
            read(key)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(4, 8000), value=st.binary(min_size=1, max_size=12), arrays=st.booleans())
def test_any_damage_is_an_error_or_harmless(
    write_gguf: GgufWriter, tmp_path: Path, place: int, value: bytes, arrays: bool
) -> None:
    good = tmp_path / "tiny.gguf"
    content = bytearray((good if good.is_file() else write_gguf()).read_bytes())
    content[place : place + len(value)] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    try:
        header = read_header(path, arrays=arrays)
    except ModelSourceError:
        return
    assert all(tensor.offset + tensor.size <= len(content) for tensor in header.tensors.values())


@pytest.mark.parametrize(
    ("at", "number", "message"),
    [(4, 0, "a tensor of the shape [32, 0]"), (24, 64, "blk.0.attn_q.weight begins at byte 5984, expected 15200")],
)
def test_tensors_are_whole_and_follow_one_another(write_gguf: GgufWriter, at: int, number: int, message: str) -> None:
    """`at`: of a number behind a tensor's name: the first of its sizes, or where it begins."""
    path, name = write_gguf(), b"blk.0.attn_q.weight"
    content = bytearray(path.read_bytes())
    struct.pack_into("<Q", content, content.index(name) + len(name) + at, number)
    path.write_bytes(content)
    with says(ModelSourceError, f"The GGUF file TMP/tiny.gguf cannot be read ({message}"):
        read_header(path)


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

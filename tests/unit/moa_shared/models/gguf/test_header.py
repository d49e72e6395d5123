from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.header import read_header

from tests.support.messages import raises
from tests.support.properties import examples
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
    for path, arrays in (
        (write_gguf(), {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}),
        (
            write_gguf("long.gguf", tokens=[f"t{index}" for index in range(1025)]),
            {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type"},
        ),
    ):
        whole, short = read_header(path), read_header(path, arrays=False)
        assert short.tensors == whole.tensors
        assert short.metadata == {key: value for key, value in whole.metadata.items() if key not in arrays}


def test_where_arrays_of_texts_end_is_told_and_taken(write_gguf: GgufWriter) -> None:
    path, ends = write_gguf(), dict[int, int]()
    first = read_header(path, arrays=False, array_ends=ends)
    assert len(ends) == 2
    assert read_header(path, arrays=False, array_ends=ends) == first
    with pytest.raises(ModelSourceError, match="ends within its header"):  # the next value is taken from there
        read_header(path, arrays=False, array_ends=dict.fromkeys(ends, 1 << 60))


def test_values_have_the_type_that_is_asked(write_gguf: GgufWriter) -> None:
    header = read_header(write_gguf())
    assert header.architecture == "llama"
    assert header.integer("llama.block_count") == 2
    assert header.integer("llama.nothing") is None
    assert header.real("llama.rope.freq_base") == 10000.0
    assert header.real("llama.block_count") == 2.0
    with raises(
        ModelSourceError,
        snapshot(
            "The GGUF file TMP/tiny.gguf says general.name = 'tiny', expected a number. The file is truncated or corrupt: fetch it again."
        ),
    ):
        header.real("general.name")
    with raises(
        ModelSourceError,
        snapshot(
            "The GGUF file TMP/tiny.gguf says llama.block_count = '2', expected str. The file is truncated or corrupt: fetch it again."
        ),
    ):
        header.text("llama.block_count")
    with raises(
        ModelSourceError,
        snapshot("The GGUF file TMP/tiny.gguf does not set llama.expert_count. Use a GGUF file of a whole model."),
    ):
        header.required("llama.expert_count")


def test_what_is_not_gguf(tmp_path: Path) -> None:
    for content in (b"", b"GG", b"PK\x03\x04 a zip"):
        (tmp_path / "x.gguf").write_bytes(content)
        with raises(
            ModelSourceError,
            snapshot("TMP/x.gguf is not a GGUF file. The file is truncated or corrupt: fetch it again."),
        ):
            read_header(tmp_path / "x.gguf")


@pytest.mark.parametrize("offset", [4, 8, 16, 24, 32, 100])
def test_a_corrupt_header(write_gguf: GgufWriter, offset: int) -> None:
    path = write_gguf()
    content = bytearray(path.read_bytes())
    content[offset : offset + 8] = b"\xff" * 8
    path.write_bytes(content)
    with pytest.raises(ModelSourceError, match=r"truncated or corrupt"):
        read_header(path)


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


def test_a_format_that_is_not_known(write_gguf: GgufWriter) -> None:
    path = write_gguf()
    content = bytearray(path.read_bytes())
    place = content.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16
    content[place] = 200
    path.write_bytes(content)
    with raises(
        ModelSourceError,
        snapshot(
            "The GGUF file TMP/tiny.gguf cannot be read (a tensor in ggml's format 200, which is not known). The file is truncated or corrupt: fetch it again."
        ),
    ):
        read_header(path)

from __future__ import annotations

from pathlib import Path

import pytest
from moa_shared.errors import ModelSourceError
from moa_shared.models import ModelFiles
from moa_shared.models.gguf import entry
from moa_shared.models.gguf.entry import identify
from moa_shared.models.gguf.header import read_header
from moa_shared.models.gguf.parts import read_parts
from moa_shared.models.sources.files import gguf_fingerprint
from moa_shared.models.sources.packaged import DEFAULT_MODEL

from tests.support.tiny_gguf import GgufWriter


def of(path: Path) -> str:
    return identify(read_parts([path], arrays=False))


def change(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_it_does_not_depend_on_name_and_place(write_gguf: GgufWriter, tmp_path: Path) -> None:
    path = write_gguf()
    first = of(path)
    assert len(first) == 64
    assert of(path.rename(tmp_path / "other.gguf")) == first
    assert of(write_gguf("b.gguf", seed=1)) != first
    assert of(write_gguf("c.gguf", epsilon=2e-5)) != first


def test_each_tensor_is_sampled(write_gguf: GgufWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "_SAMPLE_BYTES", 64)
    path = write_gguf()
    first = of(path)
    large = 0
    for tensor in read_header(path).tensors.values():
        for place in (tensor.offset, tensor.offset + tensor.size - 1):
            change(path, place)
            assert of(path) != first
            change(path, place)
        large += tensor.size > 8 * 64
    assert large  # some were sampled, not read whole
    assert of(path) == first


def test_what_is_read_does_not_grow_with_the_model(write_gguf: GgufWriter) -> None:
    header = read_header(write_gguf())
    sizes = [size for _, size in entry._ranges(header)]
    assert sum(sizes) <= header.size + len(header.tensors) * 8 * 4096


def test_a_file_that_has_shrunk_since(write_gguf: GgufWriter) -> None:
    path = write_gguf()
    headers = read_parts([path])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelSourceError, match="it ends at byte"):
        identify(headers)


def test_the_default_model_keeps_the_fingerprint_that_its_drafters_are_bound_to(
    default_model_files: ModelFiles,
) -> None:
    assert default_model_files.fingerprint == gguf_fingerprint(DEFAULT_MODEL.gguf_sha256)

from pathlib import Path

import pytest
from moa_shared.errors import ModelSourceError
from moa_shared.models import ModelFiles, resolve
from moa_shared.models import gguf_entry as entry
from moa_shared.models.files import gguf_fingerprint
from moa_shared.models.gguf_entry import adopt_gguf, describe_entry, identify, read_parts
from moa_shared.models.source import DEFAULT_MODEL
from moa_shared.models.storage.gguf_header import read_header
from moa_shared.programs.progress import SilentProgress

from tests.support.messages import says
from tests.support.tiny_gguf import GgufWriter

pytestmark = pytest.mark.torch


def adopt(path: Path, cache: Path) -> Path:
    return adopt_gguf(path, cache, SilentProgress(), target_id="tiny").folder


def test_a_file_is_prepared_once(write_gguf: GgufWriter, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf()
    first = adopt(path, cache)
    assert not any(item.suffix in (".gguf", ".safetensors") for item in first.iterdir())
    monkeypatch.setattr(entry, "_make", lambda *_: pytest.fail("prepared again"))
    assert adopt(path, cache) == first
    moved = path.rename(path.with_name("moved.gguf"))
    assert adopt(moved, cache) == first


def test_an_entry_is_described_from_where_its_file_was_last(write_gguf: GgufWriter, cache: Path) -> None:
    path = write_gguf()
    files = resolve(str(path), cache)
    assert describe_entry(files.folder, cache) == files
    moved = path.rename(path.with_name("moved.gguf"))
    with says(ModelSourceError, "TMP/tiny.gguf, from which TMP/cache/models/gguf-DIGEST-v8 was made, is no"):
        describe_entry(files.folder, cache)
    resolve(str(moved), cache)
    assert describe_entry(files.folder, cache).weights == (moved,)
    write_gguf("moved.gguf", seed=1)
    with says(ModelSourceError, "TMP/moved.gguf holds another model than TMP/cache/models/gguf-DIGEST-v8 was"):
        describe_entry(files.folder, cache)


def test_the_default_model_reads_as_transformers_read_it(default_model_files: ModelFiles) -> None:
    files = default_model_files
    assert files.tokenizer_hash == "a4ec5e472b588149ce1d83cc1a16a0abc26f2620fdcdf228bf6d001a703fb56c"
    assert files.config["rms_norm_eps"] == 1e-5
    assert files.config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    ends = [2, 0]  # as llama.cpp: <|endoftext|> ends a text too
    assert [files.config[f"{key}_token_id"] for key in ("bos", "eos", "pad", "unk")] == [1, ends, 2, 0]


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


def test_the_default_model_keeps_the_fingerprint_that_its_drafters_are_bound_to(
    default_model_files: ModelFiles,
) -> None:
    assert default_model_files.fingerprint == gguf_fingerprint(DEFAULT_MODEL.gguf_sha256)

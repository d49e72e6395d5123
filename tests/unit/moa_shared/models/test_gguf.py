from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from moa_shared.errors import ChecksumError, DiskFullError, ModelSourceError, NotFoundError
from moa_shared.models import gguf, load_target_model, resolve
from moa_shared.models.gguf import convert_gguf, read_header
from moa_shared.progress import SilentProgress
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def read_by_transformers(path: Path) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    config.head_dim = 8  # of the file; transformers' reader gives Qwen3 its usual 128
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, config=config, dtype=torch.float32)


def convert(path: Path, cache: Path) -> Path:
    return convert_gguf(path, cache, SilentProgress(), target_id="tiny")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("untied", [False, True])
def test_the_weights_are_the_readers_to_the_last_bit(write_gguf, cache: Path, family: str, untied: bool) -> None:
    path = write_gguf(architecture=family, untied=untied)
    folder = convert(path, cache)
    expected = read_by_transformers(path).state_dict()
    stored = load_file(folder / "model.safetensors")
    assert set(expected) - set(stored) == (set() if untied else {"lm_head.weight"})  # tied: stored once
    assert any("q_proj.bias" in name for name in stored) == (family == "qwen2")
    assert any("q_norm" in name for name in stored) == (family == "qwen3")
    for name, tensor in stored.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_each_family_loads_from_its_folder(write_gguf, cache: Path, family: str) -> None:
    path = write_gguf(architecture=family)
    files = resolve(str(path), cache)
    assert files.config["model_type"] == family
    tokens = torch.tensor([[1, 70, 71, 9]])
    expected = read_by_transformers(path)
    with torch.no_grad():
        logits = load_target_model(files)(tokens).logits
        torch.testing.assert_close(logits, expected(tokens).logits, atol=1e-6, rtol=0.0)
    assert logits.std() > 0.1


def test_the_folder_is_a_model_of_its_own(write_gguf, cache: Path) -> None:
    folder = convert(write_gguf(), cache)
    config = json.loads((folder / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(folder.parent / "again")
    assert model.generate(torch.tensor([[1, 70, 71]]), max_new_tokens=3).shape == (1, 6)


def test_a_file_is_converted_once(write_gguf, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf()
    first = convert(path, cache)
    monkeypatch.setattr(gguf, "_convert", lambda *_: pytest.fail("converted again"))
    assert convert(path, cache) == first
    moved = path.rename(path.with_name("moved.gguf"))
    assert convert(moved, cache) == first


def test_another_file_is_another_entry(write_gguf, cache: Path) -> None:
    assert convert(write_gguf("a.gguf"), cache) != convert(write_gguf("b.gguf", seed=1), cache)


def test_text_is_split_as_the_header_says(write_gguf, cache: Path) -> None:
    smollm = AutoTokenizer.from_pretrained(convert(write_gguf("a.gguf", pre="smollm"), cache))
    plain = AutoTokenizer.from_pretrained(convert(write_gguf("b.gguf", pre="gpt-2"), cache))
    assert smollm.convert_ids_to_tokens(smollm("\n\n1").input_ids) == ["ĊĊ", "1"]
    assert plain.convert_ids_to_tokens(plain("\n\n1").input_ids) == ["Ċ", "Ċ", "1"]
    for tokenizer in (smollm, plain):
        assert tokenizer("<|im_start|>hi<|im_end|>").input_ids == [1, tokenizer.convert_tokens_to_ids("hi"), 2]
        assert tokenizer.eos_token == "<|im_end|>"
        text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
        assert text == "user: hi\n"


def test_an_unknown_dialect_is_said(write_gguf, cache: Path) -> None:
    notes = Notes()
    convert_gguf(write_gguf(pre="volapuk"), cache, notes, target_id="tiny")
    assert ["volapuk" in line for line in notes.lines] == [True]


def test_a_missing_file(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(NotFoundError, match=r"There is no file .*none\.gguf"):
        convert(tmp_path / "none.gguf", cache)


def test_what_is_not_gguf(tmp_path: Path, cache: Path) -> None:
    for content in (b"", b"GG", b"PK\x03\x04 a zip"):
        (tmp_path / "x.gguf").write_bytes(content)
        with pytest.raises(ModelSourceError, match=r"is not a GGUF file.*fetch it again"):
            convert(tmp_path / "x.gguf", cache)


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.05, 0.2, 0.5, 0.9, 0.9999])
def test_a_truncated_file(write_gguf, cache: Path, share: float) -> None:
    path = write_gguf()
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelSourceError, match="truncated or corrupt"):
        convert(path, cache)
    assert not [entry for entry in cache.glob("models/*") if entry.is_dir()]


@pytest.mark.parametrize("offset", [4, 8, 16, 24, 32, 100])
def test_a_corrupt_header(write_gguf, cache: Path, offset: int) -> None:
    path = write_gguf()
    content = bytearray(path.read_bytes())
    content[offset : offset + 8] = b"\xff" * 8
    path.write_bytes(content)
    with pytest.raises(ModelSourceError, match=r"truncated or corrupt|which moa does not serve"):
        convert(path, cache)


def test_weights_that_are_no_numbers(write_gguf, cache: Path) -> None:
    for poison in (float("nan"), float("inf")):
        with pytest.raises(ModelSourceError, match=r"layers\.1\.mlp\.up_proj\.weight .* holds no finite numbers"):
            convert(write_gguf(poison=poison), cache)
    assert not [entry for entry in cache.glob("models/*") if entry.is_dir()]


def test_another_family(write_gguf) -> None:
    with pytest.raises(ModelSourceError, match=r"family 'gpt2', which moa does not serve.*llama, qwen2, qwen3"):
        read_header(write_gguf(architecture="gpt2"))


@pytest.mark.parametrize("fault", [{"rope_scaling": "yarn"}, {"rope_factors": True}, {"rotated": 4}])
def test_rotary_scaling_that_the_reader_drops(write_gguf, fault: dict[str, object]) -> None:
    with pytest.raises(ModelSourceError, match=r"scales its rotary positions.*safetensors"):
        read_header(write_gguf(**fault))
    assert read_header(write_gguf(rope_scaling="none")).architecture == "llama"


def test_the_header_counts_the_parameters(write_gguf, cache: Path) -> None:
    path = write_gguf()
    stored = load_file(convert(path, cache) / "model.safetensors")
    assert read_header(path).parameters == sum(tensor.numel() for tensor in stored.values())


def test_a_disk_that_fills_leaves_no_half_entry(write_gguf, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save_file(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    path = write_gguf()
    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", save_file)
        with pytest.raises(DiskFullError, match="ran full while writing the converted model of tiny"):
            convert(path, cache)
    assert not [entry for entry in cache.glob("models/*") if entry.is_dir()]
    assert convert(path, cache).is_dir()


def test_a_damaged_entry_is_not_used(write_gguf, cache: Path) -> None:
    path = write_gguf()
    folder = convert(path, cache)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ChecksumError, match=r"model\.safetensors has .* bytes, expected"):
        convert(path, cache)

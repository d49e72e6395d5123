"""Entries of the cache made of GGUF files; each family out of one: the weights and logits that it was written from."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from moa_kernels import QuantisedMatrix
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.errors import ModelSourceError
from moa_shared.models import gguf_entry as entry
from moa_shared.models import load_target_model, resolve
from moa_shared.models.files import ModelFiles, gguf_fingerprint
from moa_shared.models.gguf_configuration import make_config, special_ids
from moa_shared.models.gguf_entry import adopt_gguf, describe_entry, identify, read_parts
from moa_shared.models.source import DEFAULT_MODEL
from moa_shared.models.storage.gguf_header import GgufHeader, read_header
from moa_shared.models.tiles import map_tiles
from moa_shared.models.weights import WeightReader, unpair_rows
from moa_shared.programs.progress import Progress

from tests.support.families import GGUF_FAMILIES, HYBRID_MIXTURES, MIXTURE, tiny_in_gguf, tiny_mixture, weights_of
from tests.support.family_gguf import write_family_gguf
from tests.support.messages import says
from tests.support.tiny_gguf import GgufWriter
from tests.unit.moa_shared.models.network.test_network import TEXT, needs_kernels, of_transformers
from tests.unit.moa_shared.models.test_weights import logits_of

pytestmark = pytest.mark.torch


def adopt(path: Path, cache: Path) -> Path:
    return adopt_gguf(path, cache, Progress(), target_id="tiny").folder


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


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"architecture": "gpt2"}, "TMP/tiny.gguf is of the model family 'gpt2', which moa does not read from"),
        ({"rotated": 4}, "TMP/tiny.gguf rotates a part of each head, which moa does not read from GGUF"),
        ({"rope_scaling": "spiral"}, "TMP/tiny.gguf scales its positions by 'spiral', which moa does not read from"),
        ({"extra": "rope_factors_long.weight"}, "TMP/tiny.gguf lacks rope_factors_short.weight, which moa does not"),
        ({"lacking": "blk.1.attn_output.weight"}, "TMP/tiny.gguf lacks blk.1.attn_output.weight"),
        ({"lacking": "token_embd.weight"}, "TMP/tiny.gguf holds no embeddings"),
        ({"extra": "blk.0.ffn_gate_inp.weight"}, "TMP/tiny.gguf holds blk.0.ffn_gate_inp.weight, which no llama"),
        ({"extra": "blk.0.ffn_down.0.weight"}, "TMP/tiny.gguf holds blk.0.ffn_down.0.weight, which no llama"),
        ({"extra": "rope_freqs.weight", "rotated": 6}, "TMP/tiny.gguf has rope_freqs.weight in f32 [4], expected f32"),
    ],
)
def test_files_that_are_refused(write_gguf: GgufWriter, file: dict[str, Any], message: str) -> None:
    with says(ModelSourceError, message):
        make_config(read_header(write_gguf(**file)))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_factors_that_are_no_numbers_above_0(write_gguf: GgufWriter, value: float) -> None:
    path = write_gguf(rope_factors=True)
    header = read_header(path)
    data = bytearray(path.read_bytes())
    struct.pack_into("<f", data, header.tensors["rope_freqs.weight"].offset + 4, value)
    path.write_bytes(data)
    with says(ModelSourceError, "TMP/tiny.gguf has factors in rope_freqs.weight that are no numbers above 0"):
        make_config(header)


@pytest.mark.parametrize("key", ["attention.head_count_kv", "feed_forward_length"])
def test_a_size_of_each_layer(write_gguf: GgufWriter, key: str) -> None:
    header = read_header(write_gguf(), arrays=False)
    size = header.said(key)
    alike = replace(header, metadata={**header.metadata, f"llama.{key}": [size] * 4})
    assert make_config(alike) == make_config(header)
    differ = replace(header, metadata={**header.metadata, f"llama.{key}": [size, 1, size, size]})
    with pytest.raises(ModelSourceError, match="its layers differ, which moa does not compute of the family 'llama'"):
        make_config(differ)


WORDS = ["<unk>", "<s>", "</s>", "hi"]


def header(*tokens: str, **ids: int) -> GgufHeader:
    keys = {f"tokenizer.ggml.{name}_token_id": value for name, value in ids.items()}
    return GgufHeader(Path("tiny.gguf"), {"tokenizer.ggml.tokens": [*WORDS, *tokens], **keys}, {})


@pytest.mark.parametrize(
    ("tokens", "ids", "ends"),
    [
        ((), {"eos": 2}, 2),
        ((), {}, 2),  # by its spelling
        (("<eos>", "<end_of_turn>"), {"eos": 4}, [4, 2, 5]),  # Gemma 2 and 3
        (("<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"), {"eos": 5}, [5, 2, 4, 6]),  # Llama 3
        (("<|endoftext|>", "<|end|>", "<|user|>"), {"eos": 4}, [4, 2, 5]),  # Phi-3 and 4
        (("<|endoftext|>", "<|im_end|>"), {"eos": 5}, [5, 2, 4]),  # Qwen
        (("stop", "pause"), {"eos": 3, "eot": 4, "eom": 5}, [3, 4, 5, 2]),
        (("<|end|>", "<|return|>", "<|call|>"), {"eos": 5}, [5, 2, 6]),  # gpt-oss
        (("<|tool_response>", "<turn|>"), {"eos": 5}, [5, 2, 4]),  # Gemma 4
    ],
)
def test_ends_are_those_of_llama_cpp(tokens: tuple[str, ...], ids: dict[str, int], ends: int | list[int]) -> None:
    assert special_ids(header(*tokens, **ids))["eos_token_id"] == ends


@pytest.mark.parametrize("none", [-1, 2**32 - 1, 2**64 - 1])
def test_minus_one_is_no_token(none: int) -> None:
    assert special_ids(header(bos=1, eos=none, padding=none, eot=none)) == {"bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize("value", [-2, 4])
def test_an_id_that_is_no_token(value: int) -> None:
    with pytest.raises(ModelSourceError, match=rf"says tokenizer.ggml.eot_token_id = {value}, but has 4 tokens"):
        special_ids(header(eot=value))


def test_rows_are_unpaired_as_llama_cpp_pairs_them() -> None:
    heads, head_dim = 3, 8
    rows = np.arange(heads * head_dim * 2).reshape(-1, 2)
    paired = rows.reshape(heads, 2, head_dim // 2, 2).swapaxes(1, 2).reshape(rows.shape)  # of its converter
    assert not np.array_equal(paired, rows)
    assert np.array_equal(unpair_rows(paired, heads), rows)
    assert np.array_equal(unpair_rows(paired[:, 0], heads), rows[:, 0])


MIXTURES = [
    MIXTURE + each
    for each in ("qwen 3", "mixtral", "olmoe", "olmoe with clips", "gpt-oss", "gemma 4", *HYBRID_MIXTURES)
]
GATES, GEMMA = "blk.1.ffn_gate_exps.weight", "gemma 4 with embeddings by layer"
ALIKE = [each for each in GGUF_FAMILIES if not each.startswith(("llama 3", "mistral", "phi", "gemma 4"))]
HYBRID, QWEN, OSS = "qwen 3.5", MIXTURE + "qwen 3", MIXTURE + "gpt-oss"


def files_of(path: Path) -> ModelFiles:
    return ModelFiles("tiny", path.parent, make_config(read_header(path)), (path,), "tiny" * 8, "")


@needs_kernels
@pytest.mark.parametrize("family", [*GGUF_FAMILIES, *MIXTURES])
def test_weights_and_logits_are_those_of_the_model(family: str, tmp_path: Path) -> None:
    model = tiny_in_gguf(family)
    files = files_of(write_family_gguf(model, tmp_path / "tiny.gguf"))
    reader, of_state = WeightReader(files), {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    expected = weights_of(model).tensors if family.startswith(MIXTURE) or "3.5" in family else of_state
    expected = {name: tensor for name, tensor in expected.items() if "linear_attn" not in name}  # in another order
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert {name for name in reader.names() if "linear_attn" not in name} - tied == expected.keys() - tied
    for name, tensor in expected.items():
        np.testing.assert_allclose(reader.array(name), tensor, rtol=0, atol=2e-7, err_msg=name)
    np.testing.assert_allclose(logits_of(files, plain=True), of_transformers(model), rtol=0, atol=3e-4)


@needs_kernels
def test_a_hybrid_in_files_of_other_converters(tmp_path: Path) -> None:
    """Qwen3-Next's fused projections as they are (2025), and blocks of multi-token prediction behind the layers."""
    model = tiny_in_gguf(MIXTURE + "qwen 3 next")
    fused, changes = "linear_attn.in_proj_qkvz.weight", dict[str, Any]()
    for layer in (0, 1, 3):
        changes |= {f"blk.{layer}.attn_{part}.weight": None for part in ("qkv", "gate")}
        changes[f"blk.{layer}.ssm_in.weight"] = model.state_dict()[f"model.layers.{layer}.{fused}"].numpy()
    drafting: dict[str, Any] = {
        "blk.5.nextn.eh_proj.weight": np.zeros((64, 128)),
        "blk.5.attn_q.weight": np.zeros((512, 64)),
    }
    drafting |= {"block_count": 6, "nextn_predict_layers": 1}
    whole, other = (
        files_of(write_family_gguf(model, tmp_path / f"{len(own)}.gguf", **own)) for own in ({}, changes | drafting)
    )
    assert other.config == whole.config
    assert sorted(WeightReader(other).names()) == sorted(WeightReader(whole).names())
    assert logits_of(other).tobytes() == logits_of(whole).tobytes()
    tiles = map_tiles(other, tmp_path, Progress())
    assert logits_of(other, WeightReader(other).with_tiles(tiles)).tobytes() == logits_of(whole).tobytes()


@pytest.mark.parametrize(
    "family",
    ["llama 3", "llama, linear", "qwen 2", "qwen 3", "gemma 2", "gemma 3", "phi 3", "olmo 3", "smollm 3", "granite"],
)
def test_the_torch_levels_read_them_too(tmp_path: Path, cache: Path, family: str) -> None:
    model = tiny_in_gguf(family)
    files = resolve(str(write_family_gguf(model, tmp_path / "tiny.gguf")), cache)
    target = TorchTarget(load_target_model(files))
    logits = target.forward(target.new_cache(), TEXT).logits
    np.testing.assert_allclose(logits, of_transformers(model), rtol=0, atol=3e-4)


@needs_kernels
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "F16"])
def test_experts_in_all_formats_are_read_and_packed(kind: str, tmp_path: Path) -> None:
    path = write_family_gguf(tiny_mixture("gpt-oss"), tmp_path / "tiny.gguf", gguf.GGMLQuantizationType[kind])
    files = files_of(path)
    whole = next(each for each in gguf.GGUFReader(path).tensors if each.name == GATES)
    values = gguf.quants.dequantize(whole.data, gguf.GGMLQuantizationType[kind])
    reader = WeightReader(files)
    for number, own in enumerate(values):
        name = f"model.layers.1.mlp.experts.{number}.gate_proj.weight"
        blocks = reader.blocks(name)
        found = blocks.dequantised() if isinstance(blocks, QuantisedMatrix) else reader.array(name)
        np.testing.assert_array_equal(found, own)
        assert reader.stored_bytes(name) == whole.data.nbytes // len(values)
    tiles = map_tiles(files, tmp_path, Progress())
    assert tiles["model.layers.1.mlp.experts.5.down_proj.weight"].kind == ("q8_0" if kind == "F16" else kind.lower())
    assert logits_of(files, WeightReader(files).with_tiles(tiles)).tobytes() == logits_of(files).tobytes()


@pytest.mark.parametrize("family", [*ALIKE, *MIXTURES])
def test_the_configuration_is_transformers_own(family: str, tmp_path: Path) -> None:
    model = tiny_in_gguf(family)
    config, theirs = make_config(read_header(write_family_gguf(model, tmp_path / "tiny.gguf"))), model.config.to_dict()
    generic = {"dtype", "head_dim", "eos_token_id", "bos_token_id", "pad_token_id", "architectures", "mlp_bias"}
    for key in config.keys() - generic:
        if key == "rope_parameters" and "rope_theta" in theirs[key]:
            assert config[key] == pytest.approx(theirs[key])
        elif key in theirs:
            assert config[key] == theirs[key], key
    assert config["model_type"] == model.config.model_type


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (HYBRID, {"ssm.time_step_rank": 0}, "The GGUF file TMP/tiny.gguf shares 384 values among 0 heads"),
        (HYBRID, {"ssm.group_count": 0}, "tiny.gguf has linear_num_key_heads = 0, expected a whole number from 1"),
        (HYBRID, {"ssm.group_count": 4}, "tiny.gguf has 6 value heads of 64 numbers over 4 keys of 32, which"),
        (HYBRID, {"ssm.conv_kernel": 9}, "tiny.gguf has linear_conv_kernel_dim = 9, expected a whole number"),
        (HYBRID, {"ssm.state_size": 1 << 24}, "has 6 value heads of 64 numbers over 2 keys of 16777216, which"),
        (HYBRID, {"ssm.state_size": None}, "The GGUF file TMP/tiny.gguf does not set qwen35.ssm.state_size"),
        (HYBRID, {"full_attention_interval": 0}, "does not say which of 4 layers have attention"),
        (HYBRID, {"nextn_predict_layers": 4}, "tiny.gguf has num_hidden_layers = 0, expected a whole number"),
        (HYBRID, {"blk.0.ssm_a": None}, "The weights of tiny hold no tensor model.layers.0.linear_attn.A_log"),
        (HYBRID, {"blk.0.ssm_dt.bias": None}, "tiny hold no tensor model.layers.0.linear_attn.dt_bias"),
        (HYBRID, {"blk.3.attn_q.weight": np.zeros((500, 64))}, "q_proj.weight has the shape [500, 64], expected 512"),
        (QWEN, {"expert_count": 0}, "The config.json of tiny.gguf has num_experts = 0, expected a whole number"),
        (QWEN, {"expert_used_count": 11}, "The config.json of tiny.gguf has num_experts_per_tok = 11, expected"),
        (QWEN, {"expert_feed_forward_length": 64}, "do not compute this target: model.layers.0.mlp: Its experts"),
        (OSS, {GATES: None}, "The weights of tiny hold no tensor model.layers.1.mlp.experts.0.gate_proj.weight"),
        (OSS, {"blk.1.attn_sinks.weight": None}, "do not compute this target: model.layers.1 lacks self_attn.sinks"),
        ("qwen 3", {"blk.1.attn_q_norm.weight": None}, "target: model.layers.1 lacks self_attn.q_norm.weight"),
        ("qwen 2", {"blk.0.attn_v.bias": None}, "target: model.layers.0 lacks self_attn.v_proj.bias"),
        (OSS, {"blk.1.ffn_up_exps.bias": None}, "do not compute this target: model.layers.1"),
        (
            OSS,
            {"blk.1.ffn_up_exps.bias": np.zeros((4097, 96))},
            "up_proj.bias is of 4097 experts, at most 4096 are read",
        ),
        (OSS, {"blk.1.ffn_gate_inp.weight": np.zeros((5, 64))}, "do not compute this target: model.layers.1.mlp"),
        ("llama", {"blk.1.attn_output.weight": np.zeros(64)}, "model.layers.1.self_attn.o_proj: Its parts have the"),
        ("qwen 2", {"blk.1.attn_k.bias": np.zeros((2, 32))}, "layers.1.self_attn.k_proj.bias has the shape (2, 32)"),
        ("llama", {"output_norm.weight": np.zeros(32)}, "compute this target: The final norm has the shape (32,)"),
        ("llama", {"output.weight": np.zeros((64, 64))}, "has the shape (64,), embeddings (97, 64), head (64, 64)"),
        (GEMMA, {"attention.sliding_window_pattern": [True] * 6}, "TMP/tiny.gguf has a last layer with a window,"),
        (GEMMA, {"attention.sliding_window_pattern": [True, False]}, "does not say which of 6 layers see a window"),
        (GEMMA, {"attention.shared_kv_layers": 6}, "shares the keys and values of 6 of 6 layers, which moa"),
        (GEMMA, {"feed_forward_length": [96, 96, 96, 192, 96, 192]}, "has MLPs of the widths [96, 96, 96,"),
        (GEMMA, {"feed_forward_length": [96, 96]}, "says gemma4.feed_forward_length = '[96, 96]', expected 6"),
        (GEMMA, {"attention.head_count_kv": [2, 3, 2, 2, 2, 2]}, "has 4 query heads over 3"),
        (GEMMA, {"rope.dimension_count_swa": 16}, "rotates 16 of a head's 32 numbers, which moa does not"),
        (GEMMA, {"rope.freq_base_swa": None}, "The GGUF file TMP/tiny.gguf does not set gemma4.rope.freq_base_swa"),
    ],
)
def test_files_that_make_no_sense_are_refused(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_family_gguf(tiny_in_gguf(family), tmp_path / "tiny.gguf", **changes)
    with says(ModelSourceError, message):
        logits_of(files_of(path))

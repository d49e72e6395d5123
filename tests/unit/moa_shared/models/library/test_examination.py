"""What a list says of models, whole and broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import gguf
import pytest
from inline_snapshot import snapshot
from moa_shared.models import resolve
from moa_shared.models.gguf import header
from moa_shared.models.gguf.header import GgufHeader, read_header
from moa_shared.models.gguf.parts import file_type
from moa_shared.models.library import Examined, LocalModel, examine

from tests.support.messages import steady
from tests.support.tiny_gguf import GgufWriter

Cut = Callable[[bytes], bytes]


def look(path: Path, cache: Path) -> Examined:
    return examine(LocalModel("name", "folder", path), cache)


def refusal(path: Path, cache: Path) -> str:
    found = look(path, cache)
    return f"{found.stored or '-'} {found.family or '-'}: {steady(found.refusal.message) if found.refusal else 'yes'}"


@pytest.mark.torch
def test_a_gguf_file_is_what_loading_says_it_is(write_gguf: GgufWriter, cache: Path) -> None:
    path = write_gguf(kind="Q4_1", architecture="qwen3")
    found = look(path, cache)
    assert (found.stored, found.family, found.nbytes) == ("Q4_1", "qwen3", path.stat().st_size)
    assert found.files == (path,)
    loaded = resolve(str(path), cache).config  # which has read the vocabulary, and so knows more ends of a text
    assert {**found.config, "eos_token_id": loaded["eos_token_id"]} == loaded


def test_what_is_not_served_says_why(write_gguf: GgufWriter, cache: Path, tmp_path: Path) -> None:
    whole = write_gguf("whole.gguf").read_bytes()
    (tmp_path / "short.gguf").write_bytes(whole[:-4000])
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "part-00001-of-00002.gguf").write_bytes(whole)
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "none")
    assert [
        refusal(write_gguf(architecture="bert"), cache),
        refusal(write_gguf(tokenizer="t5"), cache),
        refusal(write_gguf(extra="blk.0.ssm_a"), cache),
        *(refusal(tmp_path / f"{name}.gguf", cache) for name in ("short", "empty", "part-00001-of-00002", "dangling")),
    ] == snapshot(
        [
            "Q8_0 bert: TMP/tiny.gguf is of the model family 'bert', which moa does not read from GGUF.",
            "Q8_0 llama: The GGUF file TMP/tiny.gguf has a tokenizer of the kind 't5', which moa does not read.",
            "Q8_0 llama: TMP/tiny.gguf holds blk.0.ssm_a, which no llama model that moa serves has.",
            "- -: The GGUF file TMP/short.gguf cannot be read (blk.1.ffn_up.weight ends at byte 32864 of 31040).",
            "- -: TMP/empty.gguf is not a GGUF file.",
            "- -: TMP/part-00001-of-00002.gguf is one of 2 parts of a model, of which part-00002-of-00002.gguf is missing.",
            "- -: TMP/dangling.gguf cannot be read (No such file or directory).",
        ]
    )


@pytest.mark.torch
def test_folders(model_folder: Path, cache: Path) -> None:
    found = look(model_folder, cache)
    assert (found.stored, found.family, found.refusal) == ("F32", "llama", None)
    config = json.loads((model_folder / "config.json").read_text())

    def with_config(**changes: object) -> str:
        (model_folder / "config.json").write_text(json.dumps(config | changes))
        return refusal(model_folder, cache)

    said = [with_config(model_type="bert"), with_config(num_hidden_layers=9)]
    said += [with_config(rms_norm_eps=None), with_config(rms_norm_eps=[]), with_config(model_type=[])]
    said += [with_config(model_type="mistral", rms_norm_eps="small")]
    (model_folder / "config.json").write_text("{")
    said.append(refusal(model_folder, cache))
    with_config()
    (model_folder / "tokenizer.json").unlink()
    said.append(refusal(model_folder, cache))
    (model_folder / "model.safetensors").write_bytes(b"x")
    said.append(refusal(model_folder, cache))
    assert said == snapshot(
        [
            "F32 bert: name is of the model family 'bert', which moa does not serve.",
            "F32 llama: The weights of name hold no tensor model.layers.8.self_attn.o_proj.weight.",
            "F32 llama: name cannot be computed: The configuration does not set rms_norm_eps.",
            "F32 llama: The config.json of name has rms_norm_eps = [], expected a number of at least 0.",
            "F32 -: name is of the model family [], which moa does not serve.",
            "F32 mistral: The config.json of name has rms_norm_eps = 'small', expected a number of at least 0.",
            "- -: TMP/tiny-llama/config.json is not valid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1).",
            "F32 llama: The folder TMP/tiny-llama holds no tokenizer.json.",
            "- llama: The weights TMP/tiny-llama/model.safetensors cannot be read (a header of 120 bytes in a file of 1).",
        ]
    )


def test_mutated_headers_never_end_a_list(write_gguf: GgufWriter, cache: Path) -> None:
    path, random = write_gguf(), Random(0)
    whole, header = path.read_bytes(), read_header(path)
    for _ in range(300):
        mutated = bytearray(whole)
        for _ in range(random.choice((1, 2, 8))):
            mutated[random.randrange(header.size)] = random.randrange(256)
        path.write_bytes(mutated)
        assert look(path, cache).nbytes == len(whole)


@pytest.mark.torch
def test_the_second_look_jumps_over_the_vocabulary(
    write_gguf: GgufWriter, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf()
    first = look(path, cache)

    def walk(*_: object) -> int:
        raise ValueError("walked")

    with monkeypatch.context() as patched:
        patched.setattr(header._Parser, "_end_of_texts", walk)
        assert look(path, cache) == first
        other = write_gguf("other.gguf", seed=1).replace(path)  # another file of that name is walked through
        assert "walked" in refusal(other, cache)
    assert look(path, cache).refusal is None


def test_how_files_are_stored(write_gguf: GgufWriter) -> None:
    plain = read_header(write_gguf(kind="Q8_0"))
    assert file_type(plain) == "Q8_0"
    said = {each.value: each.name.removeprefix("MOSTLY_").removeprefix("ALL_") for each in gguf.LlamaFileType}
    for number in (0, 1, 15, 18, 30, 32, 38):
        assert file_type(GgufHeader(plain.path, {"general.file_type": number}, {})) == said[number]
    assert file_type(GgufHeader(plain.path, {"general.file_type": 1024}, plain.tensors)) == "Q8_0"
    assert file_type(GgufHeader(plain.path, {}, {})) == ""

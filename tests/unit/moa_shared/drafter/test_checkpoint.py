"""Checkpoints, whole or refused with a sentence that says why; what comes with moa; tables of n-grams and confidence."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moa_shared.drafter.checkpoint import (
    CONFIDENCE_FILE,
    CONFIG_KEY,
    DRAFTER_FILE,
    NGRAMS_FILE,
    SHIPPED_DRAFTERS,
    confidence_for,
    find_ngrams,
    fresh_tensors,
    installed_drafters,
    load_checkpoint,
    load_ngrams,
    ngrams_for,
    save_checkpoint,
    shipped_drafter,
    write_confidence,
    write_ngrams,
)
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.weights import ArrayWeights
from moa_shared.drafting.estimates import (
    BINS,
    Confidence,
    ReliabilityCounts,
    TokenOrigin,
    WrittenToken,
)
from moa_shared.errors import CheckpointError, ConfigError, DiskFullError, NotFoundError
from moa_shared.models.storage.tensors import write_tensors
from safetensors.numpy import save_file

from tests.support.decoders import ODD as CONFIG
from tests.support.decoders import decoder_of, target_arrays


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "drafter.safetensors"
    save_checkpoint(path, CONFIG, fresh_tensors(CONFIG, seed=1))
    return path


def test_a_checkpoint_comes_back_as_it_was(saved: Path) -> None:
    loaded = load_checkpoint(saved)
    assert loaded.config == CONFIG
    assert len(loaded.tensors) == 29
    assert all(np.array_equal(value, fresh_tensors(CONFIG, seed=1)[name]) for name, value in loaded.tensors.items())
    assert loaded.fingerprint == load_checkpoint(saved).fingerprint
    assert [path.name for path in saved.parent.iterdir()] == ["drafter.safetensors"]


def test_the_authors_files_have_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "authors.safetensors"
    save_file(fresh_tensors(CONFIG, seed=2), path)
    with pytest.raises(CheckpointError, match="safetensors does not contain its configuration"):
        load_checkpoint(path)


def test_a_reduced_vocabulary_is_part_of_it(tmp_path: Path) -> None:
    config, ids = dataclasses.replace(CONFIG, draft_vocab=3), np.array([4, 9, 29], np.int32)
    save_checkpoint(tmp_path / "x.safetensors", config, fresh_tensors(config, 0, ids))
    checkpoint = load_checkpoint(tmp_path / "x.safetensors")
    target = ArrayWeights({**target_arrays(CONFIG), "lm_head.weight": np.eye(30, 16, dtype=np.float32)})
    decoder = decoder_of(checkpoint, target, "float32")
    assert np.array_equal(decoder.logits(np.eye(16, dtype=np.float32)[4:5]), [[1.0, 0.0, 0.0]])
    assert decoder.draft_ids is not None
    assert np.array_equal(decoder.draft_ids, ids)


@pytest.mark.parametrize("size", [0, 5, 100, -10, None])
def test_a_damaged_file_is_named(saved: Path, size: int | None) -> None:
    saved.write_bytes(saved.read_bytes()[:size] if size is not None else b"\xff" * 4000)
    with pytest.raises(CheckpointError, match=r"is corrupt or truncated.*Fetch or train"):
        load_checkpoint(saved)
    with pytest.raises(NotFoundError, match=r"There is no drafter checkpoint .*none"):
        load_checkpoint(saved.with_name("none"))


@pytest.mark.parametrize(
    ("name", "shape", "fault"),
    [
        ("Ekv2E.bias", None, "lacks the tensor Ekv2E.bias"),
        ("Ekv2E.bias", 17, r"holds Ekv2E\.bias of the shape \(17,\), expected \(16,\)"),
        ("surprise", 1, "holds an unknown tensor surprise"),
    ],
)
def test_wrong_tensors_are_named(tmp_path: Path, name: str, shape: int | None, fault: str) -> None:
    tensors = fresh_tensors(CONFIG, seed=0)
    tensors.pop(name, None)
    tensors |= {} if shape is None else {name: np.zeros(shape, np.float32)}
    save_file(tensors, tmp_path / "x.safetensors", {CONFIG_KEY: CONFIG.to_json()})
    with pytest.raises(CheckpointError, match=f"x.safetensors {fault}"):
        load_checkpoint(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"lsa_heads": 0}, "lsa_heads is 0, expected a whole number from 1 to "),
        ({"lsa_heads": 3}, "lsa_heads must divide the KV width"),
        ({"hidden_size": "16"}, "hidden_size is '16', expected a whole number from 1 to "),
        ({"reused_layers": -1}, "reused_layers is -1, expected a whole number from 0 to 1024"),
        ({"reused_layers": 4}, "reused_layers must be less than the target's layers"),
        ({"draft_vocab": 31}, "draft_vocab must be 0 to vocab_size"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0, expected a positive number"),
        ({"rope_parameters": {}}, "rope_parameters is {}, expected an object with a positive rope_theta"),
        ({"output_norm": 1}, "output_norm is 1, expected true or false"),
        ({"output_norm": True, "reused_layers": 2}, "output_norm precedes the head only where no layers are reused"),
        ({"target_fingerprint": None}, "target_fingerprint is None, expected text"),
        ({"kind": "eagle3", "state_entries": [0, 5]}, "state_entries must be 0 to target_layers"),
    ],
)
def test_values_of_a_configuration_from_a_file_are_checked(values: dict[str, object], wrong: str) -> None:
    text = json.dumps({**json.loads(CONFIG.to_json()), **values})
    with pytest.raises(CheckpointError) as caught:
        DrafterConfig.from_json(text)
    assert caught.value.message.startswith(f"The drafter's configuration is wrong: {wrong}")


DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, '{"vocab_size": 3}', "not json"])
def test_what_is_no_configuration_is_refused(saved: Path, text: str) -> None:
    with pytest.raises(CheckpointError, match="The checkpoint's drafter configuration cannot be read"):
        DrafterConfig.from_json(text)
    saved.write_bytes(len(text).to_bytes(8, "little") + text.encode())
    with pytest.raises(CheckpointError, match="safetensors is corrupt or truncated"):
        load_checkpoint(saved)


def test_values_that_are_no_numbers_and_ids_of_no_token_are_refused(tmp_path: Path) -> None:
    tensors, reduced = fresh_tensors(CONFIG, seed=0), dataclasses.replace(CONFIG, draft_vocab=2)
    tensors["Ekv2E.weight"][3, 4] = float("nan")
    with pytest.raises(CheckpointError, match=r"holds Ekv2E\.weight with values that are not numbers"):
        save_checkpoint(tmp_path / "x.safetensors", CONFIG, tensors)
    with pytest.raises(CheckpointError, match="safetensors has draft ids outside the vocabulary"):
        save_checkpoint(tmp_path / "x.safetensors", reduced, fresh_tensors(reduced, 0, np.array([0, 30], np.int32)))


def test_no_room_leaves_nothing_half_written(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("moa_shared.drafter.checkpoint.write_tensors", full)
    with pytest.raises(DiskFullError, match="safetensors cannot be written"):
        save_checkpoint(saved, CONFIG, fresh_tensors(CONFIG, seed=3))
    with pytest.raises(CheckpointError, match="safetensors cannot be written"):
        save_checkpoint(saved / "x.safetensors", CONFIG, fresh_tensors(CONFIG, seed=0))
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["drafter.safetensors"]


def test_a_configuration_without_newer_options_is_stored_as_it_was_without_them() -> None:
    assert hashlib.sha256(CONFIG.to_json().encode()).hexdigest()[:16] == "7d5191b9660fade6"
    assert list(json.loads(CONFIG.to_json())) == sorted(json.loads(CONFIG.to_json()))


FINGERPRINT = "619e02713c727cf93f2a9a6a06ebd0c4e89195d9d0815189720481caa6ab31e7"  # of the default model


def test_a_drafter_is_found_by_its_target_and_a_deep_one_by_name(tmp_path: Path) -> None:
    for name, target in (("authors", None), ("one", "one"), ("two", "two"), ("two-deep", "two")):
        (tmp_path / name).mkdir()
        metadata = {CONFIG_KEY: json.dumps({"target_fingerprint": target})} if target else None
        save_file({"x": np.zeros(1)}, tmp_path / name / DRAFTER_FILE, metadata=metadata)
    found = {name: shipped_drafter("two", name, tmp_path) for name in SHIPPED_DRAFTERS}
    assert found == {"default": tmp_path / "two" / DRAFTER_FILE, "deep": tmp_path / "two-deep" / DRAFTER_FILE}
    assert shipped_drafter("one", folder=tmp_path) == tmp_path / "one" / DRAFTER_FILE
    assert shipped_drafter("one", "deep", tmp_path) is None
    assert shipped_drafter("another", folder=tmp_path) is None


def test_a_device_has_no_drafters_but_what_is_known_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(installed_drafters(FINGERPRINT)) == set(SHIPPED_DRAFTERS)
    monkeypatch.setattr("moa_shared.drafter.checkpoint.find_spec", lambda _: None)
    assert installed_drafters(FINGERPRINT) == {}
    assert find_ngrams(FINGERPRINT) is not None
    with pytest.raises(ConfigError, match="The drafters of the default model are not installed"):
        shipped_drafter(FINGERPRINT)
    assert shipped_drafter("of another model") is None


ARRAYS: dict[str, Any] = {
    "contexts": np.array([[-1, -1, 5], [-1, 4, 5]], np.int32),
    "counts": np.array([2, 1], np.uint8),
    "tokens": np.array([1, 2, 3], np.int32),
    "chances": np.array([100, 50, 250], np.uint8),
}


def test_a_table_beside_the_drafter_comes_first_and_another_targets_is_passed_over(tmp_path: Path) -> None:
    own, package = tmp_path / "own", tmp_path / "package"
    drafter = own / "drafter.safetensors"
    write_ngrams(package / "some" / NGRAMS_FILE, ARRAYS, "target")
    assert find_ngrams("target", drafter, package) == package / "some" / NGRAMS_FILE
    assert find_ngrams("another", drafter, package) is None
    write_ngrams(own / NGRAMS_FILE, ARRAYS, "another")
    assert find_ngrams("target", drafter, package) == package / "some" / NGRAMS_FILE
    table = ngrams_for("another", drafter)
    assert table is not None
    assert [[token for token, _ in table.after(text)] for text in ([5], [4, 5])] == [[1, 2], [3]]
    assert ngrams_for("nobody's", drafter) is None


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NGRAMS_FILE
    with pytest.raises(CheckpointError, match="There is no table of n-grams at"):
        load_ngrams(path)
    write_tensors(path, {"contexts": ARRAYS["contexts"]})
    with pytest.raises(CheckpointError, match="safetensors holds no table of n-grams"):
        load_ngrams(path)
    write_ngrams(path, ARRAYS | {"tokens": ARRAYS["tokens"][:2]}, "target")
    with pytest.raises(CheckpointError, match="2 tokens and 3 chances for counts of 3"):
        load_ngrams(path)


def test_the_one_beside_the_drafter_comes_first_and_others_are_passed_over(tmp_path: Path) -> None:
    drafter, package = tmp_path / "own" / "drafter.safetensors", tmp_path / "package"
    written = WrittenToken(7, 0.0, TokenOrigin.COPY)
    for folder, share, fingerprint in (("some", 0.25, "one"), ("other", 0.5, "two"), ("../own", 0.75, "two")):
        curves = Confidence({origin: [share] for origin in TokenOrigin})
        write_confidence(package / folder / CONFIDENCE_FILE, curves, fingerprint)
    for fingerprint, share in (("one", 0.25), ("two", 0.75)):
        assert (found := confidence_for(fingerprint, drafter, package)) is not None
        assert found.chance(written) == share
    assert confidence_for("three", drafter, package) is None


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    counts = ReliabilityCounts()
    for _ in range(50):
        counts.add(0.9, right=False)
    flat = [[share] * BINS for share in (0.5, 0.125)]
    before = Confidence(dict(zip(TokenOrigin, [counts.shares(), *flat], strict=True)))
    write_confidence(tmp_path / CONFIDENCE_FILE, before, "one")
    assert (after := confidence_for("one", tmp_path / "drafter.safetensors")) is not None
    for origin in TokenOrigin:
        for log_chance in (-5.0, -0.7, -0.07, 0.0):
            written = WrittenToken(7, log_chance, origin)
            assert after.chance(written) == pytest.approx(before.chance(written), abs=1e-4)
    assert math.isclose(after.chance(WrittenToken(7, 0.1, TokenOrigin.BOTH)), 0.5)  # a chance above 1 is one of 1


CURVES = ("1", '{"drafter": [0.5]}', '{"drafter": ["a"], "both": [], "copy": []}')


@pytest.mark.parametrize("text", ["", "[]", *(f'{{"drafter_fingerprint": "x", "curves": {c}}}' for c in CURVES)])
def test_what_is_damaged_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / CONFIDENCE_FILE
    path.write_text(text)
    with pytest.raises(CheckpointError) as error:
        confidence_for("x", path)
    assert "moa-train calibrate" in str(error.value)

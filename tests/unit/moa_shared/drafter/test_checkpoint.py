"""Checkpoints, whole or refused with a sentence that says why; what comes with moa; tables of n-grams and confidence."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from inline_snapshot import snapshot
from moa_shared.bfloat16 import round_to_bfloat16
from moa_shared.drafter.checkpoint.checkpoint import fresh_tensors, load_checkpoint, save_checkpoint
from moa_shared.drafter.checkpoint.shipped import (
    CONFIG_KEY,
    DEEP_DRAFTER,
    NGRAMS_FILE,
    SHIPPED_DRAFTERS,
    find_ngrams,
    installed_drafters,
    shipped_drafter,
)
from moa_shared.drafter.checkpoint.statistics import (
    CONFIDENCE_FILE,
    NgramArrays,
    confidence_for,
    load_ngrams,
    ngrams_for,
    read_confidence,
    write_confidence,
    write_ngrams,
)
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.layers.weights import ArrayWeights
from moa_shared.drafting.estimates import (
    BINS,
    Confidence,
    ReliabilityCounts,
    ReliabilityCurve,
    TokenOrigin,
    WrittenToken,
)
from moa_shared.errors import CheckpointError, ConfigError, DiskFullError, ModelSourceError, NotFoundError
from moa_shared.models.storage.tensors import write_tensors
from safetensors.numpy import save_file

from tests.support.decoders import ODD as CONFIG
from tests.support.decoders import decoder_of, target_arrays
from tests.support.messages import raises


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


def test_the_authors_files_have_no_configuration_and_are_given_one(tmp_path: Path) -> None:
    path = tmp_path / "authors.safetensors"
    save_file(fresh_tensors(CONFIG, seed=2), path)
    with pytest.raises(CheckpointError, match="safetensors does not contain its configuration"):
        load_checkpoint(path)
    assert load_checkpoint(path, CONFIG).config == CONFIG


def test_a_reduced_vocabulary_is_part_of_it(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, draft_vocab=3)
    ids = np.array([4, 9, 29], np.int32)
    save_checkpoint(tmp_path / "x.safetensors", config, fresh_tensors(config, 0, ids))
    checkpoint = load_checkpoint(tmp_path / "x.safetensors")
    target = ArrayWeights({**target_arrays(CONFIG), "lm_head.weight": np.eye(30, 16, dtype=np.float32)})
    decoder = decoder_of(checkpoint, target, "float32")
    assert np.array_equal(decoder.logits(np.eye(16, dtype=np.float32)[4:5]), [[1.0, 0.0, 0.0]])
    assert decoder.draft_ids is not None
    assert np.array_equal(decoder.draft_ids, ids)


@pytest.mark.torch
def test_bfloat16_is_read_as_torch_reads_it(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    path = tmp_path / "drafter.safetensors"
    narrow = {name: round_to_bfloat16(value) for name, value in fresh_tensors(CONFIG, seed=1).items()}
    save_checkpoint(path, CONFIG, narrow)
    theirs = load_file(path)
    assert theirs["Ekv2E.weight"].dtype == torch.bfloat16
    for name, tensor in load_checkpoint(path).tensors.items():
        assert tensor.dtype == np.float32
        assert np.array_equal(tensor, theirs[name].float().numpy())


@pytest.mark.parametrize("size", [0, 5, 100, -10, None])
def test_a_damaged_file_is_named(saved: Path, size: int | None) -> None:
    saved.write_bytes(saved.read_bytes()[:size] if size is not None else b"\xff" * 4000)
    with pytest.raises(CheckpointError, match=r"is corrupt or truncated.*Fetch or train"):
        load_checkpoint(saved)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with raises(
        NotFoundError, snapshot("There is no drafter checkpoint TMP/none. Check the path given with --drafter.")
    ):
        load_checkpoint(tmp_path / "none")


def test_wrong_tensors_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = fresh_tensors(CONFIG, seed=0)
    del tensors["Ekv2E.bias"]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match="safetensors lacks the tensor Ekv2E"):
        load_checkpoint(path, CONFIG)
    tensors["Ekv2E.bias"] = np.zeros(17, np.float32)
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"Ekv2E\.bias has shape \(17,\), expected \(16,\)"):
        load_checkpoint(path, CONFIG)
    tensors["Ekv2E.bias"] = np.zeros(16, np.float32)
    tensors["surprise"] = np.zeros(1, np.float32)
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match="safetensors holds an unknown tensor surprise"):
        load_checkpoint(path, CONFIG)


def test_a_configuration_that_cannot_be_is_refused() -> None:
    with pytest.raises(CheckpointError, match="The drafter's configuration is wrong: lsa_heads must divide the KV"):
        dataclasses.replace(CONFIG, lsa_heads=3)
    with pytest.raises(CheckpointError, match="cannot be read"):
        DrafterConfig.from_json('{"vocab_size": 3}')
    with pytest.raises(CheckpointError, match="The checkpoint's drafter configuration cannot be read"):
        DrafterConfig.from_json("not json")


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"lsa_heads": 0}, "lsa_heads is 0, expected a whole number of at least 1"),
        ({"hidden_size": "16"}, "hidden_size is '16', expected a whole number of at least 1"),
        ({"reused_layers": -1}, "reused_layers is -1, expected a whole number of at least 0, at most 1024"),
        ({"reused_layers": 4}, "reused_layers must be less than the target's layers"),
        ({"draft_vocab": 31}, "draft_vocab must be 0 to vocab_size"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0, expected a positive number"),
        (
            {"rope_parameters": {"rope_type": "default"}},
            "rope_parameters is {'rope_type': 'default'}, expected an object with a positive rope_theta",
        ),
        ({"output_norm": 1}, "output_norm is 1, expected true or false"),
        ({"output_norm": True, "reused_layers": 2}, "output_norm precedes the head only where no layers are reused"),
        ({"target_fingerprint": None}, "target_fingerprint is None, expected text"),
        (
            {"kind": "independent", "own_layers": 10**9},
            "own_layers is 1000000000, expected a whole number of at least 1, at most 1024",
        ),
    ],
)
def test_values_of_a_configuration_from_a_file_are_checked(values: dict[str, object], wrong: str) -> None:
    text = json.dumps({**json.loads(CONFIG.to_json()), **values})
    with pytest.raises(CheckpointError) as caught:
        DrafterConfig.from_json(text)
    assert caught.value.message == f"The drafter's configuration is wrong: {wrong}."


DEEP = "[" * 100_000


def test_json_that_is_nested_too_deeply_is_refused(saved: Path) -> None:
    with pytest.raises(CheckpointError, match="The checkpoint's drafter configuration cannot be read"):
        DrafterConfig.from_json(DEEP)
    saved.write_bytes(len(DEEP).to_bytes(8, "little") + DEEP.encode())
    with pytest.raises(CheckpointError, match="safetensors is corrupt or truncated"):
        load_checkpoint(saved)


def test_values_that_are_no_numbers_and_ids_of_no_token_are_refused(tmp_path: Path) -> None:
    tensors, reduced = fresh_tensors(CONFIG, seed=0), dataclasses.replace(CONFIG, draft_vocab=2)
    tensors["Ekv2E.weight"][3, 4] = float("nan")
    with pytest.raises(CheckpointError, match="weight holds values that are not numbers"):
        save_checkpoint(tmp_path / "x.safetensors", CONFIG, tensors)
    with pytest.raises(CheckpointError, match="safetensors has draft ids outside the vocabulary"):
        save_checkpoint(tmp_path / "x.safetensors", reduced, fresh_tensors(reduced, 0, np.array([0, 30], np.int32)))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="safetensors cannot be written"):
        save_checkpoint(tmp_path / "file" / "x.safetensors", CONFIG, fresh_tensors(CONFIG, seed=0))


def test_no_room_leaves_nothing_half_written(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("moa_shared.drafter.checkpoint.checkpoint.write_tensors", full)
    with pytest.raises(DiskFullError, match="safetensors cannot be written"):
        save_checkpoint(saved, CONFIG, fresh_tensors(CONFIG, seed=3))
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["drafter.safetensors"]


def test_what_only_drafters_of_states_need_is_stored_for_them_alone() -> None:
    stored = json.loads(CONFIG.to_json())
    assert list(stored) == sorted(stored)
    assert hashlib.sha256(CONFIG.to_json().encode()).hexdigest()[:16] == "7d5191b9660fade6"  # as it was without them
    eagle3 = dataclasses.replace(CONFIG, kind="eagle3", state_entries=(2, 0, 1), feature_norm="each")
    assert DrafterConfig.from_json(eagle3.to_json()) == eagle3
    for wrong in ({"state_entries": (0, CONFIG.target_layers + 1)}, {"state_entries": ()}):
        with pytest.raises(CheckpointError, match="state"):
            dataclasses.replace(eagle3, **wrong)


NAMED = {"default": "one", "deep": "one-deep"}
FINGERPRINT = "619e02713c727cf93f2a9a6a06ebd0c4e89195d9d0815189720481caa6ab31e7"  # of the default model


def test_a_drafter_is_found_by_its_target(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        config = json.dumps({"target_fingerprint": f"fingerprint of {name}"})
        save_file({"x": np.zeros(1)}, tmp_path / name / "drafter.safetensors", metadata={CONFIG_KEY: config})
    assert shipped_drafter("fingerprint of two", folder=tmp_path) == tmp_path / "two" / "drafter.safetensors"
    assert shipped_drafter("another", folder=tmp_path) is None


def test_a_deep_drafter_is_asked_for_by_name(tmp_path: Path) -> None:
    for name in ("one-deep", "one"):
        (tmp_path / name).mkdir()
        config = json.dumps({"target_fingerprint": "fingerprint"})
        save_file({"x": np.zeros(1)}, tmp_path / name / "drafter.safetensors", metadata={CONFIG_KEY: config})
    found = {name: shipped_drafter("fingerprint", name, tmp_path) for name in SHIPPED_DRAFTERS}
    assert found == {name: tmp_path / folder / "drafter.safetensors" for name, folder in NAMED.items()}
    (tmp_path / "one-deep" / "drafter.safetensors").unlink()
    assert shipped_drafter("fingerprint", DEEP_DRAFTER, tmp_path) is None


def test_files_without_our_metadata_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "authors").mkdir()
    save_file({"x": np.zeros(1)}, tmp_path / "authors" / "drafter.safetensors")
    assert shipped_drafter("any", folder=tmp_path) is None


def test_a_device_has_no_drafters_but_what_is_known_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(installed_drafters(FINGERPRINT)) == set(SHIPPED_DRAFTERS)
    monkeypatch.setattr("moa_shared.drafter.checkpoint.shipped.find_spec", lambda _: None)
    assert installed_drafters(FINGERPRINT) == {}
    assert find_ngrams(FINGERPRINT) is not None
    with pytest.raises(ConfigError, match="The drafters of the default model are not installed"):
        shipped_drafter(FINGERPRINT)
    assert shipped_drafter("of another model") is None


ARRAYS = NgramArrays(
    np.array([[-1, -1, 5], [-1, 4, 5]], np.int32),
    np.array([2, 1], np.uint8),
    np.array([1, 2, 3], np.int32),
    np.array([100, 50, 250], np.uint8),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / NGRAMS_FILE
    write_ngrams(path, ARRAYS, "target")
    table = load_ngrams(path)
    assert [token for token, _ in table.after([5])] == [1, 2]
    assert [token for token, _ in table.after([4, 5])] == [3]


def test_the_one_beside_the_drafter_comes_first_and_another_targets_is_passed_over(tmp_path: Path) -> None:
    own, package = tmp_path / "own", tmp_path / "package"
    drafter = own / "drafter.safetensors"
    write_ngrams(package / "some" / NGRAMS_FILE, ARRAYS, "target")
    assert find_ngrams("target", drafter, package) == package / "some" / NGRAMS_FILE
    assert find_ngrams("another", drafter, package) is None
    write_ngrams(own / NGRAMS_FILE, ARRAYS, "another")
    assert find_ngrams("target", drafter, package) == package / "some" / NGRAMS_FILE
    assert find_ngrams("another", drafter, package) == own / NGRAMS_FILE
    assert ngrams_for("nobody's", drafter) is None


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NGRAMS_FILE
    with pytest.raises(CheckpointError, match="There is no table of n-grams at"):
        load_ngrams(path)
    write_tensors(path, {"contexts": ARRAYS.contexts})
    with pytest.raises(CheckpointError, match="safetensors holds no table of n-grams"):
        load_ngrams(path)
    write_ngrams(path, NgramArrays(ARRAYS.contexts, ARRAYS.counts, ARRAYS.tokens[:2], ARRAYS.chances), "target")
    with pytest.raises(CheckpointError, match="2 tokens and 3 chances for counts of 3"):
        load_ngrams(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelSourceError):
        load_ngrams(path)


def confidence(share: float) -> Confidence:
    return Confidence({origin: ReliabilityCurve([share]) for origin in TokenOrigin})


def test_the_one_beside_the_drafter_comes_first_and_others_are_passed_over(tmp_path: Path) -> None:
    drafter, package = tmp_path / "own" / "drafter.safetensors", tmp_path / "package"
    write_confidence(package / "some" / CONFIDENCE_FILE, confidence(0.25), "one")
    write_confidence(package / "other" / CONFIDENCE_FILE, confidence(0.5), "two")
    found = confidence_for("two", drafter, package)
    assert found is not None
    assert found.chance(WrittenToken(7, 0.0, TokenOrigin.COPY)) == 0.5
    assert confidence_for("three", drafter, package) is None
    write_confidence(drafter.parent / CONFIDENCE_FILE, confidence(0.75), "two")
    found = confidence_for("two", drafter, package)
    assert found is not None
    assert found.chance(WrittenToken(7, 0.0, TokenOrigin.COPY)) == 0.75
    assert read_confidence(drafter.parent / CONFIDENCE_FILE)[0] == "two"


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    counts = ReliabilityCounts()
    for _ in range(50):
        counts.add(0.9, right=False)
    flat = [ReliabilityCurve([share] * BINS) for share in (0.5, 0.125)]
    before = Confidence(dict(zip(TokenOrigin, [counts.curve(), *flat], strict=True)))
    write_confidence(tmp_path / CONFIDENCE_FILE, before, "one")
    _, after = read_confidence(tmp_path / CONFIDENCE_FILE)
    for origin in TokenOrigin:
        for log_chance in (-5.0, -0.7, -0.07, 0.0):
            written = WrittenToken(7, log_chance, origin)
            assert after.chance(written) == pytest.approx(before.chance(written), abs=1e-4)
    assert math.isclose(after.chance(WrittenToken(7, 0.1, TokenOrigin.BOTH)), 0.5)  # a chance above 1 is one of 1


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", '{"drafter_fingerprint": "x"}', '{"curves": []}'),
        *(
            f'{{"drafter_fingerprint": "x", "curves": {curves}}}'
            for curves in ("1", '{"drafter": [0.5]}', '{"drafter": ["a"], "both": [], "copy": []}', "[[0.5]]")
        ),
    ],
)
def test_what_is_damaged_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / CONFIDENCE_FILE
    path.write_text(text)
    with pytest.raises(CheckpointError) as error:
        read_confidence(path)
    assert "moa-train calibrate" in str(error.value)

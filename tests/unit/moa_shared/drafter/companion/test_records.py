"""What is known of a companion beside a target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_shared.drafter.companion.records import (
    ANOTHER_MODEL,
    SAME_MODEL,
    cache_file,
    confidence_beside,
    recall_agreement,
    remember_agreement,
    write_confidence,
)
from moa_shared.drafting.confidence import PRIOR_EVIDENCE, Agreement, LearnedConfidence
from moa_shared.errors import CheckpointError
from moa_shared.models import ModelFiles, resolve

from tests.support.messages import raises
from tests.support.tiny_models import save_tiny_model

PAIR = "c" * 64, "t" * 64


def test_it_is_kept_for_both_models(tmp_path: Path) -> None:
    remember_agreement(tmp_path, *PAIR, Agreement(50, 40))
    assert recall_agreement(tmp_path, *PAIR) == Agreement(50, 40)
    assert recall_agreement(tmp_path, *reversed(PAIR)) == Agreement()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"tokens": 5, "right": 6}', '{"tokens": 1e9, "right": 6}', '{"tokens": 9999, "right": 6}']
)
def test_a_damaged_record_counts_as_none(tmp_path: Path, content: str) -> None:
    remember_agreement(tmp_path, *PAIR, Agreement(50, 40))
    [record] = (tmp_path / "hashes").iterdir()
    record.write_text(content)
    assert recall_agreement(tmp_path, *PAIR) == Agreement()


MEASURED, ANOTHER = LearnedConfidence(1.25, 20.0), LearnedConfidence(-0.5, 3.0)


@pytest.fixture
def target(tmp_path: Path) -> ModelFiles:
    return resolve(str(save_tiny_model(tmp_path / "large")), tmp_path / "cache")


@pytest.fixture
def companion(tmp_path: Path) -> ModelFiles:
    return resolve(str(save_tiny_model(tmp_path / "small", seed=9, num_hidden_layers=2)), tmp_path / "cache")


def test_by_default_it_is_by_kind(companion: ModelFiles, target: ModelFiles, tmp_path: Path) -> None:
    assert confidence_beside(companion, target, tmp_path) == LearnedConfidence(ANOTHER_MODEL, PRIOR_EVIDENCE)
    itself = replace(target, fingerprint="f" * 64)  # in another format
    assert confidence_beside(itself, target, tmp_path) == LearnedConfidence(SAME_MODEL, PRIOR_EVIDENCE)


def test_a_file_of_both_models_counts_beside_the_companion_and_in_the_cache(
    companion: ModelFiles, target: ModelFiles, tmp_path: Path
) -> None:
    (companion.folder / "confidence.json").write_text('{"drafter_fingerprint": "of a drafter", "curves": {}}')
    write_confidence(companion.folder / "b.confidence.json", ANOTHER, companion.fingerprint, "0" * 64)
    cached = cache_file(companion.fingerprint, target.fingerprint, tmp_path)
    write_confidence(cached, MEASURED, companion.fingerprint, target.fingerprint)
    found = confidence_beside(companion, target, tmp_path)
    assert found == MEASURED
    found.learn(0.5, right=False)
    assert confidence_beside(companion, target, tmp_path) == MEASURED  # what is learnt is not written
    write_confidence(companion.folder / "c.confidence.json", ANOTHER, companion.fingerprint, target.fingerprint)
    assert confidence_beside(companion, target, tmp_path) == ANOTHER


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"companion_fingerprint": "a", "target_fingerprint": "b", "shift": 1e9, "evidence": 1}',
     '{"companion_fingerprint": "a", "target_fingerprint": "b", "shift": 1, "evidence": 0}',
     '{"companion_fingerprint": "a", "shift": 1, "evidence": 1}'],
)  # fmt: skip
def test_what_is_no_such_file_is_refused(
    companion: ModelFiles, target: ModelFiles, tmp_path: Path, content: str
) -> None:
    (companion.folder / "confidence.json").write_text(content)
    with pytest.raises(CheckpointError, match="does not say how far a companion can be trusted"):
        confidence_beside(companion, target, tmp_path)


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(
        CheckpointError,
        snapshot(
            "The confidence TMP/file/confidence.json cannot be written ([Errno 17] File exists: 'TMP/file'). Choose a folder that can be written."
        ),
    ):
        write_confidence(tmp_path / "file" / "confidence.json", MEASURED, "a", "b")

"""Tables of n-grams and confidence, in files beside a checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from moa_shared.drafter.checkpoint.shipped import NGRAMS_FILE, find_ngrams
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
from moa_shared.drafting.confidence import (
    BINS,
    Confidence,
    ReliabilityCounts,
    ReliabilityCurve,
    TokenOrigin,
    WrittenToken,
)
from moa_shared.errors import CheckpointError, ModelSourceError
from moa_shared.models.tensors import write_tensors

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
    "curves",
    [
        "1",
        '{"drafter": [0.5]}',
        '{"drafter": ["a"], "both": [], "copy": []}',
        "[[0.5], [0.5], [0.5], [0.5]]",  # by depth, as they once were
    ],
    ids=["no table", "too few", "no numbers", "a list"],
)
def test_curves_that_are_none_are_refused(tmp_path: Path, curves: str) -> None:
    path = tmp_path / CONFIDENCE_FILE
    path.write_text(f'{{"drafter_fingerprint": "x", "curves": {curves}}}')
    with pytest.raises(CheckpointError):
        read_confidence(path)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"drafter_fingerprint": "x"}', '{"curves": []}'])
def test_what_is_damaged_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / CONFIDENCE_FILE
    path.write_text(text)
    with pytest.raises(CheckpointError) as error:
        read_confidence(path)
    assert "moa-train calibrate" in str(error.value)

"""Files of n-grams: what is written is read, what is damaged is refused, and the right one is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from inline_snapshot import snapshot
from moa_shared.drafter.checkpoint.ngram_file import NgramArrays, load_ngrams, ngrams_for, write_ngrams
from moa_shared.drafter.checkpoint.shipped import NGRAMS_FILE, find_ngrams
from moa_shared.errors import CheckpointError, ModelSourceError
from moa_shared.models.tensors.safetensors import write_tensors

from tests.support.messages import raises

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
    with raises(
        CheckpointError,
        snapshot("There is no table of n-grams at TMP/ngrams.safetensors. Make one with moa-train ngrams."),
    ):
        load_ngrams(path)
    write_tensors(path, {"contexts": ARRAYS.contexts})
    with raises(
        CheckpointError,
        snapshot(
            "TMP/ngrams.safetensors holds no table of n-grams (tensors ['contexts']). Make it again with moa-train ngrams."
        ),
    ):
        load_ngrams(path)
    write_ngrams(path, NgramArrays(ARRAYS.contexts, ARRAYS.counts, ARRAYS.tokens[:2], ARRAYS.chances), "target")
    with raises(
        CheckpointError,
        snapshot(
            "TMP/ngrams.safetensors holds no table of n-grams (2 tokens and 3 chances for counts of 3). Make it again with moa-train ngrams."
        ),
    ):
        load_ngrams(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelSourceError):
        load_ngrams(path)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(
        CheckpointError,
        snapshot(
            "The table of n-grams TMP/file/ngrams.safetensors cannot be written ([Errno 17] File exists: 'TMP/file'). Choose a folder that can be written."
        ),
    ):
        write_ngrams(tmp_path / "file" / NGRAMS_FILE, ARRAYS, "target")

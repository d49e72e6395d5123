from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from inline_snapshot import snapshot
from moa_shared.errors import DataError, NotFoundError
from moa_shared.programs.progress import SilentProgress
from moa_training.data.sources import find_sources

from tests.support.messages import raises


def test_files_are_taken_as_they_are_and_missing_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("")
    assert find_sources([str(path)], SilentProgress()) == [path]
    with raises(
        NotFoundError,
        snapshot("There is no file TMP/b.jsonl. Name files of JSON lines, or hub:owner/name for a hub data set."),
    ):
        find_sources([str(path), str(tmp_path / "b.jsonl")], SilentProgress())


def test_a_data_set_of_the_hub_is_all_of_its_json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fetch(repository: str, **options: Any) -> str:
        asked.append((repository, options["repo_type"]))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    with raises(DataError, snapshot("The data set a/b holds no JSON lines. Convert it to JSON lines of messages.")):
        find_sources(["hub:a/b"], SilentProgress())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.jsonl").write_text("")
    assert find_sources(["hub:a/b"], SilentProgress()) == [tmp_path / "data" / "x.jsonl"]
    assert asked[0] == ("a/b", "dataset")


def test_a_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with raises(DataError, snapshot("The data set a/b cannot be fetched (no route to host). Check name and network.")):
        find_sources(["hub:a/b"], SilentProgress())

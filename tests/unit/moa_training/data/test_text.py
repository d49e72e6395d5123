from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from inline_snapshot import snapshot
from moa_shared.errors import DataError, NotFoundError
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import SilentProgress
from moa_training.data.shards import read_shard
from moa_training.data.text import RowCounts, TrainingConversation, find_sources, prepare, read_conversations

from tests.support.messages import raises
from tests.support.tiny_training import WORDS

GOOD: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    "source": "x",
}


def read(folder: Path, *lines: object) -> tuple[list[TrainingConversation], RowCounts]:
    counts, path = RowCounts(), folder / "f"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return list(read_conversations([path], counts)), counts


def test_good_rows_pass(tmp_path: Path) -> None:
    rows, counts = read(tmp_path, GOOD)
    assert rows == [TrainingConversation(tuple(GOOD["messages"]), "x", "f:0")]
    assert str(counts) == "1 rows, none malformed"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("", "empty"),
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ({}, "without messages"),
        ({"messages": []}, "without messages"),
        ({"messages": "text"}, "without messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "with an unknown role"),
        ({"messages": ["a"]}, "with an unknown role"),
        ({"messages": [{"role": "user", "content": 5}]}, "with a message that is not text"),
        ({"messages": [{"role": "user", "content": "  "}]}, "without a user's message"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "without a user's message"),
    ],
)
def test_bad_rows_are_counted_by_their_reason(tmp_path: Path, bad: object, reason: str) -> None:
    rows, counts = read(tmp_path, GOOD, bad, GOOD)
    assert len(rows) == counts.good == 2
    assert dict(counts.bad) == {reason: 1}
    assert str(counts) == f"2 rows; 1 left out: 1 {reason}"


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


def test_answers_are_found_in_the_template_and_bad_rows_counted(tmp_path: Path, files: ModelFiles) -> None:
    turns = [("user", "w1 w2"), ("assistant", "w3"), ("user", "w4"), ("assistant", "w5 w6")]
    rows = [
        json.dumps({"messages": [{"role": role, "content": text} for role, text in turns], "source": "toy"}),
        "not json",
        json.dumps({"messages": [{"role": "user", "content": "w1"}]}),
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(rows))
    for most, answers in ((64, [["w3", "<end>"], ["w5", "w6", "<end>"]]), (12, [["w3", "<end>"], ["w5"]])):
        counts = prepare(files, [source], tmp_path / "out.jsonl.zst", most, SilentProgress())
        assert counts.good == 1
        assert dict(counts.bad) == {"not JSON": 1, "without an answer that fits": 1}
        (row,) = read_shard(tmp_path / "out.jsonl.zst", files.tokenizer_hash, len(WORDS))
        words = [WORDS[token] for token in row.ids]
        assert [words[start:stop] for start, stop in row.answers] == answers

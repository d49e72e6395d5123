import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
from moa_shared.errors import DataError, NotFoundError
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import Progress
from moa_training.data.shards import read_shard
from moa_training.data.text import (
    RowCounts,
    TrainingConversation,
    find_sources,
    prepare,
    read_conversations,
    read_questions,
    reference_result,
    stated_result,
)

from tests.support.tiny_training import WORDS

GOOD: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "source": "x"}  # fmt: skip


@pytest.mark.parametrize(("bad", "reason"), [
    ("", "empty"), ("{", "not JSON"), ("[1]", "not an object"), ('{"messages": []}', "without messages"),
    ('{"messages": [{"role": "robot", "content": "a"}]}', "with an unknown role"),
    ('{"messages": [{"role": "user", "content": 5}]}', "with a message that is not text"),
    ('{"messages": [{"role": "user", "content": "  "}]}', "without a user's message"),
])  # fmt: skip
def test_bad_rows_are_counted_by_their_reason(tmp_path: Path, bad: str, reason: str) -> None:
    counts, path = RowCounts(), tmp_path / "f"
    path.write_text("\n".join([json.dumps(GOOD), bad, json.dumps(GOOD)]))
    rows = list(read_conversations([path], counts))
    assert rows == [TrainingConversation(tuple(GOOD["messages"]), "x", f"f:{at}") for at in (0, 2)]
    assert str(counts) == f"2 rows; 1 left out: 1 {reason}"


def test_sources_are_files_or_all_json_lines_of_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, silent = tmp_path / "a.jsonl", Progress()
    path.write_text("")
    assert find_sources([str(path)], silent) == [path]
    with pytest.raises(NotFoundError, match=r"There is no file .*b.jsonl"):
        find_sources([str(path), str(tmp_path / "b.jsonl")], silent)
    (tmp_path / "hub" / "data").mkdir(parents=True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path / "hub"))
    with pytest.raises(DataError, match="The data set a/b holds no JSON lines"):
        find_sources(["hub:a/b"], silent)
    (tmp_path / "hub" / "data" / "x.jsonl").write_text("")
    assert find_sources(["hub:a/b"], silent) == [tmp_path / "hub" / "data" / "x.jsonl"]
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=OSError("no route to host")))
    with pytest.raises(DataError, match=r"The data set a/b cannot be fetched \(no route to host\)"):
        find_sources(["hub:a/b"], silent)


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
        counts = prepare(files, [source], tmp_path / "out.jsonl.zst", most, Progress())
        assert (counts.good, dict(counts.bad)) == (1, {"not JSON": 1, "without an answer that fits": 1})
        (row,) = read_shard(tmp_path / "out.jsonl.zst", files.tokenizer_hash, len(WORDS))
        words = [WORDS[token] for token in row.ids]
        assert [words[start:stop] for start, stop in row.answers] == answers


@pytest.mark.parametrize(("text", "result"), [
    ("3 and 4 are 7.", "7"),
    ("It costs $1,234.50 in all", "1234.50"),
    ("from 5 to -2", "-2"),
    ("#### 18\nThat was step 2.", "18"),
    ("so \\boxed{\\$42} of 50", "42"),
    ("#### none, but 6", "6"),
    ("no number", None),
])  # fmt: skip
def test_a_text_states_its_marked_or_its_last_number(text: str, result: str | None) -> None:
    assert stated_result(text) == (None if result is None else Decimal(result))


@pytest.mark.parametrize(("row", "result"), [
    ({"final_answer": "1,080"}, 1080),
    ({"final_answer": "3", "reference": ["#### 4"]}, 3),
    ({"reference": ["2+2 = <<2+2=4>>4\n#### 4"]}, 4),
    ({"reference": ["Lithium has 3 protons."]}, None),
    ({"reference": "#### 4"}, None),
    ({}, None),
])  # fmt: skip
def test_only_marked_references_name_a_result(row: dict[str, Any], result: int | None) -> None:
    assert reference_result(row) == result


def test_questions_that_cannot_be_asked_are_counted(tmp_path: Path, files: ModelFiles) -> None:
    path = tmp_path / "q.jsonl"
    long = json.dumps({"category": "a", "turns": ["w1 " * 60]})
    path.write_text('{"category": "a", "turns": ["w1"]}\nnot json\n{"turns": []}\n' + long)
    questions, left_out = read_questions(path, files, None, 30)
    assert (len(questions), left_out) == (1, 3)
    path.write_text("{}\n")
    with pytest.raises(DataError):
        read_questions(path, files, None, 30)
    with pytest.raises(NotFoundError):
        read_questions(tmp_path / "none", files, None, 30)
